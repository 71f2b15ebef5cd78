import numpy as np
import pytest
from keras import ops

from keras_vit.models.coatnet.mbconv import MBConv
from tests import resnet_reference
from tests.contract import randomize
from tests.test_activations import DEFINITIONS

# (arguments, number of weights): the norms have 12, the convolutions and squeeze-and-excitation 7, biases and the
# projected shortcut the rest.
KINDS = [
    ({}, 22),
    ({"downsampling": "depthwise", "pool_type": "avg2", "padding": "symmetric", "use_bias": False}, 20),
    ({"downsampling": "depthwise", "pool_type": "max3"}, 22),
    ({"downsampling": "pooling", "pool_type": "max3", "padding": "symmetric", "pre_norm_activation": True}, 22),
    ({"se_before_norm": True, "se_activation": "relu", "activation": "silu"}, 22),
    ({"strides": 1, "drop_path_rate": 0.1}, 20),
]
SIZES = {"filters": 8, "hidden_dim": 12, "reduced_dim": 3, "strides": 2}


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def windows(x, size, strides, padding, value):
    """The windows of each output pixel, (batch, rows, columns, channels, size, size)."""
    size, strides = (size, size), (strides, strides)
    return resnet_reference.windows(resnet_reference.pad(x, size, strides, padding, value), size, strides)


def reference(x, weights, options):
    """The block, written from the paper's equations and the meaning of its arguments."""
    o = {"downsampling": "expansion", "pool_type": "max2", "padding": "same", "activation": "gelu", **SIZES, **options}
    act = DEFINITIONS["gelu"] if o["activation"] == "gelu" else lambda x: x * sigmoid(x)
    se_act = (lambda x: np.maximum(x, 0)) if o.get("se_activation") == "relu" else lambda x: x * sigmoid(x)
    strides = o["strides"]

    def norm(x, name):
        mean, variance = weights[f"{name}/moving_mean"], weights[f"{name}/moving_variance"]
        return (x - mean) / np.sqrt(variance + 1e-5) * weights[f"{name}/gamma"] + weights[f"{name}/beta"]

    def pool(x, kind):
        size = int(kind[-1])
        found = windows(x, size, 2, o["padding"] if size == 3 else "same", np.nan)
        return (np.nanmean if kind.startswith("avg") else np.nanmax)(found, axis=(-2, -1))

    def dense(x, name):
        return x @ weights[f"{name}/kernel"] + weights.get(f"{name}/bias", 0)

    def squeeze(x):
        return x * sigmoid(dense(se_act(dense(x.mean((1, 2), keepdims=True), "se/reduce")), "se/expand"))

    shortcut = pool(x, o["pool_type"]) if strides > 1 else x
    shortcut = dense(shortcut, "shortcut") if "shortcut/kernel" in weights else shortcut
    y = norm(x, "pre_norm")
    y = act(y) if o.get("pre_norm_activation") else y
    if strides > 1 and o["downsampling"] == "pooling":
        y = pool(y, "avg2")
    if strides > 1 and o["downsampling"] == "expansion":
        y = y[:, ::2, ::2]
    y = act(norm(dense(y, "expand"), "expand_norm"))
    y = windows(y, 3, strides if o["downsampling"] == "depthwise" else 1, o["padding"], 0)
    y = np.einsum("brcdij,ijd->brcd", y, weights["depthwise/kernel"][..., 0])
    y = squeeze(y) if o.get("se_before_norm") else y
    y = act(norm(y, "depthwise_norm"))
    y = y if o.get("se_before_norm") else squeeze(y)
    return shortcut + dense(y, "project")


@pytest.mark.parametrize("options, num_weights", KINDS)
def test_definition(options, num_weights):
    layer = MBConv(**{**SIZES, **options})
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2, 5, 6, 8 if options.get("strides") == 1 else 4)).astype("float32")
    layer.build(x.shape)
    randomize(layer, rng, scale=0.3)
    for weight in layer.weights:
        if weight.path.endswith("variance"):
            weight.assign(ops.abs(weight) + 0.1)
    weights = {w.path.split("/", 1)[1]: ops.convert_to_numpy(w).astype("float64") for w in layer.weights}
    assert len(weights) == num_weights
    expected = reference(x.astype("float64"), weights, options)
    np.testing.assert_allclose(ops.convert_to_numpy(layer(x)), expected, rtol=1e-4, atol=1e-4)
