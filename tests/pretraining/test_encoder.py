import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.pretraining.encoder import Encoder
from tests import tiny

RNG = np.random.default_rng(0)
BACKBONES = {
    "plain": {},
    "registers and a distillation token": {"num_registers": 2, "distillation_token": True},
    "no position for the class token, gap": {"class_token_position": False, "pooling": None, "num_registers": 1},
    "learned2d": {"position_embedding": "learned2d"},
    "sincos2d": {"position_embedding": "sincos2d"},
    "relative": {"position_embedding": "relative"},
    "no positions, no tokens, map": {"position_embedding": "none", "pooling": "map"},
    "norm after pooling": {"pooling": "gap", "norm_after_pooling": True},
    "ResNet stem": {"stages": (1,), "width_factor": 0.5, "image_size": (64, 32), "patch_size": 2},
    "raw images that patches do not divide": {"include_preprocessing": True, "image_size": (18, 27)},
}


@pytest.mark.parametrize("changes", BACKBONES.values(), ids=BACKBONES)
def test_encoder_computes_what_the_backbone_does(changes):
    backbone = tiny.build(**{"dropout_rate": 0.1, **changes})
    encoder = Encoder(backbone)
    images = RNG.uniform(0, 255, (2, *backbone.input_shape[1:])).astype("float32")
    name = "block_01" if changes.get("norm_after_pooling") else "norm"
    expected = keras.Model(backbone.input, backbone.get_layer(name).output)(images)
    tokens = encoder.run_blocks(encoder.add_positions(encoder.embedding(images)))
    np.testing.assert_allclose(*(keras.ops.convert_to_numpy(x) for x in (tokens, expected)), atol=1e-5)
    assert tokens.shape[1] == encoder.num_prefix_tokens + encoder.num_patches
    assert encoder.cut(images).shape[1] == encoder.num_patches
    used = {id(v) for v in encoder.model.variables}
    unused = {v.path.split("/")[0] for v in backbone.variables if id(v) not in used}
    assert "head" in unused and unused <= {"head", "head_dist", "pooling", "fc_norm"}
    assert encoder.is_hybrid == ("stages" in changes)


@pytest.mark.parametrize("kind", ["head", "clone"])
def test_encoder_of_a_model_that_goes_on_and_of_a_clone(kind):
    backbone = tiny.randomize(tiny.build(num_classes=0, num_registers=1))
    model = keras.models.clone_model(backbone)
    model.set_weights([keras.ops.convert_to_numpy(w) for w in backbone.weights])
    if kind == "head":
        x = keras.layers.Dropout(0.5, name="dropout")(model.output)
        model = keras.Model(model.input, keras.layers.Dense(3, name="block_of_mine")(x))
    images = RNG.normal(size=(2, 16, 16, 3)).astype("float32")
    encoders = [Encoder(each) for each in (model, backbone)]
    actual, expected = (keras.ops.convert_to_numpy(e.encode_patches(e.embedding(images))) for e in encoders)
    np.testing.assert_allclose(actual, expected, atol=1e-6)
    assert [layer.name for layer in encoders[0].block_layers] == ["block_00", "block_01", "norm"]


def test_patch_size_is_in_pixels_of_the_image():
    encoder = Encoder(tiny.build(stages=(1,), width_factor=0.5, image_size=(64, 32), patch_size=2))
    assert encoder.patch_size == (8, 8) and encoder.grid_size == (8, 4)
    encoder = Encoder(tiny.build(image_size=(18, 27)))
    assert encoder.patch_size == (4, 4) and encoder.grid_size == (4, 6)


@pytest.mark.parametrize("include_preprocessing", [False, True])
def test_raw_images_come_back(include_preprocessing):
    backbone = tiny.build(include_preprocessing=include_preprocessing, mean=(0.1, 0.4, 0.5), std=(0.2, 0.3, 0.6))
    encoder = Encoder(backbone)
    raw = RNG.integers(0, 256, (2, 16, 16, 3)).astype("uint8")
    images = keras_vit.preprocess_input(raw, backbone)
    np.testing.assert_allclose(keras.ops.convert_to_numpy(encoder.normalization.raw_images(images)), raw, atol=1e-3)
    normalized = encoder.cut(encoder.normalization(images))
    expected = keras.ops.convert_to_numpy(encoder.cut(raw.astype("float32")))
    np.testing.assert_allclose(encoder.raw_patches(keras.ops.convert_to_numpy(normalized)), expected, atol=1e-3)


def test_refuses_what_it_cannot_walk_through():
    with pytest.raises(ValueError, match="fixed size"):
        Encoder(tiny.build(image_size=(None, None)))
    with pytest.raises(ValueError, match="patch_dropout_rate=0"):
        Encoder(tiny.build(patch_dropout_rate=0.5))
    with pytest.raises(ValueError, match="token_merging=0"):
        Encoder(tiny.build(token_merging=(0, 1)))
    with pytest.raises(ValueError, match="ViT of this package's builders"):
        Encoder(keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)]))
    with pytest.raises(ValueError, match=r"Received: 'B/16'"):
        Encoder("B/16")
    with pytest.raises(ValueError, match="image sides divisible by the ResNet's stride"):
        Encoder(tiny.build(stages=(1,), width_factor=0.5, image_size=(63, 32), patch_size=2))
