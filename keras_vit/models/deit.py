"""DeiT and DeiT III: the same models under other names, trained on ImageNet alone with exact GELU."""

from keras_vit.models.named import named_builder
from keras_vit.models.vit import ViT
from keras_vit.weights.names.source import IMAGENET_PREPROCESSING

# arXiv 2012.12877, table 1.
DEIT = {"activation": "gelu", **IMAGENET_PREPROCESSING}
DISTILLED = {"distillation_token": True, **DEIT}
# arXiv 2204.07118, section 3: a scale on each branch, and no position for the class token.
DEIT_3 = {"layer_scale_init": 1e-4, "class_token_position": False, **DEIT, "crop_fraction": 1.0}

DeiTTi16 = named_builder(ViT, "DeiTTi16", "Ti/16", __name__, **DEIT)
DeiTS16 = named_builder(ViT, "DeiTS16", "S/16", __name__, **DEIT)
DeiTB16 = named_builder(ViT, "DeiTB16", "B/16", __name__, **DEIT)
DeiTTi16Distilled = named_builder(ViT, "DeiTTi16Distilled", "Ti/16", __name__, **DISTILLED)
DeiTS16Distilled = named_builder(ViT, "DeiTS16Distilled", "S/16", __name__, **DISTILLED)
DeiTB16Distilled = named_builder(ViT, "DeiTB16Distilled", "B/16", __name__, **DISTILLED)
DeiT3S16 = named_builder(ViT, "DeiT3S16", "S/16", __name__, **DEIT_3)
DeiT3B16 = named_builder(ViT, "DeiT3B16", "B/16", __name__, **DEIT_3)
DeiT3L16 = named_builder(ViT, "DeiT3L16", "L/16", __name__, **DEIT_3)
