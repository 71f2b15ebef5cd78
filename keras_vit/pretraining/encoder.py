import keras
import numpy as np
from keras import ops

from keras_vit.layers import PatchDropout, PatchEmbedding, PositionEmbedding, PrefixTokens, TransformerBlock
from keras_vit.layers.patch_embedding import unfold
from keras_vit.models.preprocessing import normalization_of
from keras_vit.record import config_of


class Encoder:
    """Runs a ViT's own layers in their order, so that tokens can be changed in between.

    A ViT of this package is a chain: images, a stem (normalization, and a ResNet in hybrids), `patch_embedding`, prefix
    tokens, positions, dropout, blocks, `norm`, and a head, which pre-training does not use. It is not a layer, so that
    a model that holds it saves the weights once.
    """

    def __init__(self, backbone):
        layers = list(getattr(backbone, "layers", ()))
        start = next((i for i, layer in enumerate(layers) if isinstance(layer, PatchEmbedding)), None)
        blocks = [i for i, layer in enumerate(layers) if isinstance(layer, TransformerBlock)]
        if start is None or not blocks or not isinstance(backbone, keras.Model):
            raise ValueError(
                "Expected `backbone` to be a ViT of this package's builders, with layers patch_embedding, block_00, "
                f"... Received: {backbone!r}. If one of its layers holds the ViT, pass that: model.get_layer(...)."
            )
        self.backbone = backbone
        self.patch_embedding = layers[start]
        self.normalization = normalization_of(backbone)
        config = config_of(backbone)
        # The user's own layers may follow. If the pooled vector is normalised, there is no `norm` after the blocks.
        own = config.block_names + ([] if config.norm_after_pooling else ["norm"])
        chain = [*layers[start + 1 : blocks[0]], *(layer for layer in layers if layer.name in own)]
        self.blocks = [layer for layer in chain if isinstance(layer, TransformerBlock)]
        self._check(config, any(isinstance(layer, PatchDropout) for layer in layers))
        self.token_layers = [layer for layer in chain if isinstance(layer, (PrefixTokens, PositionEmbedding))]
        self.block_layers = [layer for layer in chain if layer not in self.token_layers]
        self.stem = keras.Model(backbone.inputs[0], self.patch_embedding.input, name="stem")
        self.model = keras.Model(backbone.inputs[0], chain[-1].output, name="encoder")
        self.num_prefix_tokens, self.hidden_dim = config.num_prefix_tokens, config.hidden_dim
        self.channels, self.grid_size = config.in_channels, config.grid
        # In pixels of the image, also in hybrids.
        self.patch_size = tuple(config.stride * side for side in config.patch_size)
        self.num_patches = self.grid_size[0] * self.grid_size[1]

    def _check(self, config, has_patch_dropout):
        refused = (
            (
                config.any_size,
                "for images of a fixed size",
                "takes any size. Build it with an image_size; its weights load into a ViT of any size",
            ),
            (
                has_patch_dropout,
                "with patch_dropout_rate=0",
                "would leave out patches that are to be predicted",
            ),
            (
                any(block.token_merging for block in self.blocks),
                "with token_merging=0",
                "would not have a token for each patch. Its weights load into a ViT that merges tokens",
            ),
            (
                self.blocks[-1].num_outputs is not None,
                "with skip_unused_tokens=False",
                "leaves the patches out of its last block. Its weights load into a ViT that does so",
            ),
            (
                self.normalization.folded,
                "that scales its images before its patches",
                "whose preprocessing is folded, which is for inference",
            ),
            (
                not config.any_size and any(side % config.stride for side in config.image_size),
                "whose ResNet divides into equal parts the images that it takes",
                f"takes images of {config.image_size} pixels and reduces them by {config.stride}",
            ),
        )
        for is_so, expected, received in refused:
            if is_so:
                raise ValueError(
                    f"Expected a `backbone` {expected}. Received: model {self.backbone.name!r}, {received}."
                )

    @property
    def has_stem(self):
        """Whether there is a ResNet below the patches, which mixes the pixels of neighbouring patches."""
        return bool(self.stem.variables)

    def embed(self, images, training=None):
        """Patch embeddings of images, (batch, num_patches, hidden_dim), without positions."""
        return self.patch_embedding(self.stem(images, training=training))

    def add_positions(self, patches):
        """Puts the prefix tokens before patches and adds positions, (batch, prefix + num_patches, hidden_dim)."""
        for layer in self.token_layers:
            patches = layer(patches)
        return patches

    def run_blocks(self, tokens, training=None):
        """Dropout, blocks and norm, of the same shape as the tokens."""
        for layer in self.block_layers:
            tokens = layer(tokens, training=training)
        return tokens

    def encode_patches(self, patches, training=None):
        """Encodes all patch embeddings, without the prefix tokens: (batch, num_patches, hidden_dim)."""
        return self.run_blocks(self.add_positions(patches), training)[:, self.num_prefix_tokens :]

    def cut(self, images):
        """Flattened patches of pixels, (batch, num_patches, patch_height * patch_width * channels)."""
        return unfold(images, self.patch_size)

    def normalized(self, images):
        """The images after the backbone's preprocessing, in float32."""
        return self.normalization(images)

    def raw(self, images):
        """The images as 0..255, in float32."""
        images = ops.cast(images, "float32")
        return images if self.normalization.apply else self.normalization.denormalize(images)

    def raw_patches(self, patches):
        """Flattened normalised patches as 0..255, in NumPy."""
        num_pixels = self.patch_size[0] * self.patch_size[1]
        offset, scale = (
            np.tile(np.broadcast_to(constants, self.channels), num_pixels)
            for constants in self.normalization.preprocessing.offset_and_scale
        )
        return patches * scale + offset
