import re

import pytest

from tests.errors import not_found, refuses
from tests.models.test_every_family import BUILDERS

# The error names each of these arguments.
VIT = {"patch_size": 0, "in_channels": 0, "num_classes": -1, "hidden_dim": 0, "num_layers": 0, "mlp_dim": 1.5}
VIT |= {"pooling": "mean", "position_embedding": "rope", "dropout_rate": 1, "drop_path_rate": -0.1}
VIT |= {"patch_dropout_rate": 2, "attention_dropout_rate": -1, "layer_scale_init": "small", "task": "one"}
VIT |= {"remat": "yes", "weights": 5, "class_names": 5, "token_merging": 10**400}
VIT |= {"num_registers": -1, "representation_size": 0, "preprocessing": 0.5, "image_size": (16, None)}
COATNET = {"stem_widths": (1, 2, 3), "downsampling": "1x1", "pool_type": "max", "padding": "", "activation": "selu"}
COATNET |= {"se_ratio": 0, "transformer_norm": "group", "position_interpolation": "bicubic", "batch_norm_epsilon": 0}
COATNET |= {"drop_path_rate": 1.0, "image_size": (16, None), "expanded_from": "both"}
NAMED = {
    "vit": VIT,
    "bit": {"image_size": (16, None), "stages": (), "width_factor": 0, "pool_padding": "same"},
    "coatnet": COATNET,
    "efficientnet": {"image_size": (16, 16, 3), "in_channels": 0, "repeats": (0,) * 7, "padding": "valid"}
    | {"batch_norm_epsilon": 0.0, "drop_path_rate": 1.0},
    "vt_resnet": {"width": 0, "num_tokens": 0, "token_dim": 1.5, "key_dim": 0, "drop_path_rate": -0.1}
    | {"class_names": ["a"], "stages": 3, "bottleneck": 1, "num_modules": 0, "dropout_rate": 1},
}
# A patch covers 8 x 8 places of a feature map that is four times smaller than the image.
HYBRID_SIZE = "at least one patch, 29 x 29 pixels. Received: images of 28 x 28"
HEAD_DIM = "`head_dim`. Expected a divisor of the 16 channels of the attention in stage_3_block_01"
WIDTHS = "`widths`. Expected 9 integers, the channels of the stem, of each of 7 stages and of the"
REPEATS = "`repeats`. Expected 7 integers, the numbers of blocks of each of 7 stages. Received"
RELATIVE, ROTARY = {"position_embedding": "relative"}, {"rotary_embedding": "eva02", "hidden_dim": 24}
REFUSED = [
    ("vit", {"num_heads": 13}, "at least as many channels as heads"),
    ("vit", {**RELATIVE, "patch_dropout_rate": 0.5}, "patch_dropout_rate=0"),
    ("vit", {**RELATIVE, "token_merging": (0, 2)}, "token_merging=0"),
    ("vit", {**RELATIVE, "token_merging": 1}, "relative or rotary positions"),
    ("vit", {**ROTARY, "patch_dropout_rate": 0.5}, "patch_dropout_rate=0"),
    ("vit", {**ROTARY, "token_merging": 2}, "Expected token_merging=0 with relative or rotary positions"),
    ("vit", {"token_merging": -1}, "`token_merging`. Expected an integer of at least 0. Received: -1"),
    ("vit", {"token_merging": (1, 2, 3)}, "one for each of the 2 blocks. Received: (1, 2, 3)"),
    ("vit", {"position_embedding": "sincos2d", "hidden_dim": 6}, "a multiple of 4 channels"),
    ("bit", {"width_factor": 0.75}, "`width_factor`. Expected a multiple of 0.5"),
    ("hybrid", {"variant": "R+Ti/16", "image_size": 28}, HYBRID_SIZE),
    ("coatnet", {"depths": 3}, "`depths`. Expected the number of units of each stage"),
    ("coatnet", {"depths": (1, 1, 1)}, "`widths`. Expected a number for each of the 3 stages of `depths`"),
    ("coatnet", {"widths": "wide"}, "`widths`. Expected the number of channels of each stage"),
    ("coatnet", {"conv_depths": (2, 1, 0, 0)}, "`conv_depths`. Expected at most `depths`, (1, 1, 2, 1)"),
    ("coatnet", {"conv_depths": (1, 1)}, "`conv_depths`. Expected a number for each of the 4 stages"),
    ("coatnet", {"head_dim": 7}, HEAD_DIM),
    ("coatnet", {"table_image_size": 32}, "`table_image_size`. Expected None with images of a known size"),
    ("efficientnet", {"widths": (8, 8)}, WIDTHS),
    ("efficientnet", {"repeats": (1,) * 8}, REPEATS),
]


@pytest.mark.parametrize("family, name", [(family, name) for family in NAMED for name in NAMED[family]])
def test_bad_argument_is_named(family, name):
    refuses(f"`{name}`", BUILDERS[family][0], **{name: NAMED[family][name]})


@pytest.mark.parametrize("family, changes, message", REFUSED)
def test_bad_argument_is_explained(family, changes, message):
    refuses(re.escape(message), BUILDERS[family][0], **changes)


def test_missing_weights_file_is_named():
    for family in ("vit", "bit"):
        not_found("nowhere", BUILDERS[family][0], weights="nowhere.npz")
