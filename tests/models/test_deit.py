import json

import keras
import numpy as np
import pytest

import keras_vit
from tests.contract import check_model
from tests.golden import GOLDEN_FOLDER
from tests.tiny import build, randomize

PARAMETERS = {
    "DeiTTi16": "deit_tiny_patch16_224",
    "DeiTS16": "deit_small_patch16_224",
    "DeiTB16": "deit_base_patch16_224",
    "DeiTTi16Distilled": "deit_tiny_distilled_patch16_224",
    "DeiTS16Distilled": "deit_small_distilled_patch16_224",
    "DeiTB16Distilled": "deit_base_distilled_patch16_224",
    "DeiT3S16": "deit3_small_patch16_224",
    "DeiT3B16": "deit3_base_patch16_224",
    "DeiT3H14": "deit3_huge_patch14_224",
}


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameter_count(count_params, name):
    counts = json.loads((GOLDEN_FOLDER / "param_counts_timm.json").read_text())
    assert count_params(getattr(keras_vit, name)) == counts[PARAMETERS[name]]


def test_parameter_count_at_another_resolution(count_params):
    counts = json.loads((GOLDEN_FOLDER / "param_counts_timm.json").read_text())
    assert count_params(lambda: keras_vit.DeiTB16(image_size=384)) == counts["deit_base_patch16_384"]


def test_a_distilled_model_keeps_the_contract():
    images = np.random.default_rng(0).normal(size=(3, 16, 16, 3)).astype("float32")
    check_model(distilled(activation="gelu"), images)


def distilled(**arguments):
    return build(distillation_token=True, **arguments)


def test_the_output_is_the_mean_of_the_heads_and_both_on_request():
    model = randomize(distilled())
    both = distilled(return_both_heads=True)
    both.set_weights(model.get_weights())
    images = np.random.default_rng(0).normal(size=(2, 16, 16, 3)).astype("float32")
    token, distillation = (keras.ops.convert_to_numpy(y) for y in both(images))
    assert not np.allclose(token, distillation)
    np.testing.assert_allclose(keras.ops.convert_to_numpy(model(images)), (token + distillation) / 2, atol=1e-6)


def test_each_head_sees_its_own_token():
    model = randomize(distilled())
    norm = keras.Model(model.input, [model.get_layer(name).output for name in ("norm", "head", "head_dist")])
    tokens, *logits = (keras.ops.convert_to_numpy(y) for y in norm(np.ones((1, 16, 16, 3), "float32")))
    for i, (name, y) in enumerate(zip(("head", "head_dist"), logits, strict=True)):
        kernel, bias = model.get_layer(name).get_weights()
        np.testing.assert_allclose(y, tokens[:, i] @ kernel + bias, atol=1e-4)


def test_without_a_head_the_features_of_both_tokens_are_averaged():
    model = randomize(distilled(num_classes=0))
    tokens, features = keras.Model(model.input, [model.get_layer("norm").output, model.output])(np.ones((1, 16, 16, 3)))
    tokens = keras.ops.convert_to_numpy(tokens)
    np.testing.assert_allclose(keras.ops.convert_to_numpy(features), tokens[:, :2].mean(axis=1), atol=1e-5)


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"pooling": "gap"}, 'Expected pooling="token"'),
        ({"representation_size": 8}, "no representation_size"),
        ({"num_classes": 0, "return_both_heads": True}, "num_classes above 0"),
    ],
)
def test_what_a_distilled_model_cannot_have_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        distilled(**arguments)
    with pytest.raises(ValueError, match="Expected distillation_token=True"):
        build(return_both_heads=True)


def test_weights_overrule_how_the_family_was_trained(tmp_path):
    sizes = {"image_size": 16, "patch_size": 4, "hidden_dim": 12, "num_layers": 2, "mlp_dim": 20, "num_classes": 5}
    keras_vit.save_weights(randomize(build()), tmp_path / "official.npz")
    loaded = keras_vit.DeiTTi16(weights=tmp_path / "official.npz", **sizes)
    assert loaded.get_layer("block_00").get_config()["activation"] == "gelu_tanh"
    assert loaded.preprocessing.mean == (0.5,)
    fresh = keras_vit.DeiTTi16(**sizes)
    assert fresh.get_layer("block_00").get_config()["activation"] == "gelu"
    assert fresh.preprocessing.mean == (0.485, 0.456, 0.406)


def test_a_published_file_brings_its_preprocessing(tmp_path, monkeypatch):
    sizes = {"image_size": 16, "patch_size": 4, "hidden_dim": 12, "num_layers": 2, "num_heads": 3, "mlp_dim": 20}
    keras_vit.save_weights(build(activation="gelu"), tmp_path / "dino.safetensors", "timm")
    monkeypatch.setattr(keras_vit.weights.zoo, "fetch", lambda row: str(tmp_path / "dino.safetensors"))
    for model in (keras_vit.ViTS16(weights="dino", **sizes), keras_vit.ViT("S/16", weights="dino", **sizes)):
        assert model.preprocessing.mean == (0.485, 0.456, 0.406) and model.config.activation == "gelu"
    assert keras_vit.ViTS16(weights="dino", mean=0.3, **sizes).preprocessing.mean == (0.3,)
