import re

import pytest

from tests.errors import refuses
from tests.models.test_every_family import BUILDERS

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
    ("vit", {**ROTARY, "patch_dropout_rate": 0.5}, "patch_dropout_rate=0"),
    ("vit", {**ROTARY, "token_merging": 2}, "Expected token_merging=0 with relative or rotary positions"),
    ("vit", {"token_merging": (1, 2, 3)}, "one for each of the 2 blocks. Received: (1, 2, 3)"),
    ("vit", {"position_embedding": "sincos2d", "hidden_dim": 6}, "a multiple of 4 channels"),
    ("vit", {"distillation_token": True, "pooling": "gap"}, 'Expected pooling="token"'),
    ("vit", {"distillation_token": True, "representation_size": 8}, "no representation_size"),
    ("vit", {"distillation_token": True, "num_classes": 0, "return_both_heads": True}, "num_classes above 0"),
    ("vit", {"return_both_heads": True}, "Expected distillation_token=True"),
    ("bit", {"stages": ()}, "`stages`"),
    ("bit", {"width_factor": 0.75}, "`width_factor`. Expected a multiple of 0.5"),
    ("hybrid", {"variant": "R+Ti/16", "image_size": 28}, HYBRID_SIZE),
    ("coatnet", {"depths": (1, 1, 1)}, "`widths`. Expected a number for each of the 3 stages of `depths`"),
    ("coatnet", {"conv_depths": (2, 1, 0, 0)}, "`conv_depths`. Expected at most `depths`, (1, 1, 2, 1)"),
    ("coatnet", {"conv_depths": (1, 1)}, "`conv_depths`. Expected a number for each of the 4 stages"),
    ("coatnet", {"head_dim": 7}, HEAD_DIM),
    ("coatnet", {"table_image_size": 32}, "`table_image_size`. Expected None with images of a known size"),
    ("efficientnet", {"widths": (8, 8)}, WIDTHS),
    ("efficientnet", {"repeats": (1,) * 8}, REPEATS),
]


@pytest.mark.parametrize("family, changes, message", REFUSED)
def test_bad_argument_is_explained(family, changes, message):
    refuses(re.escape(message), BUILDERS[family][0], **changes)
