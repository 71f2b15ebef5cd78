"""Each layer checks its arguments; tests/test_arguments.py tests the checks themselves."""

import re

import pytest

from keras_vit import layers
from keras_vit.layers.class_token import PrefixTokens
from keras_vit.layers.squeeze_excitation import SqueezeExcitation
from keras_vit.layers.symmetric_max_pooling import SymmetricMaxPooling2D
from keras_vit.models.bit.bottleneck import Bottleneck
from keras_vit.models.bit.group_normalization import GroupNormalization
from keras_vit.models.bit.standardized_conv import StandardizedConv2D
from keras_vit.models.coatnet.mbconv import MBConv
from keras_vit.models.coatnet.relative_attention import RelativeAttention
from keras_vit.models.coatnet.relative_transformer_block import RelativeTransformerBlock
from keras_vit.models.efficientnet.inverted_bottleneck import InvertedBottleneck
from keras_vit.models.vt_resnet import layers as vt
from keras_vit.models.vt_resnet.resnet_block import ResNetBlock

POSITIVE, RATE, ABOVE_0 = "an integer of at least 1", "a number in [0, 1)", "a number above 0, at most 1"
COUNT, PAIR, ODD = "an integer of at least 0", "an integer or (height, width)", "an odd number"
FINITE, BOOL = "a finite number", "a bool"
# The refused value for each expectation. The refused choice is "other".
VALUES = {POSITIVE: 0, RATE: 1, ABOVE_0: 0, COUNT: -1, PAIR: (1, 2, 3), ODD: 4, FINITE: "small", BOOL: 1}
VALUES |= {"a multiple of 32": 48, "a multiple of 4 for rotary positions": 6, "at most `num_prefix_tokens`, 0": 1}
HEADS = {"num_heads": 2, "mlp_dim": 12}
RELATIVE = {"num_heads": 2, "head_dim": 3, "units": 8, "grid_size": (3, 2)}
ODD_SIZES = 'odd sizes with padding="symmetric"'
VALUES |= {ODD_SIZES: (3, 2)}
PADDING, STRIDES = "one of 'same', 'symmetric'", "one of 1, 2"
CONV, EMBEDDING = {"filters": 8, "kernel_size": 3}, {"hidden_dim": 8, "patch_size": 4}
ROTARY = {"kind": "dinov3", "head_dim": 8, "patch_size": 4}
MBCONV = {"filters": 8, "hidden_dim": 12, "reduced_dim": 3}
BLOCK_RATES = "dropout_rate attention_dropout_rate drop_path_rate"
BLOCK = {POSITIVE: "num_heads mlp_dim num_outputs max_relative_distance", RATE: BLOCK_RATES, FINITE: "layer_scale_init"}
# (layer, valid arguments, {what the error expects: arguments})
REFUSED = [
    (layers.MultiHeadSelfAttention, {"num_heads": 2}, {POSITIVE: "num_heads head_dim max_relative_distance"}),
    (layers.MultiHeadSelfAttention, {"num_heads": 2}, {RATE: "dropout_rate", ABOVE_0: "layer_norm_epsilon"}),
    (layers.AttentionPooling, HEADS, {POSITIVE: "num_heads mlp_dim", ABOVE_0: "layer_norm_epsilon"}),
    (Bottleneck, {"width": 32}, {POSITIVE: "width strides", "a multiple of 32": "width"}),
    (Bottleneck, {"width": 32}, {"one of 'official', 'timm'": "epsilons", BOOL: "pre_activation"}),
    (PrefixTokens, {}, {POSITIVE: "num_tokens"}),
    (layers.DropPath, {}, {RATE: "rate"}),
    (vt.FilterTokenizer, {"num_tokens": 3}, {POSITIVE: "num_tokens token_dim"}),
    (GroupNormalization, {}, {POSITIVE: "groups", ABOVE_0: "epsilon"}),
    (InvertedBottleneck, CONV, {POSITIVE: "filters strides expansion", ODD: "kernel_size"}),
    (InvertedBottleneck, CONV, {PADDING: "padding", ABOVE_0: "epsilon", RATE: "drop_path_rate"}),
    (layers.LayerScale, {}, {FINITE: "init_value"}),
    (MBConv, MBCONV, {POSITIVE: "filters", STRIDES: "strides", PADDING: "padding", RATE: "drop_path_rate"}),
    (MBConv, MBCONV, {"one of 'expansion', 'depthwise', 'pooling'": "downsampling"}),
    (MBConv, MBCONV, {"one of 'max2', 'max3', 'avg2'": "pool_type"}),
    (layers.MLP, {"mlp_dim": 4}, {POSITIVE: "mlp_dim", RATE: "dropout_rate"}),
    (layers.PatchDropout, {"rate": 0.5}, {RATE: "rate", COUNT: "num_prefix_tokens"}),
    (layers.PatchEmbedding, EMBEDDING, {POSITIVE: "hidden_dim patch_size", PAIR: "patch_size"}),
    (layers.PatchEmbedding, EMBEDDING, {"one of 'unfold', 'conv'": "method"}),
    (layers.Patches, {}, {POSITIVE: "patch_size"}),
    (layers.PatchMap, {"patch_size": 4}, {POSITIVE: "patch_size", PAIR: "patch_size", COUNT: "num_prefix_tokens"}),
    (layers.PositionEmbedding, {"grid_size": 4}, {POSITIVE: "grid_size patch_size", COUNT: "num_prefix_tokens"}),
    (layers.PositionEmbedding, {"grid_size": 4}, {"one of 'learned', 'learned2d', 'sincos2d'": "method"}),
    (layers.PositionEmbedding, {"grid_size": 4}, {"at most `num_prefix_tokens`, 0": "num_prefix_positions"}),
    (vt.RecurrentTokenizer, {}, {POSITIVE: "token_dim"}),
    (RelativeAttention, RELATIVE, {POSITIVE: "num_heads head_dim grid_size position_mlp_dim"}),
    (RelativeAttention, RELATIVE, {"one of 'bilinear', 'geometric'": "interpolation"}),
    (RelativeTransformerBlock, RELATIVE, {POSITIVE: "units", STRIDES: "strides", ABOVE_0: "epsilon"}),
    (RelativeTransformerBlock, RELATIVE, {BOOL: "shortcut_bias", "one of 'layer', 'batch'": "norm"}),
    (RelativeTransformerBlock, RELATIVE, {FINITE: "layer_scale_init"}),
    (ResNetBlock, {"width": 2}, {POSITIVE: "width strides", RATE: "drop_path_rate", BOOL: "bottleneck"}),
    (layers.RotaryEmbedding, ROTARY, {"one of 'dinov3', 'eva02', 'axial'": "kind"}),
    (layers.RotaryEmbedding, ROTARY, {"a multiple of 4 for rotary positions": "head_dim"}),
    (SqueezeExcitation, {}, {POSITIVE: "reduced_dim"}),
    (StandardizedConv2D, CONV, {POSITIVE: "filters kernel_size", PAIR: "strides", PADDING: "padding"}),
    (StandardizedConv2D, CONV, {ABOVE_0: "epsilon", "one of 'std', 'variance'": "epsilon_added_to"}),
    (StandardizedConv2D, {**CONV, "padding": "symmetric"}, {ODD_SIZES: "kernel_size"}),
    (SymmetricMaxPooling2D, {"pool_size": 3, "strides": 2}, {ODD: "pool_size", POSITIVE: "strides"}),
    (SymmetricMaxPooling2D, {"pool_size": 3, "strides": 2}, {"one of 'lowest', 'zeros'": "padding"}),
    (layers.TokenPooling, {"method": "gap"}, {COUNT: "num_prefix_tokens"}),
    (layers.TokenPooling, {}, {"one of 'token', 'gap', 'token_gap'": "method"}),
    (vt.TokenProjector, {}, {POSITIVE: "key_dim", RATE: "drop_path_rate"}),
    (vt.TokenTransformer, {}, {POSITIVE: "key_dim", RATE: "drop_path_rate"}),
    (layers.TransformerBlock, HEADS, {ABOVE_0: "layer_norm_epsilon", COUNT: "token_merging num_prefix_tokens"}),
    (layers.TransformerBlock, HEADS, BLOCK),
    (vt.VTModule, {"num_tokens": 3}, {POSITIVE: "num_tokens token_dim key_dim", RATE: "drop_path_rate"}),
    (vt.VTModule, {"num_tokens": 3}, {BOOL: "recurrent project"}),
]


@pytest.mark.parametrize("cls, valid, refused", REFUSED, ids=lambda x: getattr(x, "__name__", ""))
def test_bad_argument_is_refused(cls, valid, refused):
    for expected, names in refused.items():
        value = VALUES.get(expected, "other")
        for name in names.split():
            message = re.escape(f"`{name}`. Expected {expected}. Received: {value!r}")
            with pytest.raises(ValueError, match=message):
                cls(**{**valid, name: value})
