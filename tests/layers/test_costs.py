"""Costs of layers. tests/models/test_profile.py compares those of whole models with PyTorch's counter."""

import math

import keras
import numpy as np
import pytest
from keras import ops

import keras_vit
from keras_vit.layers import MLP, AttentionPooling, MultiHeadSelfAttention, PatchEmbedding, TransformerBlock
from keras_vit.layers.squeeze_excitation import SqueezeExcitation
from keras_vit.models.bit.group_normalization import GroupNormalization
from keras_vit.models.efficientnet.inverted_bottleneck import InvertedBottleneck

IMAGE, TOKENS = (None, 6, 4, 32), (None, 5, 12)
# (layer, input shape, products of two activations)
LAYERS = {
    "mlp": (lambda: MLP(20), TOKENS, 0),
    "gated mlp": (lambda: MLP(20, "silu", gated=True, inner_norm=True), TOKENS, 0),
    "attention": (lambda: MultiHeadSelfAttention(3, qk_norm=True), TOKENS, 2 * 5 * 5 * 12),
    "rotary block": (lambda: TransformerBlock(3, 20, rotary_layout="pairs"), TOKENS, 2 * 5 * 5 * 12),
    "transformer block": (lambda: TransformerBlock(3, 20, layer_scale_init=0.1), TOKENS, 2 * 5 * 5 * 12),
    "inverted bottleneck": (lambda: InvertedBottleneck(16, kernel_size=3), IMAGE, 0),
}


@pytest.mark.parametrize("make, shape, products", LAYERS.values(), ids=LAYERS)
def test_multiply_adds_match_shapes_of_weights(make, shape, products):
    layer = make()
    found = layer.multiply_adds(shape)
    positions, expected = math.prod(shape[1:-1]), products
    for weight in layer.weights:
        if weight.name in ("kernel", "depthwise_kernel"):
            # Squeeze-and-excitation has one position.
            expected += math.prod(weight.shape) * (1 if "/squeeze_excitation/" in weight.path else positions)
    assert found == layer.multiply_adds((7, *shape[1:])) == expected


def test_multiply_adds_of_few_outputs_and_patches():
    layer = TransformerBlock(3, 20, num_outputs=2)
    attention = 3 * 5 * 12 * 12 + 2 * 2 * 5 * 12 + 2 * 12 * 12
    assert layer.multiply_adds(TOKENS) == attention + 2 * 2 * 12 * 20
    assert PatchEmbedding(12, 3).multiply_adds((None, 7, 6, 2)) == 4 * 12 * 3 * 3 * 2
    query, keys_values = 12 * 12, 2 * 4 * 12 * 12
    found = AttentionPooling(num_heads=3, mlp_dim=20, num_prefix_tokens=1).multiply_adds(TOKENS)
    assert found == query + keys_values + 2 * 4 * 12 + 12 * 12 + 2 * 12 * 20


def test_layers_without_products_have_no_multiply_adds():
    for layer in (GroupNormalization(8), keras_vit.layers.LayerScale(0.1), keras_vit.layers.PatchDropout(0.5)):
        shape = IMAGE if isinstance(layer, GroupNormalization) else TOKENS
        assert layer.multiply_adds(shape) == 0


def test_unknown_operation_in_layer_makes_count_unknown():
    layer = MLP(8, activation=lambda x: ops.einsum("bnc,bnc->bnc", x, x), gated=True)
    assert layer.multiply_adds(TOKENS) is None
    x = keras.Input(TOKENS[1:])
    assert keras_vit.profile(keras.Model(x, layer(x))).not_counted == [layer.name]


@pytest.mark.every_backend
def test_counting_leaves_outputs_unchanged():
    layer, images = SqueezeExcitation(4), np.random.default_rng(0).normal(size=(2, 6, 4, 8)).astype("float32")
    before = ops.convert_to_numpy(layer(images))
    assert layer.multiply_adds(images.shape) == 2 * 4 * 8
    np.testing.assert_array_equal(ops.convert_to_numpy(layer(images)), before)
