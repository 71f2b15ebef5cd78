import importlib

import keras
import numpy as np
import pytest
from keras import ops

import keras_vit
from keras_vit.models.profile import PAPER, paper_table, profile
from tests.errors import refuses
from tests.models.efficientnet import test_model as efficientnet
from tests.models.vt_resnet import test_model as vt_resnet
from tests.tiny import build, dtype_policy

VARIATIONS = [
    {},
    {"pooling": "gap", "num_classes": 0},
    {"pooling": "none", "representation_size": 7},
    {"distillation_token": True, "return_both_heads": True},
    {"position_embedding": "relative", "qk_norm": True},
    {"position_embedding": "learned2d", "layer_scale_init": 0.1, "drop_path_rate": 0.1, "dropout_rate": 0.1},
    {"patch_dropout_rate": 0.5, "hidden_dim": 13, "head_dim": 4},
    {"token_merging": 3, "pooling": "map", "num_registers": 2, "layer_scale_init": 0.1},
    {"token_merging": (4, 0), "pooling": "gap"},
    {"image_size": (None, None)},
    {"stages": (1, 1), "width_factor": 0.5, "patch_size": 1, "image_size": 32},
    {"stages": (), "patch_size": 2, "image_size": 32},
]
COATNET = {"image_size": (64, 96), "depths": (1, 1, 2, 1), "widths": (8, 16, 16, 32), "stem_widths": (8, 8)}
COATNETS = {
    "0": {"head_dim": 4, "representation_size": 6, "num_classes": 3},
    "coatnet_0_rw": {"head_dim": 8, "layer_scale_init": 0.1},
    "coatnet_1_rw": {"head_dim": 8, "pool_type": "max3"},
}
BIT = {"image_size": 40, "stages": (1, 1), "width_factor": 0.5, "num_classes": 3}
ACTIVATIONS = [
    (keras_vit.ViT, "Ti/16", {"num_layers": 2}),
    (keras_vit.ViT, "Ti/16", {"num_layers": 2, "token_merging": 8}),
    (keras_vit.BiT, "R50x1", {"stages": (1, 1), "image_size": 96}),
    (keras_vit.CoAtNet, "0", {"depths": (1, 1, 2, 1), "image_size": 96}),
    (keras_vit.EfficientNet, "B0", {"image_size": 96}),
    (keras_vit.VTResNet, "R50", {"stages": (2, 2), "image_size": 96}),
]


@pytest.fixture(scope="module")
def examples():
    """Maps a name to (model, image size) for every kind of model."""
    found = {str(changes): (build(**changes), (32, 20)) for changes in VARIATIONS}
    found["bit"] = (keras_vit.BiT("R50x1", **BIT), (40, 24))
    found["efficientnet"] = (efficientnet.build(), (33, 48))
    found["vt_resnet"] = (vt_resnet.build(), (32, 41))
    found["vt_resnet_bottleneck"] = (vt_resnet.build(bottleneck=True, num_modules=3), (32, 41))
    for name, more in COATNETS.items():
        found[f"coatnet {name}"] = (keras_vit.CoAtNet(name, **COATNET, **more), (64, 96))
    return found


@pytest.mark.backends("torch")
def test_counts_match_the_weights_and_pytorch_flop_counter(examples, monkeypatch):
    from torch.utils.flop_counter import FlopCounterMode

    # The counter does not support the fused kernel of the CPU.
    monkeypatch.setattr(importlib.import_module("keras_vit.layers.kernels"), "has_fused_kernel", lambda: False)
    # The profile leaves out the products that resize position embeddings once per batch.
    monkeypatch.setattr(keras_vit.layers.PositionEmbedding, "call", lambda self, tokens, images=None: tokens)
    for name, (model, size) in examples.items():
        if None not in model.input_shape[1:3]:
            size = model.input_shape[1:3]
        # A plain Keras model computes all tokens of the last block.
        full = keras.Model(model.input, model.output)
        with FlopCounterMode(display=False) as counter:
            full(np.zeros((1, *size, 3), "float32"))
        costs = profile(model, size)
        assert counter.get_total_flops() == 2 * costs.multiply_adds, name
        assert costs.parameters == sum(int(np.prod(w.shape)) for w in model.weights) == model.count_params(), name
        assert costs.not_counted == [], name


@pytest.mark.backends("torch")
@pytest.mark.parametrize("builder, variant, sizes", ACTIVATIONS)
def test_activation_bytes_match_pytorch_saved_tensors(builder, variant, sizes, monkeypatch):
    import torch

    monkeypatch.setattr(importlib.import_module("keras_vit.layers.kernels"), "has_fused_kernel", lambda: False)
    model = builder(variant, **sizes)
    # A plain Keras model computes all tokens of the last block.
    full = keras.Model(model.input, model.output)
    weights = {w.value.untyped_storage().data_ptr() for w in model.weights}

    def kept_bytes(num_images):
        kept = {}

        def keep(tensor):
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in weights:
                kept[storage.data_ptr()] = storage.nbytes()
            return tensor

        images = np.random.default_rng(0).normal(size=(num_images, *model.input_shape[1:])).astype("float32")
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            # While `output` exists, PyTorch does not reuse its storage.
            output = full(images, training=True)
        del output
        return sum(kept.values())

    # The difference removes standardized kernels, which a batch keeps once.
    an_image = (kept_bytes(3) - kept_bytes(1)) / 2
    assert profile(model).activation_bytes == pytest.approx(an_image, rel=0.15)


def test_multiply_adds_of_keras_layers():
    x = keras.Input((8, 6, 4))
    y = keras.layers.Conv2D(6, 3, strides=2, padding="same", groups=2, name="conv")(x)
    y = keras.layers.DepthwiseConv2D(3, depth_multiplier=2, padding="same", name="depthwise")(y)
    y = keras.layers.BatchNormalization(name="norm")(y)
    y = keras.layers.ReLU(name="relu")(y)
    y = keras.layers.Reshape((12, 12), name="reshape")(y)
    y = ops.matmul(y[:, :4], ops.transpose(y, (0, 2, 1)))
    y = keras.layers.Dense(2, name="dense")(keras.layers.Flatten()(y))
    model = keras.Model(x, y)
    found = {row.name: row.multiply_adds for row in profile(model).rows}
    expected = {"conv": 4 * 3 * 6 * (9 * 2), "depthwise": 4 * 3 * 12 * 9, "dense": 48 * 2}
    expected |= dict.fromkeys(("norm", "relu", "reshape"), 0)
    assert {name: found[name] for name in expected} == expected
    (product,) = (row for row in profile(model).rows if row.kind == "Matmul")
    assert product.multiply_adds == 4 * 12 * 12
    assert profile(model).parameters == model.count_params()


@keras.saving.register_keras_serializable(package="tests")
class Own(keras.layers.Layer):
    """A user's layer."""

    def build(self, shape):
        self.kernel = self.add_weight(shape=(shape[-1], 4))

    def call(self, x):
        return x @ self.kernel


def test_unknown_layers_are_listed_as_not_counted():
    x = keras.Input((3,))
    y = Own(name="own")(keras.layers.Dense(5)(x))
    y = ops.einsum("bi,bj->bij", y, y)
    y = keras.layers.MultiHeadAttention(2, 3, name="attention")(y, y)
    costs = profile(keras.Model(x, y))
    assert costs.not_counted[::2] == ["own", "attention"] and len(costs.not_counted) == 3
    assert (costs.multiply_adds, costs.parameters) == (15, 20 + 20 + 3 * (4 * 6 + 6) + 6 * 4 + 4)
    assert "Multiply-adds not counted: own, " in str(costs)


def test_layer_without_output_shape_is_named():
    class Vague(keras.layers.Layer):
        def call(self, x):
            return x

        def compute_output_shape(self, shape):
            return shape[0], None

    x = keras.Input((3,))
    with pytest.raises(ValueError, match="`model`. Expected layers whose output shape follows.*'vague', a Vague"):
        profile(keras.Model(x, Vague(name="vague")(x)))


def test_weights_of_the_model_itself_are_counted():
    class Owner(keras.Model):
        def __init__(self, inputs, outputs):
            super().__init__(inputs, outputs)
            self.own = self.add_weight(shape=(7,))

    x = keras.Input((3,))
    model = Owner(x, keras.layers.Dense(2)(x))
    assert profile(model).parameters == model.count_params() == 3 * 2 + 2 + 7


def test_lora_adds_parameters_but_no_multiply_adds():
    model = build()
    for block in model.blocks:
        block.attention.qkv.enable_lora(2)
    costs = profile(model)
    assert costs.parameters == model.count_params() == build().count_params() + 2 * (12 * 2 + 2 * 36)
    assert costs.multiply_adds == profile(build()).multiply_adds


def test_nested_model_adds_its_costs():
    backbone = build(num_classes=0, name="vit")
    inside = profile(backbone)
    for model in (
        keras.Sequential([keras.Input((16, 16, 3)), keras.layers.Rescaling(2.0), backbone, keras.layers.Dense(3)]),
        keras.Model(x := keras.Input((16, 16, 3)), keras.layers.Dense(3)(backbone(x))),
    ):
        costs = profile(model)
        assert costs.parameters == model.count_params()
        assert costs.multiply_adds == inside.multiply_adds + 12 * 3
        assert costs.activation_bytes >= inside.activation_bytes
        assert "vit/block_01" in [row.name for row in costs.rows]
    # A layer that is used twice costs twice, but its weights count once.
    a, b = keras.Input((16, 16, 3)), keras.Input((16, 16, 3))
    twice = profile(keras.Model([a, b], backbone(a) + backbone(b)))
    assert (twice.parameters, twice.multiply_adds) == (inside.parameters, 2 * inside.multiply_adds)


def test_profile_of_other_image_size_and_dtype():
    any_size, fixed = build(image_size=(None, None), grid_size=(8, 5)), build(image_size=(32, 20))
    assert profile(any_size, (32, 20)).multiply_adds == profile(fixed).multiply_adds
    assert profile(build(), (32, 20)).multiply_adds == profile(fixed).multiply_adds
    assert profile(build(), (32, 20)).parameters == build().count_params()
    # Blocks take half the bytes. The head stays in float32.
    with dtype_policy("mixed_bfloat16"):
        mixed = profile(build(image_size=(32, 20)))
    halved = [row.activation_bytes for row in mixed.rows if row.kind == "TransformerBlock"]
    assert [2 * b for b in halved] == [r.activation_bytes for r in profile(fixed).rows if r.kind == "TransformerBlock"]


def test_profile_table_lists_steps_and_model_is_unchanged():
    model = build()
    text = profile(model, 32).table(steps=True)
    assert keras.Model(model.input, model.get_layer("block_01").output).output_shape == (None, 17, 12)
    assert text.startswith("vit_B16, one input of 32 x 32 x 3\n")
    assert "  block_01/attention/query x key" in text and text.splitlines()[-1].startswith("total")
    assert "query x key" not in str(profile(build()))


def test_paper_table_matches_published_counts():
    rows = [line.split() for line in paper_table().splitlines()[1:]]
    assert [row[0] for row in rows] == list(PAPER)
    near = {row[0] for row in rows if abs(float(row[1]) / float(row[2]) - 1) < 0.02}
    assert near >= {"S/16", "B/16", "L/16", "L/32", "H/14"}
    multiply_adds = {row[0]: float(row[3]) for row in rows}
    for variant, billions in {"B/16": 17.58, "L/16": 61.60, "S/16": 4.61, "Ti/16": 1.26}.items():
        assert multiply_adds[variant] == pytest.approx(billions, rel=0.01)


def test_profile_refuses_wrong_sizes_and_models():
    refuses("`image_size`. Expected the size of the images.*Received: None", profile, build(image_size=(None, None)))
    vector = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    refuses("`image_size`. Expected None for a model without images", profile, vector, 32)
    refuses("`image_size`", profile, build(), 0)
    refuses("at least one patch", profile, build(), 2)
    flat = keras.Sequential([keras.Input((16, 16, 3)), keras.layers.Flatten(), keras.layers.Dense(2, name="own")])
    assert profile(flat, 16).multiply_adds == 16 * 16 * 3 * 2
    refuses("`image_size`. Expected a size.*768.*Received: .32, 32.*'own'.* 3072", profile, flat, 32)
    for wrong in (keras.Sequential([keras.layers.Dense(2)]), keras.layers.Dense(2), "B/16"):
        refuses("`model`. Expected a functional model", profile, wrong)
