"""The hybrids: a ResNet below a Vision Transformer, whose patches are cut out of its feature map."""

from keras_vit.models.named import named_builder
from keras_vit.models.vit import ViT

RViTTi16 = named_builder(ViT, "RViTTi16", "R+Ti/16", __name__)
R26ViTS32 = named_builder(ViT, "R26ViTS32", "R26+S/32", __name__)
R26ViTB32 = named_builder(ViT, "R26ViTB32", "R26+B/32", __name__)
R50ViTB16 = named_builder(ViT, "R50ViTB16", "R50+B/16", __name__)
R50ViTB32 = named_builder(ViT, "R50ViTB32", "R50+B/32", __name__)
R50ViTL32 = named_builder(ViT, "R50ViTL32", "R50+L/32", __name__)
