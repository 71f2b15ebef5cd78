"""Layers to build Vision Transformers with.

If an argument is out of range, the layer raises a ValueError that contains the name of the argument.
"""

from keras_vit.layers.attention import MultiHeadSelfAttention
from keras_vit.layers.attention_pooling import AttentionPooling
from keras_vit.layers.class_token import ClassToken
from keras_vit.layers.drop_path import DropPath
from keras_vit.layers.image_normalization import ImageNormalization
from keras_vit.layers.layer_scale import LayerScale
from keras_vit.layers.mlp import MLP
from keras_vit.layers.patch_dropout import PatchDropout
from keras_vit.layers.patch_embedding import PatchEmbedding, Patches
from keras_vit.layers.patch_map import PatchMap
from keras_vit.layers.position_embedding import PositionEmbedding
from keras_vit.layers.rotary_embedding import RotaryEmbedding
from keras_vit.layers.token_pooling import TokenPooling
from keras_vit.layers.transformer_block import TransformerBlock

__all__ = [
    "MLP",
    "AttentionPooling",
    "ClassToken",
    "DropPath",
    "ImageNormalization",
    "LayerScale",
    "MultiHeadSelfAttention",
    "PatchDropout",
    "PatchEmbedding",
    "PatchMap",
    "Patches",
    "PositionEmbedding",
    "RotaryEmbedding",
    "TokenPooling",
    "TransformerBlock",
]
__dir__ = __all__.copy
