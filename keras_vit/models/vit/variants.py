"""The table of ViT sizes. To add a size, add a row."""

import re
from typing import NamedTuple

from keras_vit import arguments


class Size(NamedTuple):
    """The depth and widths of an encoder, and whether its MLPs are gated."""

    hidden_dim: int
    num_layers: int
    mlp_dim: int
    num_heads: int
    gated_mlp: bool = False


class Stem(NamedTuple):
    """The ResNet of a hybrid, and the patch size on its feature map."""

    stages: tuple[int, ...]
    patch_size: int


class Variant(NamedTuple):
    """The sizes of a variant. `stages` are the units per stage of a hybrid's ResNet. It is None without a ResNet."""

    size: Size
    patch_size: int
    stages: tuple[int, ...] | None


# Ti and S: DeiT (arXiv 2012.12877), table 1. B, L, H: the ViT paper (arXiv 2010.11929), table 1. g, G: Scaling Vision
# Transformers (arXiv 2106.04560), table 2. SO400M: Getting ViT in Shape (arXiv 2305.13035), as SigLIP uses it. g-opt:
# SigLIP 2 (arXiv 2502.14786). S+, H+, 7B: DINOv3 (arXiv 2508.10104). DINOv2G: DINOv2's g (arXiv 2304.07193), table 17.
# EVA02...: EVA-02 (arXiv 2303.11331). If a paper omits the MLP widths, they are from the paper's code.
SIZES = {
    "Ti": Size(192, 12, 768, 3),
    "S": Size(384, 12, 1536, 6),
    "B": Size(768, 12, 3072, 12),
    "L": Size(1024, 24, 4096, 16),
    "H": Size(1280, 32, 5120, 16),
    "g": Size(1408, 40, 6144, 16),
    "G": Size(1664, 48, 8192, 16),
    "SO400M": Size(1152, 27, 4304, 16),
    "g-opt": Size(1536, 40, 6144, 16),
    "S+": Size(384, 12, 1536, 6, gated_mlp=True),
    "H+": Size(1280, 32, 5120, 20, gated_mlp=True),
    "7B": Size(4096, 40, 8192, 32, gated_mlp=True),
    "DINOv2G": Size(1536, 40, 4096, 24, gated_mlp=True),
    "EVA02Ti": Size(192, 12, 512, 3, gated_mlp=True),
    "EVA02S": Size(384, 12, 1024, 6, gated_mlp=True),
    "EVA02B": Size(768, 12, 2048, 12, gated_mlp=True),
    "EVA02L": Size(1024, 24, 2730, 16, gated_mlp=True),
}

# {(name, number after the slash): ResNet of a hybrid}, from the ViT paper, section 4.1, and from "How to train your
# ViT?" (arXiv 2106.10270), table 2.
STEMS = {
    ("R", 16): Stem((), 8),
    ("R26", 32): Stem((2, 2, 2, 2), 1),
    ("R50", 16): Stem((3, 4, 9), 1),
    ("R50", 32): Stem((3, 4, 6, 3), 1),
}

# The names of sizes in other packages, for an error message.
WORDS = {"tiny": "Ti", "small": "S", "base": "B", "large": "L", "huge": "H", "giant": "g"}


def decode_variant(variant):
    """Parses a name such as "B/16" or, for hybrids, "R50+B/16" into a `Variant`; raises ValueError for other names."""
    match = re.fullmatch(r"(?:(\w+)\+)?([\w-]+\+?)/([1-9]\d*)", variant) if isinstance(variant, str) else None
    if match is not None and match[2] in SIZES:
        size, number = SIZES[match[2]], int(match[3])
        if match[1] is None:
            return Variant(size, number, None)
        if (match[1], number) in STEMS:
            stem = STEMS[match[1], number]
            return Variant(size, stem.patch_size, stem.stages)
    hybrids = ", ".join(f"{name}+.../{number}" for name, number in STEMS)
    expected = f'a size of {", ".join(SIZES)}, followed by a slash and a patch size in pixels, as in "B/16". '
    error = arguments.invalid("variant", f'{expected}Hybrids are {hybrids}, as in "R50+B/16"', variant)
    raise ValueError(f"{error}{_meant(variant)}")


def _meant(variant):
    """Returns the end of an error message. It suggests the variant that is closest to the unknown name `variant`.

    `variant` may be a name of another package, such as "vit_base_patch16". If no variant is close, returns "".
    """
    if not isinstance(variant, str):
        return ""
    plain = re.sub(r"vit|deit|patch|(?<=\d)[_-]\d{3}$", "", variant.lower())
    plain = re.sub("|".join(WORDS), lambda word: WORDS[word[0]], plain)
    if (size := plain.strip("_-")) in SIZES:
        plain += "14" if size in ("H", "g") else "16"
    known = [f"{size}/{patch}" for size in SIZES for patch in (8, 14, 16, 32)]
    known += [f"{name}+{size}/{number}" for name, number in STEMS for size in SIZES]
    return arguments.nearest(plain, known)


def name_from_fields(fields):
    """Returns the name of the variant with these fields of a config, such as "ViT-B/16" or "R50+ViT-B/16", or None."""
    sizes, gated = tuple(fields[name] for name in Size._fields[:3]), fields["gated_mlp"]
    size = next((name for name, row in SIZES.items() if row[:3] == sizes and gated in (None, row.gated_mlp)), None)
    if size is None or fields["patch_size"] is None:
        return None
    height, width = fields["patch_size"]
    if fields["stages"] is None:
        return f"ViT-{size}/{height}" if height == width else f"ViT-{size}/{height}x{width}"
    if height == width and fields["width_factor"] == 1:
        stem = Stem(fields["stages"], height)
        return next((f"{name}+ViT-{size}/{number}" for (name, number), row in STEMS.items() if row == stem), None)
    return None


def num_heads_from_sizes(hidden_dim, num_layers, mlp_dim, gated_mlp=None):
    """Returns the number of heads that all rows of `SIZES` with these dimensions have.

    Returns None if no row has these dimensions, or if such rows have different numbers of heads.
    """
    rows = [row for row in SIZES.values() if row[:3] == (hidden_dim, num_layers, mlp_dim)]
    numbers = {row.num_heads for row in rows if gated_mlp in (None, row.gated_mlp)}
    return numbers.pop() if len(numbers) == 1 else None


def architecture_name(variant):
    """Returns the name of a variant in `list_weights`: "ViTB16" for "B/16", "R50ViTB16" for "R50+B/16"."""
    return re.sub(r"^(?:(\w+)\+)?(?=\w)", r"\1ViT", str(variant), count=1).replace("/", "")
