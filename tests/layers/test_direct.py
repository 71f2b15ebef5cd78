import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.layers import TransformerBlock, direct
from keras_vit.layers.direct import is_direct

TOKENS = np.random.default_rng(0).normal(size=(2, 5, 8)).astype("float32")


def inner_layers(block):
    return [block.norm_1, block.attention, block.norm_2, block.mlp, *block.dense_layers()]


@pytest.fixture
def block():
    block = TransformerBlock(2, 16, dtype="float32")
    block.build(TOKENS.shape)
    return block


@pytest.fixture
def called(monkeypatch):
    """Names of the layers that were called, not only their `call`."""
    names = []
    call = keras.Layer.__call__
    monkeypatch.setattr(keras.Layer, "__call__", lambda self, *a, **k: names.append(self.name) or call(self, *a, **k))
    return names


def test_inner_layers_of_a_block_run_without_a_call(block, called):
    block(TOKENS)
    assert called == [block.name]


def test_hooks_of_modules_are_called(block):
    import torch

    seen, gradients = [], []
    for layer in inner_layers(block):
        layer.register_forward_hook(lambda layer, inputs, output: seen.append(layer.name))
        layer.register_full_backward_hook(lambda layer, inputs, outputs: gradients.append(layer.name))
    block(torch.tensor(TOKENS, requires_grad=True)).sum().backward()
    names = ["norm_1", "qkv", "out", "attention", "norm_2", "dense_1", "dense_2", "mlp"]
    assert seen == names and sorted(gradients) == sorted(names)


def test_hooks_of_all_modules_are_called(block):
    from torch.nn.modules.module import register_module_forward_pre_hook

    seen = []
    handle = register_module_forward_pre_hook(lambda module, inputs: seen.append(module.name))
    try:
        block(TOKENS)
    finally:
        handle.remove()
    assert seen[1:] == ["norm_1", "attention", "qkv", "out", "norm_2", "mlp", "dense_1", "dense_2"]


def test_autocast_and_dtypes_equal_those_of_calls(block, called):
    import torch

    with torch.autocast("cpu", dtype=torch.bfloat16):
        outputs = block(TOKENS)
    assert outputs.dtype == torch.float32 and len(called) == 9
    # Outside of the block's call, too, as for gradients of recomputed activations.
    mixed = TransformerBlock(2, 16, dtype="mixed_bfloat16")
    assert mixed(TOKENS).dtype == mixed.add_mlp(torch.ones(2, 5, 8).bfloat16()).dtype == torch.bfloat16
    half = TransformerBlock(2, 16, dtype="bfloat16")
    assert half(TOKENS).dtype == torch.bfloat16
    assert is_direct(half.mlp, torch.ones(1).bfloat16(), half.dtype_policy)
    assert not is_direct(half.mlp, torch.ones(1), block.dtype_policy)


def test_quantized_layers_compute_as_quantized(block, called):
    expected = keras.ops.convert_to_numpy(block(TOKENS))
    for layer in block.dense_layers():
        layer.quantize("int8")
    called.clear()
    outputs = keras.ops.convert_to_numpy(block(TOKENS))
    assert set(called) >= {"qkv", "out", "dense_1", "dense_2"}
    assert 0 < np.abs(outputs - expected).max() < 0.1


def test_replaced_inner_layers_are_called():
    """They may need what a call finds out, such as the mode."""
    block = TransformerBlock(2, 16)
    block.norm_1 = keras.layers.BatchNormalization(name="norm_1")
    block.build(TOKENS.shape)
    block(TOKENS, training=True)
    assert np.abs(keras.ops.convert_to_numpy(block.norm_1.moving_mean)).max() > 0

    class Counted(keras_vit.layers.MLP):
        calls = 0

        def __call__(self, *args, **kwargs):
            self.calls += 1
            return super().__call__(*args, **kwargs)

    block = TransformerBlock(2, 16)
    block.mlp = Counted(16, name="mlp")
    block(TOKENS)
    assert block.mlp.calls == 1


def test_symbolic_tensors_use_calls(block):
    inputs = keras.Input(TOKENS.shape[1:])
    model = keras.Model(inputs, block.add_mlp(inputs))
    assert len(model.trainable_variables) == 6


def test_policy_map_applies_to_inner_layers():
    policies = keras.dtype_policies.DTypePolicyMap(default_policy="float32")
    policies["block/mlp"] = keras.dtype_policies.get("mixed_bfloat16")
    block = TransformerBlock(2, 16, dtype=policies, name="block")
    block.build(TOKENS.shape)
    assert block.mlp.compute_dtype == "bfloat16"
    tokens = keras.ops.convert_to_tensor(TOKENS)
    expected = tokens + block.mlp(block.norm_2(tokens))
    np.testing.assert_array_equal(*map(keras.ops.convert_to_numpy, (block.add_mlp(tokens), expected)))


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize(
    "options", [{}, {"axis": [1, 2]}, {"center": False}, {"scale": False}, {"rms_scaling": True}], ids=str
)
def test_direct_norm_equals_its_call(options, dtype, called, monkeypatch):
    import torch

    norm = keras.layers.LayerNormalization(dtype=dtype, **options)
    norm.build(TOKENS.shape)
    for weight in norm.weights:
        weight.assign(np.random.default_rng(1).normal(size=weight.shape))
    x = torch.tensor(TOKENS, dtype=getattr(torch, dtype))
    own = []
    with monkeypatch.context() as patched:
        call = keras.layers.LayerNormalization.call
        patched.setattr(keras.layers.LayerNormalization, "call", lambda self, x: own.append(1) or call(self, x))
        outputs = direct.call(norm, x)
    assert not called
    # A plain one in float32 goes to PyTorch's function straight away.
    assert bool(own) == (bool(options) or dtype != "float32")
    torch.testing.assert_close(outputs, norm(x), rtol=0, atol=0)


def test_norm_with_a_patched_call_uses_it(block, monkeypatch):
    expected = block(TOKENS)
    monkeypatch.setattr(block.norm_1, "call", lambda x: 2 * x)
    assert (block(TOKENS) - expected).abs().max() > 0.01


def test_patched_and_compiled_layers_are_called(block, monkeypatch):
    calls = []
    forward = block.mlp.forward
    monkeypatch.setattr(block.mlp, "forward", lambda *a, **k: calls.append(1) or forward(*a, **k))
    block(TOKENS)
    block.attention.compile(backend=lambda module, inputs: calls.append(2) or module.forward)
    block(TOKENS)
    assert calls.count(1) == 2 and 2 in calls
