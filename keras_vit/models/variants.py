"""The table of model sizes. A new size is a row here and nothing else."""

import re
from typing import NamedTuple


class Size(NamedTuple):
    """One row: the widths and depths of an encoder."""

    hidden_dim: int
    num_layers: int
    mlp_dim: int
    num_heads: int


# Ti and S: DeiT (arXiv 2012.12877), table 1. B, L, H: the ViT paper (arXiv 2010.11929), table 1. g, G: Scaling Vision
# Transformers (arXiv 2106.04560), table 2.
SIZES = {
    "Ti": Size(192, 12, 768, 3),
    "S": Size(384, 12, 1536, 6),
    "B": Size(768, 12, 3072, 12),
    "L": Size(1024, 24, 4096, 16),
    "H": Size(1280, 32, 5120, 16),
    "g": Size(1408, 40, 6144, 16),
    "G": Size(1664, 48, 8192, 16),
}


def decode_variant(variant):
    """Parses "B/16" into (Size, patch size in pixels).

    Raises:
        ValueError: If the variant is not a size of the table, a slash and a patch size.
    """
    match = re.fullmatch(r"(\w+)/([1-9]\d*)", variant) if isinstance(variant, str) else None
    if match is None or match[1] not in SIZES:
        raise ValueError(
            "Invalid value received for argument `variant`. Expected a size of "
            f'{", ".join(SIZES)}, a slash and a patch size in pixels, as in "B/16". Received: {variant!r}'
        )
    return SIZES[match[1]], int(match[2])
