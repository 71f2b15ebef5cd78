from types import SimpleNamespace

import keras
import numpy as np
import pytest
from keras import ops

import keras_vit
from keras_vit.layers import MultiHeadSelfAttention, TransformerBlock, base
from keras_vit.models.bit.bottleneck import Bottleneck
from keras_vit.models.vt_resnet.resnet_block import ResNetBlock
from tests.tiny import build, randomize

TOKENS = np.random.default_rng(0).normal(size=(2, 5, 8)).astype("float32")


@pytest.fixture
def called(monkeypatch):
    """Names of the layers that Keras called, in order."""
    names, call = [], keras.Layer.__call__
    monkeypatch.setattr(keras.Layer, "__call__", lambda self, *a, **k: names.append(self.name) or call(self, *a, **k))
    return names


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "mixed_bfloat16"])
@pytest.mark.every_backend
def test_inner_layers_run_by_their_call_alone(called, dtype):
    block = TransformerBlock(2, 16, dtype=dtype)
    block.build(TOKENS.shape)
    for training in (True, False):
        called.clear()
        outputs = block(TOKENS, training=training)
        assert called == [block.name]
        assert keras.backend.standardize_dtype(outputs.dtype) == block.compute_dtype


@pytest.mark.every_backend
def test_mixed_precision_is_the_same_by_calls_alone(monkeypatch):
    def outputs():
        options = {"qk_norm": True, "gated_mlp": True, "mlp_norm": True, "layer_scale_init": 1.0}
        block = TransformerBlock(2, 16, drop_path_rate=0.5, seed=0, dtype="mixed_bfloat16", **options)
        block.build(TOKENS.shape)
        randomize(block)
        return [ops.convert_to_numpy(ops.cast(block(TOKENS, training=training), "float32")) for training in (0, 1)]

    alone = outputs()
    monkeypatch.setattr(base, "_PLAIN", ())
    np.testing.assert_array_equal(alone, outputs())


def test_quantized_inner_layers_are_called(called):
    block = TransformerBlock(2, 16)
    expected = ops.convert_to_numpy(block(TOKENS))
    for layer in block.dense_layers():
        layer.quantize("int8")
    called.clear()
    outputs = ops.convert_to_numpy(block(TOKENS))
    assert set(called) == {block.name, "qkv", "out", "dense_1", "dense_2"}
    assert 0 < np.abs(outputs - expected).max() < 0.1


def test_replaced_inner_layer_is_called():
    """A replaced layer may depend on `training`, which only `__call__` finds out."""
    block = TransformerBlock(2, 16)
    block.norm_1 = keras.layers.BatchNormalization(name="norm_1")
    block.build(TOKENS.shape)
    block(TOKENS, training=True)
    assert np.abs(ops.convert_to_numpy(block.norm_1.moving_mean)).max() > 0


def test_policy_map_applies_to_inner_layers():
    policies = keras.dtype_policies.DTypePolicyMap(default_policy="float32")
    policies["block/mlp"] = keras.dtype_policies.get("mixed_bfloat16")
    block = TransformerBlock(2, 16, dtype=policies, name="block")
    block.build(TOKENS.shape)
    assert block.mlp.compute_dtype == "bfloat16"
    tokens = ops.convert_to_tensor(TOKENS)
    expected = tokens + block.mlp(block.norm_2(tokens))
    np.testing.assert_array_equal(*map(ops.convert_to_numpy, (block.add_mlp(tokens), expected)))


def test_layout_of_an_inner_output_is_applied(called, monkeypatch):
    block = TransformerBlock(2, 16)
    block.build(TOKENS.shape)
    distribution = SimpleNamespace(get_tensor_layout=lambda path: None)
    monkeypatch.setattr(keras.distribution, "distribution", lambda: distribution)
    block(TOKENS)
    assert {"qkv", "mlp"} < set(called)


def saved_and_loaded(model, path):
    model.save(path)
    return keras.saving.load_model(path)


@pytest.mark.parametrize("mode", ["int8", "int4", "float8"])
def test_quantized_model_survives_a_file(tmp_path, mode):
    model = randomize(build(num_layers=1, key_bias=mode != "int8"))
    model.quantize(mode)
    block = model.get_layer("block_00")
    parts = (block.attention.qkv, block.attention.out, block.mlp.dense_1, block.mlp.dense_2)
    assert {layer.quantization_mode for layer in parts} == {mode}
    loaded = saved_and_loaded(model, tmp_path / "model.keras")
    assert [str(w.dtype) for w in loaded.weights] == [str(w.dtype) for w in model.weights]
    images = np.random.default_rng(0).uniform(size=(2, 16, 16, 3)).astype("float32")
    np.testing.assert_array_equal(*(ops.convert_to_numpy(m(images, training=False)) for m in (loaded, model)))


def test_partly_quantized_backbone_survives_a_file(tmp_path):
    backbone = build(num_layers=1, num_classes=0)
    backbone.get_layer("block_00").mlp.dense_2.quantize("int8")
    model = keras.Sequential([keras.Input((16, 16, 3)), backbone])
    block = saved_and_loaded(model, tmp_path / "model.keras").layers[0].get_layer("block_00")
    layers = (block.attention.qkv, block.mlp.dense_1, block.mlp.dense_2)
    assert [layer.quantization_mode for layer in layers] == [None, None, "int8"]


def test_unchanged_layer_has_no_changes_in_its_config():
    layer = keras_vit.layers.MLP(8)
    assert "changes" not in layer.get_config() and layer.get_build_config() is None
    layer.build((None, 3, 4))
    layer.trainable = False
    assert "changes" not in layer.get_config() and layer.get_build_config() == {"input_shape": (None, 3, 4)}


def changed(layer):
    layer.build((None, 3, 12))
    names = ("dense_1", "dense_2") if isinstance(layer, keras_vit.layers.MLP) else ("query_dense", "output_dense")
    first, second = (getattr(getattr(layer, "attention", layer), name) for name in names)
    first.enable_lora(2, lora_alpha=3)
    first.quantize("int8")
    second.bias.trainable = False
    return layer


@pytest.mark.parametrize(
    "make", [lambda: keras_vit.layers.MLP(8), lambda: keras_vit.layers.AttentionPooling(3, 8)], ids=["MLP", "pooling"]
)
def test_config_contains_changes_of_a_layer(make):
    layer = changed(make())
    changes = layer.get_config()["changes"]
    assert {kind: len(found) for kind, found in changes.items()} == {"lora": 1, "quantized": 1, "frozen": 3}
    copy = type(layer).from_config(layer.get_config())
    # An unbuilt copy keeps the changes of its config.
    assert copy.get_config() == layer.get_config()
    copy.build((None, 3, 12))
    assert copy.get_config() == layer.get_config()
    assert [(w.path, w.trainable) for w in copy.weights] == [(w.path, w.trainable) for w in layer.weights]


@pytest.mark.every_backend
@pytest.mark.parametrize("make", [lambda: ResNetBlock(32, 2), lambda: Bottleneck(32, 2)], ids=["ResNet", "BiT"])
def test_partly_frozen_residual_unit_survives_a_file(make, tmp_path):
    model = keras.Sequential([keras.Input((8, 8, 32)), make()])
    block = model.layers[0]
    convs, norms = (block.convs, block.norms) if hasattr(block, "convs") else ([block.conv_1], [block.norm_1])
    convs[0].trainable = norms[0].trainable = block.conv_proj.trainable = False
    again = saved_and_loaded(model, tmp_path / "model.keras").layers[0]
    assert [w.trainable for w in again.weights] == [w.trainable for w in block.weights]
    if hasattr(block, "norms"):
        # Only the statistics of the frozen norm stay the same in training.
        again(np.random.default_rng(0).normal(3, size=(4, 8, 8, 32)).astype("float32"), training=True)
        assert [bool(ops.convert_to_numpy(norm.moving_mean).any()) for norm in again.norms] == [False, True]


@keras.saving.register_keras_serializable("tests")
class WithDtype(MultiHeadSelfAttention):
    def __init__(self, num_heads, *, dtype=None, **kwargs):
        super().__init__(num_heads, dtype=dtype, **kwargs)


def test_subclass_with_the_argument_dtype_keeps_its_policy():
    layer = WithDtype(3, dtype="mixed_bfloat16")
    assert WithDtype.from_config(layer.get_config()).dtype_policy.name == "mixed_bfloat16"
