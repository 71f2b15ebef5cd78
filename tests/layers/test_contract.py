"""All that tests/contract.py demands of a layer, for each layer."""

import keras
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
from tests.contract import check_layer

TOKENS, IMAGES = (3, 5, 8), (2, 4, 5, 3)
ATTENTION = {"num_heads": 3, "head_dim": 5, "dropout_rate": 0.2, "qk_norm": True, "max_relative_distance": 3, "seed": 4}
UNBIASED = {"num_heads": 2, "use_bias": False, "output_norm": True}
# The beta of a key's norm and a bias of all keys add one number to all scores of a query, which the softmax ignores.
KEY_NORM, KEY_BIAS = {"no_gradient": ("key_norm/beta",)}, {"no_gradient": ("attention/key/bias",)}
POOLING = {"num_heads": 3, "mlp_dim": 12, "activation": "gelu", "layer_norm_epsilon": 1e-5}
MLP = {"mlp_dim": 12, "activation": "gelu", "dropout_rate": 0.2, "seed": 7}
BLOCK = {"num_heads": 2, "mlp_dim": 12, "dropout_rate": 0.1, "attention_dropout_rate": 0.1}
FULL_BLOCK = {**BLOCK, "drop_path_rate": 0.1, "layer_scale_init": 0.5, "qk_norm": True, "activation": "gelu"}
FULL_BLOCK |= {"layer_norm_epsilon": 1e-5, "max_relative_distance": 3, "seed": 11}
IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225), "interpolation": "bicubic"}
EMBEDDING, PLAIN = {"hidden_dim": 8, "patch_size": (3, 5)}, {"use_bias": False}
NOISE = {"num_tokens": 2, "initializer": keras.initializers.RandomNormal(stddev=0.1)}
ONE, LARGER = {"num_weights": 1}, (2, 9, 12, 3)
POSITIONS = {"grid_size": (4, 2), "num_prefix_tokens": 2, "num_prefix_positions": 1, "patch_size": (4, 5)}
PIXELS = {"always_float32": True}
DROPPED = {"symbolic_shape": (3, None, 4), "training_shape": (3, 6, 4), "num_seeds": 1}
POOL = {"pool_size": 3, "strides": 2}
CONV, BIT = {"filters": 5, "kernel_size": 3}, {"padding": "symmetric", "epsilon": 1e-10, "epsilon_added_to": "variance"}
MBCONV = {"filters": 8, "hidden_dim": 12, "reduced_dim": 3}
DEPTHWISE = {"strides": 2, "downsampling": "depthwise", "pool_type": "avg2", "padding": "symmetric", "use_bias": False}
RELATIVE = {"num_heads": 2, "head_dim": 3, "units": 8, "grid_size": (3, 2)}
HALVED = {"strides": 2, "pool_type": "max3", "padding": "symmetric", "norm": "batch", "layer_scale_init": 0.5}
INVERTED = {"filters": 12, "kernel_size": 5, "strides": 2, "padding": "symmetric"}
DROPPED_BLOCK = {"filters": 8, "kernel_size": 5, "drop_path_rate": 0.01, "seed": 0}
RESNET_BLOCK = {"width": 4, "strides": 2, "drop_path_rate": 0.2, "seed": 8}
DROPPING = {"key_dim": 4, "drop_path_rate": 0.2, "seed": 8}
MODULE = {"num_tokens": 3, "token_dim": 8, "project": False}
RECURRENT = {"key_dim": 4, "recurrent": True, "drop_path_rate": 0.01, "seed": 7}
# Feature maps, and the inputs of a module of visual tokens.
SMALL, MAP, PAIR = (2, 3, 2, 8), (2, 4, 5, 6), [(2, 4, 5, 6), (2, 3, 8)]


def counts(num_weights, num_non_trainable=0, num_seeds=0):
    return {"num_weights": num_weights, "num_non_trainable": num_non_trainable, "num_seeds": num_seeds}


# A bias that all keys share does not change the softmax.
POSITION_BIAS = {"no_gradient": ("position_bias_2",)}
BIAS_BLOCK = {**counts(16, num_seeds=2), **POSITION_BIAS}
# (layer, arguments, shape of the input or of each input, shape of the output, other numbers of the contract)
ON_EVERY_BACKEND = [
    (layers.MultiHeadSelfAttention, ATTENTION, TOKENS, TOKENS, {"num_weights": 9, "num_seeds": 1, **KEY_NORM}),
    (layers.AttentionPooling, POOLING, TOKENS, (3, 8), {"num_weights": 15, **KEY_BIAS}),
    (PrefixTokens, {"num_tokens": 4}, TOKENS, (3, 9, 8), ONE),
    (layers.DropPath, {"rate": 0.3, "seed": 3}, (4, 2, 3, 6), (4, 2, 3, 6), {"num_seeds": 1}),
    (layers.DropPath, {"rate": 0.0}, TOKENS, TOKENS, {}),
    (layers.ImageNormalization, {"preprocessing": IMAGENET, "apply": True}, IMAGES, IMAGES, PIXELS),
    (layers.LayerScale, {"init_value": 0.3}, TOKENS, TOKENS, ONE),
    (layers.LayerScale, {"init_value": 0.3}, (3, 8), (3, 8), ONE),
    (layers.MLP, MLP, TOKENS, TOKENS, {"num_weights": 4, "num_seeds": 2}),
    (layers.PatchDropout, {"rate": 0.5, "num_prefix_tokens": 1, "seed": 5}, (3, 11, 4), (3, 11, 4), DROPPED),
    (layers.PatchEmbedding, {**EMBEDDING, "method": "conv"}, LARGER, (2, 6, 8), {"num_weights": 2}),
    (layers.PatchEmbedding, {**EMBEDDING, "method": "unfold"}, LARGER, (2, 6, 8), {"num_weights": 2}),
    (layers.Patches, {"patch_size": (4, 3)}, LARGER, (2, 8, 36), {}),
    (layers.PatchMap, {"patch_size": (3, 5), "num_prefix_tokens": 2}, [(3, 8, 8), (3, 9, 13, 3)], (3, 3, 2, 8), {}),
    *(
        (layers.PositionEmbedding, {**POSITIONS, "method": method}, [(3, 8, 8), (3, 11, 15, 3)], (3, 8, 8), numbers)
        for method, numbers in (("learned", {"num_weights": 1}), ("learned2d", {"num_weights": 3}), ("sincos2d", {}))
    ),
    (SqueezeExcitation, {"reduced_dim": 2}, (2, 3, 5, 8), (2, 3, 5, 8), {"num_weights": 4}),
    (SymmetricMaxPooling2D, {**POOL, "padding": "lowest"}, (3, 6, 7, 4), (3, 3, 4, 4), {}),
    (SymmetricMaxPooling2D, {**POOL, "padding": "zeros"}, (3, 6, 7, 4), (3, 3, 4, 4), {}),
    *(
        (layers.TokenPooling, {"method": method, "num_prefix_tokens": 2}, TOKENS, (3, width), {})
        for method, width in (("token", 8), ("gap", 8), ("token_gap", 16))
    ),
    (layers.TransformerBlock, FULL_BLOCK, TOKENS, TOKENS, {"num_weights": 19, "num_seeds": 6, **KEY_NORM}),
    (Bottleneck, {"width": 32, "strides": 2, "pre_activation": False}, (2, 5, 6, 128), (2, 3, 3, 128), counts(12)),
    (GroupNormalization, {"groups": 4, "epsilon": 1e-5}, (3, 5, 6, 12), (3, 5, 6, 12), counts(2)),
    (StandardizedConv2D, {**CONV, **BIT, "kernel_size": 7, "strides": 2}, (3, 6, 7, 4), (3, 3, 4, 5), ONE),
    (MBConv, {**MBCONV, **DEPTHWISE}, (2, 5, 6, 4), (2, 3, 3, 8), counts(20, 6)),
    (RelativeAttention, {**RELATIVE, "position_mlp_dim": 7}, (2, 3, 2, 4), SMALL, {**counts(8), **POSITION_BIAS}),
    (RelativeTransformerBlock, {**RELATIVE, **HALVED, "shortcut_bias": False}, (2, 5, 4, 4), SMALL, counts(20, 4)),
    (InvertedBottleneck, INVERTED, (3, 5, 6, 8), (3, 3, 3, 12), counts(19, 6)),
    (ResNetBlock, RESNET_BLOCK, (2, 5, 6, 3), (2, 3, 3, 4), counts(15, 6, 1)),
    (vt.FilterTokenizer, {"num_tokens": 3, "token_dim": 7}, MAP, (2, 3, 7), counts(2)),
    (vt.RecurrentTokenizer, {"token_dim": 8}, PAIR, (2, 3, 8), counts(2)),
    (vt.TokenProjector, DROPPING, PAIR, MAP, counts(3, num_seeds=1)),
    (vt.TokenTransformer, DROPPING, TOKENS, TOKENS, counts(4, num_seeds=2)),
    (vt.VTModule, {**MODULE, **RECURRENT}, PAIR, (2, 3, 8), counts(6, num_seeds=2)),
]
ON_ONE_BACKEND = [
    (layers.MultiHeadSelfAttention, UNBIASED, TOKENS, TOKENS, {"num_weights": 5}),
    (layers.MultiHeadSelfAttention, {"num_heads": 2, "key_bias": False}, TOKENS, TOKENS, {"num_weights": 4}),
    (layers.ClassToken, {}, TOKENS, (3, 6, 8), ONE),
    (PrefixTokens, NOISE, TOKENS, (3, 7, 8), ONE),
    (layers.ImageNormalization, {}, IMAGES, IMAGES, PIXELS),
    (layers.ImageNormalization, {"apply": True, "folded": True}, IMAGES, IMAGES, PIXELS),
    (layers.ImageNormalization, {"class_names": ["cat", "dog"], "task": "multi_label"}, IMAGES, IMAGES, PIXELS),
    (layers.ImageNormalization, {"class_names": ["age"], "task": "regression"}, IMAGES, IMAGES, PIXELS),
    (layers.MLP, {"mlp_dim": 12, "activation": "silu", "gated": True, "inner_norm": True}, TOKENS, TOKENS, counts(6)),
    (layers.PatchEmbedding, {**EMBEDDING, **PLAIN, "method": "conv"}, LARGER, (2, 6, 8), ONE),
    (layers.PatchEmbedding, {**EMBEDDING, **PLAIN, "method": "unfold"}, LARGER, (2, 6, 8), ONE),
    (layers.TransformerBlock, {**BLOCK, "num_outputs": 2}, TOKENS, (3, 2, 8), {"num_weights": 12, "num_seeds": 4}),
    (Bottleneck, {"width": 32, "strides": 1, "pre_activation": True}, (2, 5, 6, 128), (2, 5, 6, 128), counts(9)),
    (StandardizedConv2D, CONV, (3, 6, 7, 4), (3, 6, 7, 5), ONE),
    (StandardizedConv2D, {**CONV, "kernel_size": (2, 3), "strides": (2, 1)}, (3, 6, 7, 4), (3, 3, 7, 5), ONE),
    (MBConv, {**MBCONV, "strides": 1, "drop_path_rate": 0.1}, (2, 5, 6, 8), (2, 5, 6, 8), counts(20, 6, 1)),
    (RelativeAttention, RELATIVE, (2, 3, 2, 4), SMALL, counts(5)),
    (RelativeTransformerBlock, RELATIVE, SMALL, SMALL, counts(13)),
    (RelativeTransformerBlock, {**RELATIVE, "position_mlp_dim": 4, "drop_path_rate": 0.1}, SMALL, SMALL, BIAS_BLOCK),
    (InvertedBottleneck, {"filters": 8, "kernel_size": 3, "expansion": 1}, (3, 5, 6, 8), (3, 5, 6, 8), counts(14, 4)),
    (InvertedBottleneck, DROPPED_BLOCK, (3, 5, 6, 8), (3, 5, 6, 8), counts(19, 6, 1)),
    (ResNetBlock, {"width": 1, "strides": 2, "bottleneck": True}, (2, 5, 6, 3), (2, 3, 3, 4), counts(20, 8)),
    (vt.VTModule, MODULE, [MAP], (2, 3, 8), counts(6)),
]


@pytest.mark.parametrize(
    "cls, arguments, shape, output_shape, numbers",
    [*(pytest.param(*case, marks=pytest.mark.every_backend) for case in ON_EVERY_BACKEND), *ON_ONE_BACKEND],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_contract(cls, arguments, shape, output_shape, numbers):
    check_layer(cls, arguments, shape, output_shape=output_shape, **numbers)
