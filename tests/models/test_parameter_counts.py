import json
import re

import keras
import pytest

import keras_vit
from tests.golden import GOLDEN_FOLDER

# The golden counts of timm's models of 1000 classes.
TIMM = {f"BiTR{size}": f"resnetv2_{size}_bit" for size in ("50x1", "50x3", "101x1", "101x3", "152x2", "152x4")}
TIMM |= {"RViTTi16": "vit_tiny_r_s16_p8_224", "R26ViTS32": "vit_small_r26_s32_224"}
TIMM |= {"R50ViTB16": "vit_base_r50_s16_224", "R50ViTL32": "vit_large_r50_s32_224"}
for short, name in {"Ti16": "tiny", "S16": "small", "B16": "base"}.items():
    TIMM |= {f"DeiT{short}": f"deit_{name}_patch16_224", f"DeiT{short}Distilled": f"deit_{name}_distilled_patch16_224"}
TIMM |= {"DeiT3S16": "deit3_small_patch16_224", "DeiT3B16": "deit3_base_patch16_224"}
TIMM |= {"DeiT3H14": "deit3_huge_patch14_224"}
for name in ("tiny16", "small16", "small32", "base8", "base16", "base32", "large16", "large32", "huge14", "giant14"):
    size, patch = re.fullmatch(r"([a-z]+)(\d+)", name).groups()
    short = {"tiny": "Ti", "giant": "g"}.get(size, size[0].upper())
    TIMM[f"ViT{short}{patch}"] = f"vit_{size}_patch{patch}_224"
TIMM["ViTG14"] = "vit_gigantic_patch14_224"
COUNTS = json.loads((GOLDEN_FOLDER / "param_counts_timm.json").read_text())
PARAMETERS = {
    **{name: COUNTS[timm] for name, timm in TIMM.items()},
    **{"BiTR50x2": 97_988_712, "BiTR152x1": 60_185_128, "BiTR200x3": 568_633_000},
    **{"R26ViTB32": 101_383_976, "R50ViTB32": 110_945_832, "SigLIPB16": 92_884_224, "SigLIPSO400M14": 427_680_704},
    # The published files hold a mask token more, which only pre-training uses.
    **{"DINOv2S14": 22_056_192, "DINOv2B14": 86_579_712},
    **{"VTResNet18": 11_811_752, "VTResNet34": 21_792_168, "VTResNet50": 23_246_760, "VTResNet101": 42_291_112},
}


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameter_count(name, count_params):
    assert count_params(getattr(keras_vit, name)) == PARAMETERS[name]


def test_parameter_count_at_another_resolution(count_params):
    assert count_params(lambda: keras_vit.DeiTB16(image_size=384)) == COUNTS["deit_base_patch16_384"]


# All are counted with a classifier of 1,000 classes and without a projection.
OF_TIMM = {"DINOv2G14": "vit_giant_patch14_dinov2", "DINOv37B16": "vit_7b_patch16_dinov3"}
OF_TIMM |= {"DINOv3S16": "vit_small_patch16_dinov3_qkvb", "DINOv3S16Plus": "vit_small_plus_patch16_dinov3_qkvb"}
OF_TIMM |= {"DINOv3B16": "vit_base_patch16_dinov3_qkvb", "DINOv3L16": "vit_large_patch16_dinov3_qkvb"}
OF_TIMM |= {"DINOv3H16Plus": "vit_huge_plus_patch16_dinov3_qkvb", "CLIPB32": "vit_base_patch32_clip_quickgelu_224"}
OF_TIMM |= {"CLIPB16": "vit_base_patch16_clip_quickgelu_224", "CLIPL14": "vit_large_patch14_clip_quickgelu_224"}
OF_TIMM |= {"EVA02Ti14": "eva02_tiny_patch14_336", "EVA02S14": "eva02_small_patch14_336"}
OF_TIMM |= {"EVA02B14": "eva02_base_patch14_448", "EVA02L14": "eva02_large_patch14_448"}
OF_TIMM |= {"SigLIPB32": "vit_base_patch32_siglip_256", "SigLIPSO400M16": "vit_so400m_patch16_siglip_256"}
OF_TIMM |= {"SigLIPGOpt16": "vit_giantopt_patch16_siglip_256", "IJEPAg16": "vit_giant_patch16_gap_224"}
OF_TIMM |= {"IJEPAH14": "vit_huge_patch14_gap_224", "IJEPAH16": "vit_huge_patch16_gap_448"}
# Keras infers the shape of attention pooling by computing it, which takes seconds for large images and models.
HEAVY = ("SigLIPSO400M16", "SigLIPGOpt16")


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.long] * (name in HEAVY)) for name in OF_TIMM])
def test_parameter_count_of_other_family_is_that_of_timm(name):
    with keras.StatelessScope(initialize_variables=False):
        model = getattr(keras_vit, name)(num_classes=1000, projection_dim=None)
    keras.utils.clear_session(free_memory=False)
    config = model.config
    # timm has no parameters for the biases of the keys. This package has them, and they stay zero.
    zeros = config.num_layers * config.hidden_dim if config.qkv_bias and not config.key_bias else 0
    assert model.count_params() - zeros == COUNTS[OF_TIMM[name]]
