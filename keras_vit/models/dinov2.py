"""DINOv2's backbones: exact GELU, a scale on each branch, optional registers, no head."""

from keras_vit.models.named import named_builder
from keras_vit.models.vit import ViT
from keras_vit.weights.names.source import IMAGENET_PREPROCESSING

# arXiv 2304.07193, appendix B. With registers (arXiv 2309.16588): num_registers=4.
DINOV2 = {
    "image_size": 518,
    "num_classes": 0,
    "layer_scale_init": 1e-5,
    "activation": "gelu",
    **IMAGENET_PREPROCESSING,
}

DINOv2S14 = named_builder(ViT, "DINOv2S14", "S/14", __name__, **DINOV2)
DINOv2B14 = named_builder(ViT, "DINOv2B14", "B/14", __name__, **DINOV2)
DINOv2L14 = named_builder(ViT, "DINOv2L14", "L/14", __name__, **DINOV2)
