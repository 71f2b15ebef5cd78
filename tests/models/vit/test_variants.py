import pytest

import keras_vit
from keras_vit.models.vit import variants
from keras_vit.models.vit.variants import SIZES, architecture_name, decode_variant, num_heads_from_sizes
from tests.errors import refuses

SPELLINGS = {"ViTTi16": "vit_tiny_patch16_224", "ViTB8": "vit_base_patch8_224"}
SPELLINGS |= {"ViTH14": "vit_huge_patch14_224", "ViTg14": "vit_giant_patch14_224"}


@pytest.mark.parametrize("name, timm", SPELLINGS.items())
def test_other_spelling_of_a_variant_is_recognised(name, timm):
    for spelled in (name, name.lower(), timm, timm.replace("_", "-")):
        with pytest.raises(ValueError, match="`variant`. Expected a size of .*, as in .B/16.*Did you mean") as error:
            decode_variant(spelled)
        assert architecture_name(str(error.value).rsplit("'", 2)[1]) == name, spelled


def test_suggestion_has_the_usual_patch_or_there_is_none():
    for variant in (16, None, "resnet"):
        refuses(f"Received: {variant!r}$", keras_vit.ViT, variant)
    for variant, meant in {"base": "B/16", "vit_large": "L/16", "huge": "H/14", "tiny": "Ti/16"}.items():
        refuses(f"Received: '{variant}'. Did you mean '{meant}'", keras_vit.ViT, variant)


def test_size_is_found_by_its_dimensions():
    assert num_heads_from_sizes(768, 12, 3072) == 12 and num_heads_from_sizes(768, 12, 3000) is None
    assert [num_heads_from_sizes(1280, 32, 5120, gated) for gated in (None, False, True)] == [None, 16, 20]
    for size in SIZES:
        config = keras_vit.ViTConfig.from_variant(f"{size}/16")
        assert variants.name_from_fields(vars(config)) == f"ViT-{size}/16"
    assert [architecture_name(v) for v in ("B/16", "R50+B/16", "S+/16")] == ["ViTB16", "R50ViTB16", "ViTS+16"]
