import keras
import numpy as np
import pytest

from keras_vit.pretraining.masked_image_model import Encoder
from tests import tiny
from tests.errors import refuses

RNG = np.random.default_rng(0)
BACKBONES = {
    "plain": {},
    "registers and a distillation token": {"num_registers": 2, "distillation_token": True},
    "no position for the class token, gap": {"class_token_position": False, "pooling": "none", "num_registers": 1},
    "sincos2d": {"position_embedding": "sincos2d"},
    "relative": {"position_embedding": "relative"},
    "rotary": {"position_embedding": "learned2d", "rotary_embedding": "axial"},
    "no positions, no tokens, map": {"position_embedding": "none", "pooling": "map"},
    "norm after pooling": {"pooling": "gap", "norm_after_pooling": True},
    "ResNet stem": {"stages": (1,), "width_factor": 0.5, "image_size": (64, 32), "patch_size": 2},
    "raw images that patches do not divide": {"include_preprocessing": True, "image_size": (18, 27)},
}
UNSUPPORTED = [
    ({"image_size": (None, None)}, "fixed size"),
    ({"patch_dropout_rate": 0.5}, "patch_dropout_rate=0"),
    ({"token_merging": (0, 1)}, "token_merging=0"),
    ({**BACKBONES["ResNet stem"], "image_size": (63, 32)}, "image sides divisible by the ResNet's stride"),
]


@pytest.mark.parametrize("changes", BACKBONES.values(), ids=BACKBONES)
def test_encoder_equals_backbone(changes):
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


def test_encoder_of_a_clone_with_more_layers():
    backbone = tiny.randomize(tiny.build(num_classes=0, num_registers=1))
    model = keras.models.clone_model(backbone)
    model.set_weights([keras.ops.convert_to_numpy(w) for w in backbone.weights])
    x = keras.layers.Dropout(0.5, name="dropout")(model.output)
    model = keras.Model(model.input, keras.layers.Dense(3, name="block_of_mine")(x))
    images = RNG.normal(size=(2, 16, 16, 3)).astype("float32")
    encoders = [Encoder(each) for each in (model, backbone)]
    actual, expected = (keras.ops.convert_to_numpy(e.encode_patches(e.embedding(images))) for e in encoders)
    np.testing.assert_allclose(actual, expected, atol=1e-6)
    assert [layer.name for layer in encoders[0].block_layers] == ["block_00", "block_01", "norm"]


def test_patch_size_is_in_image_pixels():
    encoder = Encoder(tiny.build(**BACKBONES["ResNet stem"]))
    assert encoder.patch_size == (8, 8) and encoder.grid_size == (8, 4)
    encoder = Encoder(tiny.build(image_size=(18, 27)))
    assert encoder.patch_size == (4, 4) and encoder.grid_size == (4, 6)


@pytest.mark.parametrize("changes, message", UNSUPPORTED)
def test_unsupported_backbones(changes, message):
    refuses(message, Encoder, tiny.build(**changes))


def test_other_models_are_refused():
    refuses("ViT built by keras_vit", Encoder, keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)]))
    refuses(r"Received: 'B/16'", Encoder, "B/16")
