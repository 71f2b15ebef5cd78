import json

import keras
import pytest

import keras_vit
from keras_vit.models.vit import variants
from keras_vit.models.vit.variants import SIZES, STEMS, architecture_name, decode_variant, num_heads_from_sizes
from tests.errors import refuses
from tests.golden import GOLDEN_FOLDER

SPELLINGS = {"ViTTi16": "vit_tiny_patch16_224", "ViTB8": "vit_base_patch8_224"}
SPELLINGS |= {"ViTH14": "vit_huge_patch14_224", "ViTg14": "vit_giant_patch14_224"}
TIMM_COUNTS = json.loads((GOLDEN_FOLDER / "param_counts_timm.json").read_text())


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


# All are counted with a classifier of 1,000 classes and without a projection.
FAMILIES = {"DINOv2G14": "vit_giant_patch14_dinov2", "DINOv37B16": "vit_7b_patch16_dinov3"}
FAMILIES |= {"DINOv3S16": "vit_small_patch16_dinov3_qkvb", "DINOv3S16Plus": "vit_small_plus_patch16_dinov3_qkvb"}
FAMILIES |= {"DINOv3B16": "vit_base_patch16_dinov3_qkvb", "DINOv3L16": "vit_large_patch16_dinov3_qkvb"}
FAMILIES |= {"DINOv3H16Plus": "vit_huge_plus_patch16_dinov3_qkvb", "CLIPB32": "vit_base_patch32_clip_quickgelu_224"}
FAMILIES |= {"CLIPB16": "vit_base_patch16_clip_quickgelu_224", "CLIPL14": "vit_large_patch14_clip_quickgelu_224"}
FAMILIES |= {"EVA02Ti14": "eva02_tiny_patch14_336", "EVA02S14": "eva02_small_patch14_336"}
FAMILIES |= {"EVA02B14": "eva02_base_patch14_448", "EVA02L14": "eva02_large_patch14_448"}
FAMILIES |= {"SigLIPB32": "vit_base_patch32_siglip_256", "SigLIPSO400M16": "vit_so400m_patch16_siglip_256"}
FAMILIES |= {"SigLIPGOpt16": "vit_giantopt_patch16_siglip_256", "IJEPAg16": "vit_giant_patch16_gap_224"}
FAMILIES |= {"IJEPAH14": "vit_huge_patch14_gap_224", "IJEPAH16": "vit_huge_patch16_gap_448"}
# Keras infers the shape of attention pooling by computing it, which takes seconds for large images and models.
HEAVY = ("SigLIPSO400M16", "SigLIPGOpt16")


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.long] * (name in HEAVY)) for name in FAMILIES])
def test_parameter_count_of_other_family_is_that_of_timm(name):
    with keras.StatelessScope(initialize_variables=False):
        model = getattr(keras_vit, name)(num_classes=1000, projection_dim=None)
    keras.utils.clear_session(free_memory=False)
    config = model.config
    # timm has no parameters for the biases of the keys. This package has them, and they stay zero.
    zeros = config.num_layers * config.hidden_dim if config.qkv_bias and not config.key_bias else 0
    assert model.count_params() - zeros == TIMM_COUNTS[FAMILIES[name]]


def test_parameter_count_of_the_tutorials_model():
    sizes = {"hidden_dim": 512, "num_layers": 4, "num_heads": 6, "head_dim": 85, "mlp_dim": 1024}
    model = keras_vit.ViT("B/16", image_size=32, patch_size=4, num_classes=10, **sizes)
    assert model.count_params() == 8_459_762
    assert model.get_layer("block_00").attention.key_dim == 85


def test_decode_variant_returns_size_and_patch_size():
    assert decode_variant("g/14") == (SIZES["g"], 14, None)
    assert decode_variant("SO400M/14") == ((1152, 27, 4304, 16, False), 14, None)
    assert decode_variant("g-opt/16") == (SIZES["g-opt"], 16, None)
    assert decode_variant("H+/16") == ((1280, 32, 5120, 20, True), 16, None)
    assert SIZES["g"][:4] == (1408, 40, 6144, 16) and SIZES["G"][:4] == (1664, 48, 8192, 16)


def test_size_is_found_by_its_dimensions():
    assert num_heads_from_sizes(768, 12, 3072) == 12 and num_heads_from_sizes(768, 12, 3000) is None
    assert [num_heads_from_sizes(1280, 32, 5120, gated) for gated in (None, False, True)] == [None, 16, 20]
    for size in SIZES:
        config = keras_vit.ViTConfig.from_variant(f"{size}/16")
        assert variants.name_from_fields(vars(config)) == f"ViT-{size}/16"
    assert [architecture_name(v) for v in ("B/16", "R50+B/16", "S+/16")] == ["ViTB16", "R50ViTB16", "ViTS+16"]


def test_decode_variant_returns_stages_of_hybrids():
    assert decode_variant("R50+B/16") == (SIZES["B"], 1, (3, 4, 9))
    assert decode_variant("R50+B/32") == (SIZES["B"], 1, (3, 4, 6, 3))
    assert decode_variant("R50+L/32") == (SIZES["L"], 1, (3, 4, 6, 3))
    assert decode_variant("R+Ti/16") == (SIZES["Ti"], 8, ())
    for size in SIZES:
        assert decode_variant(f"R26+{size}/32") == (SIZES[size], 1, (2, 2, 2, 2))
    for (stem, number), row in STEMS.items():
        variant = decode_variant(f"{stem}+S/{number}")
        assert variant.size is SIZES["S"] and (variant.stages, variant.patch_size) == row


def test_wrong_variant_is_refused():
    hybrids = ("R50+B", "R50+B/8", "R26+B/16", "R+B/32", "R101+B/16", "R50B/16", "R50+X/16", "+B/16", "R50++B/16")
    for variant in ("B", "B16", "X/16", "B/0", "B/16.0", "b/16", "", None, 16, *hybrids):
        refuses(r"`variant`.*Received", decode_variant, variant)
