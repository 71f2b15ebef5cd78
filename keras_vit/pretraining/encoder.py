import math

import keras
import numpy as np

from keras_vit.config import config_of
from keras_vit.layers import PositionEmbedding, RotaryEmbedding
from keras_vit.layers.class_token import PrefixTokens
from keras_vit.layers.patch_embedding import unfold
from keras_vit.models.backbone import find_blocks
from keras_vit.prediction.features import check_every_patch
from keras_vit.prediction.preprocessing import require_normalization


class Encoder:
    """Runs the layers of a ViT one by one. It is not a layer, so that the weights are saved only once."""

    def __init__(self, backbone):
        self.blocks = find_blocks(backbone, "vit")
        layers, embedding = backbone.layers, backbone.get_layer("patch_embedding")
        self.backbone = backbone
        self.normalization = require_normalization(backbone)
        config = config_of(backbone)
        # Custom layers may follow this chain. With norm_after_pooling, there is no `norm` after the blocks.
        tokens = layers[layers.index(embedding) + 1 : layers.index(self.blocks[0])]
        self.rotary = next((layer for layer in tokens if isinstance(layer, RotaryEmbedding)), None)
        tokens = [layer for layer in tokens if layer is not self.rotary]
        chain = [*tokens, *self.blocks, *([] if config.norm_after_pooling else [backbone.get_layer("norm")])]
        if config.any_size or any(side % config.stride for side in config.image_size):
            received = f"model {backbone.name!r} for images of {config.image_size} pixels, with stride {config.stride}"
            expected = "images of a fixed size, with image sides divisible by the ResNet's stride"
            raise ValueError(f"Expected a `backbone` for {expected}. Received: {received}")
        if self.normalization.folded:
            raise ValueError(f"Expected a `backbone` without folded preprocessing. Received: model {backbone.name!r}")
        check_every_patch(backbone, self.blocks)
        self.token_layers = [layer for layer in chain if isinstance(layer, (PrefixTokens, PositionEmbedding))]
        self.block_layers = [layer for layer in chain if layer not in self.token_layers]
        # This model maps images to patch embeddings without positions.
        self.embedding = keras.Model(backbone.inputs[0], embedding.output, name="embedding")
        self.model = keras.Model(backbone.inputs[0], chain[-1].output, name="encoder")
        self.dtype_policy = embedding.dtype_policy
        self.is_hybrid = config.stages is not None
        self.num_prefix_tokens, self.hidden_dim = config.num_prefix_tokens, config.hidden_dim
        self.channels, self.grid_size = config.in_channels, config.grid
        # The unit is image pixels, also for hybrids.
        self.patch_size = tuple(config.stride * side for side in config.patch_size)
        self.patch_dim = math.prod(self.patch_size) * self.channels
        self.num_patches = math.prod(self.grid_size)

    def add_positions(self, patches):
        """Prepends the prefix tokens and adds positions: (batch, prefix + num_patches, hidden_dim)."""
        for layer in self.token_layers:
            patches = layer(patches)
        return patches

    def run_blocks(self, tokens, training=None):
        """Applies dropout, blocks and norm; keeps the shape."""
        inputs = {} if self.rotary is None else {"rotary": self.rotary.angles(self.grid_size)}
        for layer in self.block_layers:
            tokens = layer(tokens, training=training, **(inputs if layer in self.blocks else {}))
        return tokens

    def encode_patches(self, patches, training=None):
        """Encodes all patch embeddings; drops the prefix tokens: (batch, num_patches, hidden_dim)."""
        return self.run_blocks(self.add_positions(patches), training)[:, self.num_prefix_tokens :]

    def cut(self, images):
        """Splits images into flattened patches, (batch, num_patches, patch_dim)."""
        return unfold(images, self.patch_size)

    def raw_patches(self, patches):
        """Converts flattened normalised patches to pixels in [0, 255], as NumPy."""
        constants = self.normalization.preprocessing.offset_and_scale
        offset, scale = (np.resize(np.broadcast_to(c, self.channels), self.patch_dim) for c in constants)
        return patches * scale + offset
