"""Each public layer checks its arguments; tests/test_arguments.py tests the checks themselves."""

import re

import pytest

from keras_vit import layers

POSITIVE, RATE, ABOVE_0 = "an integer of at least 1", "a number in [0, 1)", "a number above 0, at most 1"
COUNT, PAIR, FINITE = "an integer of at least 0", "an integer or (height, width)", "a finite number"
# The refused value for each expectation. The refused choice is "other".
VALUES = {POSITIVE: 0, RATE: 1, ABOVE_0: 0, COUNT: -1, PAIR: (1, 2, 3), FINITE: "small"}
VALUES |= {"a multiple of 4 for rotary positions": 6, "at most `num_prefix_tokens`, 0": 1}
HEADS = {"num_heads": 2, "mlp_dim": 12}
EMBEDDING = {"hidden_dim": 8, "patch_size": 4}
ROTARY = {"kind": "dinov3", "head_dim": 8, "patch_size": 4}
BLOCK_RATES = "dropout_rate attention_dropout_rate drop_path_rate"
BLOCK = {POSITIVE: "num_heads mlp_dim num_outputs max_relative_distance", RATE: BLOCK_RATES, FINITE: "layer_scale_init"}
# (layer, valid arguments, {what the error expects: arguments})
REFUSED = [
    (layers.MultiHeadSelfAttention, {"num_heads": 2}, {POSITIVE: "num_heads head_dim max_relative_distance"}),
    (layers.MultiHeadSelfAttention, {"num_heads": 2}, {RATE: "dropout_rate", ABOVE_0: "layer_norm_epsilon"}),
    (layers.AttentionPooling, HEADS, {POSITIVE: "num_heads mlp_dim", ABOVE_0: "layer_norm_epsilon"}),
    (layers.DropPath, {}, {RATE: "rate"}),
    (layers.LayerScale, {}, {FINITE: "init_value"}),
    (layers.MLP, {"mlp_dim": 4}, {POSITIVE: "mlp_dim", RATE: "dropout_rate"}),
    (layers.PatchDropout, {"rate": 0.5}, {RATE: "rate", COUNT: "num_prefix_tokens"}),
    (layers.PatchEmbedding, EMBEDDING, {POSITIVE: "hidden_dim patch_size", PAIR: "patch_size"}),
    (layers.PatchEmbedding, EMBEDDING, {"one of 'unfold', 'conv'": "method"}),
    (layers.Patches, {}, {POSITIVE: "patch_size"}),
    (layers.PatchMap, {"patch_size": 4}, {POSITIVE: "patch_size", PAIR: "patch_size", COUNT: "num_prefix_tokens"}),
    (layers.PositionEmbedding, {"grid_size": 4}, {POSITIVE: "grid_size patch_size", COUNT: "num_prefix_tokens"}),
    (layers.PositionEmbedding, {"grid_size": 4}, {"one of 'learned', 'learned2d', 'sincos2d'": "method"}),
    (layers.PositionEmbedding, {"grid_size": 4}, {"at most `num_prefix_tokens`, 0": "num_prefix_positions"}),
    (layers.RotaryEmbedding, ROTARY, {"one of 'dinov3', 'eva02', 'axial'": "kind"}),
    (layers.RotaryEmbedding, ROTARY, {"a multiple of 4 for rotary positions": "head_dim"}),
    (layers.TokenPooling, {"method": "gap"}, {COUNT: "num_prefix_tokens"}),
    (layers.TokenPooling, {}, {"one of 'token', 'gap', 'token_gap'": "method"}),
    (layers.TransformerBlock, HEADS, {ABOVE_0: "layer_norm_epsilon", COUNT: "token_merging num_prefix_tokens"}),
    (layers.TransformerBlock, HEADS, BLOCK),
]


@pytest.mark.parametrize("cls, valid, refused", REFUSED, ids=lambda x: getattr(x, "__name__", ""))
def test_bad_argument_is_refused(cls, valid, refused):
    for expected, names in refused.items():
        value = VALUES.get(expected, "other")
        for name in names.split():
            message = re.escape(f"`{name}`. Expected {expected}. Received: {value!r}")
            with pytest.raises(ValueError, match=message):
                cls(**{**valid, name: value})
