"""Each layer checks its arguments; tests/test_arguments.py tests the checks themselves."""

import re

import pytest

from keras_vit import layers

COUNT, ABOVE_0, FINITE = "an integer of at least 0", "a number above 0", "a finite number"
BOOL, ODD, PAIR = "a bool", "an odd number", "an integer or (height, width)"
PADDING, STRIDES = "one of 'same', 'symmetric'", "one of 1, 2"
HEADS = {"num_heads": 2, "mlp_dim": 12}
RELATIVE = {"num_heads": 2, "head_dim": 3, "units": 8, "grid_size": (3, 2)}
# (layer, valid arguments, positive integers, rates, {other argument: (refused value, what the error expects)})
REFUSED = [
    (
        layers.MultiHeadSelfAttention,
        {"num_heads": 2},
        "num_heads head_dim max_relative_distance",
        "dropout_rate",
        {"layer_norm_epsilon": (0, ABOVE_0)},
    ),
    (layers.AttentionPooling, HEADS, "num_heads mlp_dim", "", {"layer_norm_epsilon": (-1, ABOVE_0)}),
    (layers.AxialBlock, HEADS, "num_heads mlp_dim", "dropout_rate", {}),
    (layers.Bottleneck, {"width": 32}, "width strides", "", {"epsilons": ("torch", "one of 'official', 'timm'")}),
    (layers.Bottleneck, {}, "", "", {"width": (48, "a multiple of 32")}),
    (layers.PrefixTokens, {}, "num_tokens", "", {}),
    (layers.DropPath, {}, "", "rate", {}),
    (layers.FilterTokenizer, {"num_tokens": 3}, "num_tokens token_dim", "", {}),
    (layers.GroupNormalization, {}, "groups", "", {"epsilon": (0, ABOVE_0)}),
    (
        layers.InvertedBottleneck,
        {"filters": 8, "kernel_size": 3},
        "filters strides expansion",
        "drop_path_rate",
        {"kernel_size": (4, ODD), "padding": ("valid", PADDING), "epsilon": (0, ABOVE_0)},
    ),
    (layers.LayerScale, {}, "", "", {"init_value": ("small", FINITE)}),
    (
        layers.MBConv,
        {"filters": 8, "hidden_dim": 12, "reduced_dim": 3},
        "filters",
        "drop_path_rate",
        {
            "strides": (3, STRIDES),
            "downsampling": ("conv", "one of 'expansion', 'depthwise', 'pooling'"),
            "pool_type": ("max", "one of 'max2', 'max3', 'avg2'"),
            "padding": ("valid", PADDING),
        },
    ),
    (layers.MLP, {"mlp_dim": 4}, "mlp_dim", "dropout_rate", {}),
    (layers.PatchDropout, {}, "", "rate", {}),
    (layers.PatchDropout, {"rate": 0.5}, "", "", {"num_prefix_tokens": (-1, COUNT)}),
    (
        layers.PatchEmbedding,
        {"hidden_dim": 8, "patch_size": 4},
        "hidden_dim patch_size",
        "",
        {"patch_size": ((4, 4, 3), PAIR), "method": ("linear", "one of 'unfold', 'conv'")},
    ),
    (layers.Patches, {}, "patch_size", "", {}),
    (layers.PatchMap, {"patch_size": 4}, "patch_size", "", {"num_prefix_tokens": (-1, COUNT)}),
    (
        layers.PositionEmbedding,
        {"grid_size": 4},
        "grid_size patch_size",
        "",
        {
            "method": ("relative", "one of 'learned', 'learned2d', 'sincos2d'"),
            "num_prefix_tokens": (-1, COUNT),
            "num_prefix_positions": (1, "at most `num_prefix_tokens`, 0"),
        },
    ),
    (layers.RecurrentTokenizer, {}, "token_dim", "", {}),
    (
        layers.RelativeAttention,
        RELATIVE,
        "num_heads head_dim grid_size position_mlp_dim",
        "",
        {"interpolation": ("bicubic", "one of 'bilinear', 'geometric'")},
    ),
    (
        layers.RelativeTransformerBlock,
        RELATIVE,
        "units",
        "",
        {
            "strides": (4, STRIDES),
            "norm": ("group", "one of 'layer', 'batch'"),
            "epsilon": (0, ABOVE_0),
            "layer_scale_init": ("small", FINITE),
        },
    ),
    (layers.ResNetBlock, {"width": 2}, "width strides", "drop_path_rate", {"bottleneck": (1, BOOL)}),
    (
        layers.RotaryEmbedding,
        {"kind": "dinov3", "head_dim": 8, "patch_size": 4},
        "",
        "",
        {"kind": ("rope", "one of 'dinov3', 'eva02', 'axial'"), "head_dim": (6, "a multiple of 4")},
    ),
    (layers.SqueezeExcitation, {}, "reduced_dim", "", {}),
    (
        layers.StandardizedConv2D,
        {"filters": 4, "kernel_size": 3},
        "filters kernel_size",
        "",
        {
            "strides": ((1, 2, 2), PAIR),
            "padding": ("valid", PADDING),
            "epsilon": (0, ABOVE_0),
            "epsilon_added_to": ("mean", "one of 'std', 'variance'"),
        },
    ),
    (
        layers.StandardizedConv2D,
        {"filters": 4, "padding": "symmetric"},
        "",
        "",
        {"kernel_size": ((3, 2), 'odd sizes with padding="symmetric"')},
    ),
    (
        layers.SymmetricMaxPooling2D,
        {"pool_size": 3, "strides": 2},
        "strides",
        "",
        {"pool_size": (2, ODD), "padding": ("same", "one of 'lowest', 'zeros'")},
    ),
    (layers.TokenPooling, {}, "", "", {"method": ("mean", "one of 'token', 'gap', 'token_gap'")}),
    (layers.TokenPooling, {"method": "gap"}, "", "", {"num_prefix_tokens": (-1, COUNT)}),
    (layers.TokenProjector, {}, "key_dim", "drop_path_rate", {}),
    (layers.TokenTransformer, {}, "key_dim", "drop_path_rate", {}),
    (
        layers.TransformerBlock,
        HEADS,
        "num_heads mlp_dim num_outputs max_relative_distance",
        "dropout_rate attention_dropout_rate drop_path_rate",
        {
            "layer_scale_init": ("small", FINITE),
            "layer_norm_epsilon": (0, ABOVE_0),
            "token_merging": (-1, COUNT),
            "num_prefix_tokens": (None, COUNT),
        },
    ),
    (
        layers.VTModule,
        {"num_tokens": 3},
        "num_tokens token_dim key_dim",
        "drop_path_rate",
        {"recurrent": (-1, BOOL), "project": (-1, BOOL)},
    ),
]


@pytest.mark.parametrize("cls, valid, integers, rates, others", REFUSED, ids=lambda x: getattr(x, "__name__", ""))
def test_bad_argument_is_refused(cls, valid, integers, rates, others):
    refused = [(name, 0, "an integer of at least 1") for name in integers.split()]
    refused += [(name, 1, "a number in [0, 1)") for name in rates.split()]
    refused += [(name, *case) for name, case in others.items()]
    for name, value, expected in refused:
        with pytest.raises(
            ValueError, match=f"`{name}`. Expected {re.escape(expected)}.*Received: {re.escape(repr(value))}"
        ):
            cls(**{**valid, name: value})
