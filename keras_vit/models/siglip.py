"""The image towers of SigLIP: attention pooling, no class token, no head."""

from keras_vit.models.named import named_builder
from keras_vit.models.vit import ViT

# arXiv 2303.15343, section 4.
SIGLIP = {"pooling": "map", "num_classes": 0}

SigLIPB16 = named_builder(ViT, "SigLIPB16", "B/16", __name__, **SIGLIP)
SigLIPL16 = named_builder(ViT, "SigLIPL16", "L/16", __name__, **SIGLIP)
SigLIPSO400M14 = named_builder(ViT, "SigLIPSO400M14", "SO400M/14", __name__, **SIGLIP)
