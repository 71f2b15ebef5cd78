import keras
import numpy as np

import keras_vit
from tests.models.small import answers, images
from tests.tiny import build, randomize

SIZES = {"image_size": 16, "patch_size": 4, "hidden_dim": 12, "num_layers": 2, "num_heads": 3, "mlp_dim": 20}
IMAGENET_MEAN = (0.485, 0.456, 0.406)


def test_distilled_features_are_the_mean_of_both_tokens():
    model = randomize(build(distillation_token=True, num_classes=0))
    tapped = keras.Model(model.input, [model.get_layer("norm").output, model.output])
    tokens, features = answers(tapped, images(1, 16, 16, 3))
    np.testing.assert_allclose(features, tokens[:, :2].mean(axis=1), atol=1e-5)


def test_heads_of_one_initializer_differ():
    model = build(distillation_token=True, head_init=keras.initializers.RandomNormal())
    first, second = (keras.ops.convert_to_numpy(model.get_layer(name).kernel) for name in ("head", "head_dist"))
    assert (first != second).all()


def test_weights_override_the_familys_training_settings(tmp_path):
    keras_vit.save_weights(randomize(build()), tmp_path / "official.npz")
    sizes = {**SIZES, "num_classes": 5}
    loaded = keras_vit.DeiTTi16(weights=tmp_path / "official.npz", **sizes)
    assert loaded.config.activation == "gelu_tanh" and loaded.preprocessing.mean == (0.5,)
    assert loaded.get_layer("block_00").get_config()["activation"] == "gelu_tanh"
    fresh = keras_vit.DeiTTi16(**sizes)
    assert fresh.get_layer("block_00").get_config()["activation"] == "gelu"
    assert fresh.preprocessing.mean == IMAGENET_MEAN


def test_published_name_sets_the_preprocessing(tmp_path, monkeypatch):
    keras_vit.save_weights(build(activation="gelu"), tmp_path / "dino.safetensors", "timm")
    monkeypatch.setattr(keras_vit.models.zoo, "fetch", lambda row: str(tmp_path / "dino.safetensors"))
    for model in (keras_vit.ViTS16(weights="dino", **SIZES), keras_vit.ViT("S/16", weights="dino", **SIZES)):
        assert model.preprocessing.mean == IMAGENET_MEAN and model.config.activation == "gelu"
    assert keras_vit.ViTS16(weights="dino", preprocessing={"mean": 0.3}, **SIZES).preprocessing.mean == (0.3,)
