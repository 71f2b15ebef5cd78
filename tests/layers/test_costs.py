import math

import keras
import numpy as np
import pytest
from keras import ops

import keras_vit
from keras_vit.layers import MLP, MultiHeadSelfAttention, PatchEmbedding, TransformerBlock
from keras_vit.layers.squeeze_excitation import SqueezeExcitation
from keras_vit.models.bit.bottleneck import Bottleneck
from keras_vit.models.bit.group_normalization import GroupNormalization
from keras_vit.models.bit.standardized_conv import StandardizedConv2D
from keras_vit.models.coatnet.mbconv import MBConv
from keras_vit.models.coatnet.relative_attention import RelativeAttention
from keras_vit.models.coatnet.relative_transformer_block import RelativeTransformerBlock
from keras_vit.models.efficientnet.inverted_bottleneck import InvertedBottleneck
from keras_vit.models.vt_resnet.layers import FilterTokenizer, RecurrentTokenizer, TokenProjector, TokenTransformer
from keras_vit.models.vt_resnet.resnet_block import ResNetBlock

IMAGE, TOKENS = (None, 6, 4, 32), (None, 5, 12)
# (layer, input shape, products of two activations)
LAYERS = {
    "mlp": (lambda: MLP(20), TOKENS, 0),
    "gated mlp": (lambda: MLP(20, "silu", gated=True, inner_norm=True), TOKENS, 0),
    "attention": (lambda: MultiHeadSelfAttention(3, qk_norm=True), TOKENS, 2 * 5 * 5 * 12),
    "relative attention": (
        lambda: RelativeAttention(2, 8, 10, grid_size=(6, 4), position_mlp_dim=None),
        IMAGE,
        2 * 24 * 24 * 2 * 8,
    ),
    "transformer block": (lambda: TransformerBlock(3, 20, layer_scale_init=0.1), TOKENS, 2 * 5 * 5 * 12),
    "relative transformer block": (
        lambda: RelativeTransformerBlock(2, 8, 16, grid_size=(6, 4)),
        IMAGE,
        2 * 24 * 24 * 2 * 8,
    ),
    "standardized convolution": (lambda: StandardizedConv2D(8, 3), IMAGE, 0),
    "bottleneck": (lambda: Bottleneck(32), IMAGE, 0),
    "pre-activation bottleneck": (lambda: Bottleneck(32, pre_activation=True), IMAGE, 0),
    "resnet block": (lambda: ResNetBlock(8), IMAGE, 0),
    "resnet bottleneck": (lambda: ResNetBlock(8, bottleneck=True), IMAGE, 0),
    "mbconv": (lambda: MBConv(16, hidden_dim=24, reduced_dim=6), IMAGE, 0),
    "inverted bottleneck": (lambda: InvertedBottleneck(16, kernel_size=3), IMAGE, 0),
    "filter tokenizer": (lambda: FilterTokenizer(7), IMAGE, 7 * 24 * 32),
    "token transformer": (lambda: TokenTransformer(key_dim=4), TOKENS, 5 * 5 * (4 + 12)),
}


@pytest.mark.parametrize("make, shape, products", LAYERS.values(), ids=LAYERS)
def test_multiply_adds_match_shapes_of_weights(make, shape, products):
    layer = make()
    found = layer.multiply_adds(shape)
    positions, expected = math.prod(shape[1:-1]), products
    for weight in layer.weights:
        if weight.name in ("kernel", "depthwise_kernel"):
            # Squeeze-and-excitation has one position.
            inner = "/se/" in weight.path or "/squeeze_excitation/" in weight.path
            expected += math.prod(weight.shape) * (1 if inner else positions)
    assert found == layer.multiply_adds((7, *shape[1:])) == expected


def test_multiply_adds_of_strided_layers():
    layer = Bottleneck(32, strides=2)
    conv_1, conv_2, conv_3, shortcut = 28 * 32 * 32, 8 * 9 * 32 * 32, 8 * 32 * 128, 8 * 32 * 128
    assert layer.multiply_adds((None, 7, 4, 32)) == conv_1 + conv_2 + conv_3 + shortcut
    layer = PatchEmbedding(12, 3)
    assert layer.multiply_adds((None, 7, 6, 2)) == 4 * 12 * 3 * 3 * 2


def test_multiply_adds_of_layers_with_two_inputs():
    layer = RecurrentTokenizer()
    assert layer.multiply_adds(IMAGE, TOKENS) == 5 * 12 * 32 + 2 * 5 * 24 * 32
    layer = TokenProjector(key_dim=4)
    assert layer.multiply_adds(IMAGE, TOKENS) == 24 * 32 * 4 + 5 * 12 * 4 + 24 * 5 * 4 + 24 * 5 * 32 + 5 * 12 * 32


def test_multiply_adds_of_block_with_few_outputs():
    layer = TransformerBlock(3, 20, num_outputs=2)
    attention = 3 * 5 * 12 * 12 + 2 * 2 * 5 * 12 + 2 * 12 * 12
    assert layer.multiply_adds(TOKENS) == attention + 2 * 2 * 12 * 20


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
