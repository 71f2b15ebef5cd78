"""The builders of single variants, such as `ViTB16`: one row per builder."""

import inspect
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec

from keras_vit.config import Preprocessing
from keras_vit.images.constants import CLIP_PREPROCESSING, DINOV3_PREPROCESSING, IMAGENET_PREPROCESSING
from keras_vit.models.bit.model import BiT
from keras_vit.models.catalog import FAMILIES
from keras_vit.models.coatnet.model import CoAtNet
from keras_vit.models.efficientnet.model import EfficientNet
from keras_vit.models.family import FamilyModel, build
from keras_vit.models.vit.model import ViT
from keras_vit.models.vt_resnet.model import VTResNet

P = ParamSpec("P")
# {name of a builder: (name of the family, variant, config fields that differ from the variant)}.
VARIANTS: dict[str, tuple[str, str, dict[str, Any]]] = {}


def row(
    name: str, builder: Callable[Concatenate[str, P], FamilyModel], variant: str, **defaults: Any
) -> Callable[P, FamilyModel]:
    """Returns a builder of one variant, a function called `name`. `defaults` replace config fields of the variant."""
    family = next(family for family in FAMILIES.values() if family.builder == builder.__name__)

    def named(**kwargs):
        return build(family, variant, {"fields": kwargs}, defaults, name)

    signature = inspect.signature(builder)
    named.__signature__ = signature.replace(
        parameters=[parameter for key, parameter in signature.parameters.items() if key != "variant"]
    )
    VARIANTS[name] = family.name, variant, defaults
    named.__name__ = named.__qualname__ = name
    named.__module__ = __name__
    settings = "".join(f", {key}={value!r}" for key, value in defaults.items())
    named.__doc__ = (
        f'Builds a {builder.__name__}-{variant}: `keras_vit.{builder.__name__}("{variant}"{settings}, ...)`.\n\n'
        f"For the arguments, see `keras_vit.{builder.__name__}` and `keras_vit.{family.config.__name__}`.\n\n"
        f"Example:\n\n>>> model = keras_vit.{name}(num_classes=10)"
    )
    return named


# ViT. MAE and DINO use these models too. The sizes and their sources are in `keras_vit.models.vit.variants`.
ViTTi16 = row("ViTTi16", ViT, "Ti/16")
ViTS16 = row("ViTS16", ViT, "S/16")
ViTS8 = row("ViTS8", ViT, "S/8")
ViTS32 = row("ViTS32", ViT, "S/32")
ViTB8 = row("ViTB8", ViT, "B/8")
ViTB16 = row("ViTB16", ViT, "B/16")
ViTB32 = row("ViTB32", ViT, "B/32")
ViTL16 = row("ViTL16", ViT, "L/16")
ViTL32 = row("ViTL32", ViT, "L/32")
ViTH14 = row("ViTH14", ViT, "H/14")
ViTg14 = row("ViTg14", ViT, "g/14")
ViTG14 = row("ViTG14", ViT, "G/14")
ViTSO400M14 = row("ViTSO400M14", ViT, "SO400M/14")

# Hybrids, whose patches are cut from a ResNet's feature map: arXiv 2010.11929 and 2106.10270.
RViTTi16 = row("RViTTi16", ViT, "R+Ti/16")
R26ViTS32 = row("R26ViTS32", ViT, "R26+S/32")
R26ViTB32 = row("R26ViTB32", ViT, "R26+B/32")
R50ViTB16 = row("R50ViTB16", ViT, "R50+B/16")
R50ViTB32 = row("R50ViTB32", ViT, "R50+B/32")
R50ViTL32 = row("R50ViTL32", ViT, "R50+L/32")

# DeiT, trained only on ImageNet, with exact GELU: arXiv 2012.12877, table 1.
_DEIT = {"activation": "gelu", "preprocessing": Preprocessing(**IMAGENET_PREPROCESSING)}
_DISTILLED = {"distillation_token": True, **_DEIT}
DeiTTi16 = row("DeiTTi16", ViT, "Ti/16", **_DEIT)
DeiTS16 = row("DeiTS16", ViT, "S/16", **_DEIT)
DeiTB16 = row("DeiTB16", ViT, "B/16", **_DEIT)
DeiTTi16Distilled = row("DeiTTi16Distilled", ViT, "Ti/16", **_DISTILLED)
DeiTS16Distilled = row("DeiTS16Distilled", ViT, "S/16", **_DISTILLED)
DeiTB16Distilled = row("DeiTB16Distilled", ViT, "B/16", **_DISTILLED)

# DeiT III, which has LayerScale but no position embedding for the class token: arXiv 2204.07118, section 3.
_WHOLE = {
    "activation": "gelu",
    "preprocessing": Preprocessing(**{**IMAGENET_PREPROCESSING, "crop_fraction": 1.0, "resize_mode": "crop"}),
}
_DEIT_3 = {"layer_scale_init": 1e-4, "class_token_position": False, **_WHOLE}
DeiT3S16 = row("DeiT3S16", ViT, "S/16", **_DEIT_3)
DeiT3B16 = row("DeiT3B16", ViT, "B/16", **_DEIT_3)
DeiT3L16 = row("DeiT3L16", ViT, "L/16", **_DEIT_3)
DeiT3H14 = row("DeiT3H14", ViT, "H/14", **_DEIT_3)

# The backbones of I-JEPA: arXiv 2301.08243, appendix A. I-JEPA does not train its position table. Its files contain the
# table nevertheless, so these models have position_embedding="learned".
_IJEPA = {"pooling": "gap", "num_classes": 0, **_DEIT}
IJEPAH14 = row("IJEPAH14", ViT, "H/14", **_IJEPA)
IJEPAH16 = row("IJEPAH16", ViT, "H/16", **{"image_size": 448, **_IJEPA})
IJEPAg16 = row("IJEPAg16", ViT, "g/16", **_IJEPA)

# DINOv2's backbones: arXiv 2304.07193, appendix B. For the models with registers (arXiv 2309.16588), pass
# num_registers=4.
_DINOV2 = {"image_size": 518, "num_classes": 0, "layer_scale_init": 1e-5, **_DEIT}
DINOv2S14 = row("DINOv2S14", ViT, "S/14", **_DINOV2)
DINOv2B14 = row("DINOv2B14", ViT, "B/14", **_DINOV2)
DINOv2L14 = row("DINOv2L14", ViT, "L/14", **_DINOV2)
DINOv2G14 = row("DINOv2G14", ViT, "DINOv2G/14", **{**_DINOV2, "activation": "silu"})

# DINOv3's backbones: arXiv 2508.10104, section 3; images are resized as in DINOv3's README.
_DINOV3 = {
    "num_classes": 0,
    "position_embedding": "none",
    "rotary_embedding": "dinov3",
    "num_registers": 4,
    "layer_scale_init": 1e-5,
    "key_bias": False,
    "layer_norm_epsilon": 1e-5,
    "activation": "gelu",
    "preprocessing": Preprocessing(**DINOV3_PREPROCESSING),
}
_GATED_DINOV3 = {**_DINOV3, "activation": "silu"}
DINOv3S16 = row("DINOv3S16", ViT, "S/16", **_DINOV3)
DINOv3S16Plus = row("DINOv3S16Plus", ViT, "S+/16", **_GATED_DINOV3)
DINOv3B16 = row("DINOv3B16", ViT, "B/16", **_DINOV3)
DINOv3L16 = row("DINOv3L16", ViT, "L/16", **_DINOV3)
DINOv3H16Plus = row("DINOv3H16Plus", ViT, "H+/16", **_GATED_DINOV3)
DINOv37B16 = row("DINOv37B16", ViT, "7B/16", qkv_bias=False, **_GATED_DINOV3)

# The image towers of OpenAI's CLIP: arXiv 2103.00020, table 20. L/14 was also trained at 336 pixels.
_CLIP_PREPROCESSING = Preprocessing(**CLIP_PREPROCESSING)
_CLIP = {
    "num_classes": 0,
    "patch_bias": False,
    "norm_before_blocks": True,
    "layer_norm_epsilon": 1e-5,
    "activation": "quick_gelu",
    "preprocessing": _CLIP_PREPROCESSING,
}
CLIPB32 = row("CLIPB32", ViT, "B/32", projection_dim=512, **_CLIP)
CLIPB16 = row("CLIPB16", ViT, "B/16", projection_dim=512, **_CLIP)
CLIPL14 = row("CLIPL14", ViT, "L/14", projection_dim=768, **_CLIP)

# EVA-02, fine-tuned on ImageNet: arXiv 2303.11331, section 2. The image sizes are from EVA-02's code.
_EVA02 = {
    "pooling": "gap",
    "class_token": True,
    "norm_after_pooling": True,
    "rotary_embedding": "eva02",
    "rotary_grid": (16, 16),
    "key_bias": False,
    "activation": "silu",
    "preprocessing": _CLIP_PREPROCESSING,
}
_LARGE_EVA02 = {
    "image_size": 448,
    "mlp_norm": True,
    **_EVA02,
    "preprocessing": _CLIP_PREPROCESSING.changed(resize_mode="squash"),
}
EVA02Ti14 = row("EVA02Ti14", ViT, "EVA02Ti/14", image_size=336, **_EVA02)
EVA02S14 = row("EVA02S14", ViT, "EVA02S/14", image_size=336, **_EVA02)
EVA02B14 = row("EVA02B14", ViT, "EVA02B/14", **_LARGE_EVA02)
EVA02L14 = row("EVA02L14", ViT, "EVA02L/14", **_LARGE_EVA02)

# The image towers of SigLIP, pooled by attention: arXiv 2303.15343, section 4. SigLIP 2 adds B/32, SO400M/16 and
# g-opt/16: arXiv 2502.14786, section 2.
_SIGLIP = {"pooling": "map", "num_classes": 0}
SigLIPB16 = row("SigLIPB16", ViT, "B/16", **_SIGLIP)
SigLIPL16 = row("SigLIPL16", ViT, "L/16", **_SIGLIP)
SigLIPSO400M14 = row("SigLIPSO400M14", ViT, "SO400M/14", **_SIGLIP)
SigLIPB32 = row("SigLIPB32", ViT, "B/32", image_size=256, **_SIGLIP)
SigLIPSO400M16 = row("SigLIPSO400M16", ViT, "SO400M/16", image_size=256, **_SIGLIP)
SigLIPGOpt16 = row("SigLIPGOpt16", ViT, "g-opt/16", image_size=256, **_SIGLIP)

# Big Transfer's ResNets, the baselines of the ViT paper: arXiv 1912.11370.
BiTR50x1 = row("BiTR50x1", BiT, "R50x1")
BiTR50x2 = row("BiTR50x2", BiT, "R50x2")
BiTR50x3 = row("BiTR50x3", BiT, "R50x3")
BiTR101x1 = row("BiTR101x1", BiT, "R101x1")
BiTR101x3 = row("BiTR101x3", BiT, "R101x3")
BiTR152x1 = row("BiTR152x1", BiT, "R152x1")
BiTR152x2 = row("BiTR152x2", BiT, "R152x2")
BiTR152x4 = row("BiTR152x4", BiT, "R152x4")
BiTR200x3 = row("BiTR200x3", BiT, "R200x3")

# Token-based Visual Transformers: arXiv 2006.03677.
VTResNet18 = row("VTResNet18", VTResNet, "R18")
VTResNet34 = row("VTResNet34", VTResNet, "R34")
VTResNet50 = row("VTResNet50", VTResNet, "R50")
VTResNet101 = row("VTResNet101", VTResNet, "R101")
# CoAtNet: arXiv 2106.04803, table 3. timm has weights for other variants, such as `keras_vit.CoAtNet("coatnet_0_rw")`.
CoAtNet0 = row("CoAtNet0", CoAtNet, "0")
CoAtNet1 = row("CoAtNet1", CoAtNet, "1")
CoAtNet2 = row("CoAtNet2", CoAtNet, "2")
CoAtNet3 = row("CoAtNet3", CoAtNet, "3")
CoAtNet4 = row("CoAtNet4", CoAtNet, "4")
CoAtNet5 = row("CoAtNet5", CoAtNet, "5")
# EfficientNet: arXiv 1905.11946; B8: arXiv 1911.09665; L2: arXiv 1911.04252.
EfficientNetB0 = row("EfficientNetB0", EfficientNet, "B0")
EfficientNetB1 = row("EfficientNetB1", EfficientNet, "B1")
EfficientNetB2 = row("EfficientNetB2", EfficientNet, "B2")
EfficientNetB3 = row("EfficientNetB3", EfficientNet, "B3")
EfficientNetB4 = row("EfficientNetB4", EfficientNet, "B4")
EfficientNetB5 = row("EfficientNetB5", EfficientNet, "B5")
EfficientNetB6 = row("EfficientNetB6", EfficientNet, "B6")
EfficientNetB7 = row("EfficientNetB7", EfficientNet, "B7")
EfficientNetB8 = row("EfficientNetB8", EfficientNet, "B8")
EfficientNetL2 = row("EfficientNetL2", EfficientNet, "L2")

# Set `__all__` through globals(), because type checkers would take a computed `__all__` as empty.
globals()["__all__"] = list(VARIANTS)
