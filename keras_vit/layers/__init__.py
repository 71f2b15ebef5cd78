"""Layers of all models. Arguments out of range raise a ValueError that names them."""

from keras_vit.layers.attention import MultiHeadSelfAttention
from keras_vit.layers.attention_pooling import AttentionPooling
from keras_vit.layers.bottleneck import Bottleneck
from keras_vit.layers.class_token import ClassToken, PrefixTokens
from keras_vit.layers.dense import Dense
from keras_vit.layers.drop_path import DropPath
from keras_vit.layers.filter_tokenizer import FilterTokenizer
from keras_vit.layers.group_normalization import GroupNormalization
from keras_vit.layers.image_normalization import ImageNormalization
from keras_vit.layers.inverted_bottleneck import InvertedBottleneck
from keras_vit.layers.layer_scale import LayerScale
from keras_vit.layers.mbconv import MBConv
from keras_vit.layers.mlp import MLP
from keras_vit.layers.patch_dropout import PatchDropout
from keras_vit.layers.patch_embedding import PatchEmbedding, Patches
from keras_vit.layers.patch_map import PatchMap
from keras_vit.layers.position_embedding import PositionEmbedding
from keras_vit.layers.recurrent_tokenizer import RecurrentTokenizer
from keras_vit.layers.relative_attention import RelativeAttention
from keras_vit.layers.relative_transformer_block import RelativeTransformerBlock
from keras_vit.layers.resnet_block import ResNetBlock
from keras_vit.layers.rotary_embedding import RotaryEmbedding
from keras_vit.layers.squeeze_excitation import SqueezeExcitation
from keras_vit.layers.standardized_conv import StandardizedConv2D
from keras_vit.layers.symmetric_max_pooling import SymmetricMaxPooling2D
from keras_vit.layers.token_pooling import TokenPooling
from keras_vit.layers.token_projector import TokenProjector
from keras_vit.layers.token_transformer import TokenTransformer
from keras_vit.layers.transformer_block import TransformerBlock
from keras_vit.layers.vt_module import VTModule

__all__ = [
    "MLP",
    "AttentionPooling",
    "Bottleneck",
    "ClassToken",
    "Dense",
    "DropPath",
    "FilterTokenizer",
    "GroupNormalization",
    "ImageNormalization",
    "InvertedBottleneck",
    "LayerScale",
    "MBConv",
    "MultiHeadSelfAttention",
    "PatchDropout",
    "PatchEmbedding",
    "PatchMap",
    "Patches",
    "PositionEmbedding",
    "PrefixTokens",
    "RecurrentTokenizer",
    "RelativeAttention",
    "RelativeTransformerBlock",
    "ResNetBlock",
    "RotaryEmbedding",
    "SqueezeExcitation",
    "StandardizedConv2D",
    "SymmetricMaxPooling2D",
    "TokenPooling",
    "TokenProjector",
    "TokenTransformer",
    "TransformerBlock",
    "VTModule",
]
