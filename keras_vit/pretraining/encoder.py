import keras
import numpy as np
from keras import ops

from keras_vit.layers import PatchDropout, PatchEmbedding, PositionEmbedding, PrefixTokens, TransformerBlock
from keras_vit.layers.patch_embedding import unfold
from keras_vit.models.preprocessing import normalization_of
from keras_vit.record import config_of


class Encoder:
    """Runs a plain ViT's own layers in their order, so that tokens can be changed on the way.

    A ViT of this package is a chain: images, a stem (normalization, and a ResNet in hybrids), `patch_embedding`, prefix
    tokens, positions, dropout, blocks, `norm`, and a head that pre-training leaves alone. Nothing is copied: these are
    the backbone's layers and weights. It is no layer itself, so that a model that holds it saves them once.

    Args:
        backbone: A ViT of this package's builders for images of a fixed size.

    Raises:
        ValueError: If the backbone is no such ViT, takes images of any size, or drops, merges or skips patches by
            itself, or its preprocessing is folded.
    """

    def __init__(self, backbone):
        layers = list(getattr(backbone, "layers", ()))
        start = next((i for i, layer in enumerate(layers) if isinstance(layer, PatchEmbedding)), None)
        blocks = [i for i, layer in enumerate(layers) if isinstance(layer, TransformerBlock)]
        if start is None or not blocks or not isinstance(backbone, keras.Model):
            raise ValueError(
                "Expected `backbone` to be a ViT of this package's builders, with layers patch_embedding, block_00, "
                f"... Received: {backbone!r}. Where one of its layers holds the ViT, pass that: model.get_layer(...)."
            )
        config = config_of(backbone)
        if config.any_size:
            raise ValueError(
                "Expected a `backbone` for images of a fixed size. Received: model "
                f"{backbone.name!r} with image_size=(None, None). Build it with an image_size; its weights load into "
                "one of any size."
            )
        dropped = [layer.name for layer in layers if isinstance(layer, PatchDropout)]
        if dropped:
            raise ValueError(
                f"Expected a `backbone` with patch_dropout_rate=0. Received: model {backbone.name!r} with a layer "
                f"{dropped[0]!r}, which would leave out patches that are to be predicted."
            )
        if any(layers[i].token_merging for i in blocks):
            raise ValueError(
                f"Expected a `backbone` with token_merging=0. Received: model {backbone.name!r}, which would have no "
                "token for each patch that is to be predicted. Its weights load into one that merges."
            )
        if layers[blocks[-1]].num_outputs is not None:
            raise ValueError(
                f"Expected a `backbone` with skip_unused_tokens=False. Received: model {backbone.name!r}, whose last "
                "block leaves out the patches that are to be predicted. Its weights load into one that does not."
            )
        self.normalization = normalization_of(backbone)
        if self.normalization.folded:
            raise ValueError(
                f"Expected a `backbone` that scales its images before its patches. Received: model {backbone.name!r}, "
                "whose preprocessing is folded, which is for inference."
            )
        self.patch_embedding = layers[start]
        # A user's own layers may follow. Where the pooled vector alone is normalised, no `norm` follows the blocks.
        own = config.block_names + ([] if config.norm_after_pooling else ["norm"])
        chain = [*layers[start + 1 : blocks[0]], *(layer for layer in layers if layer.name in own)]
        self.blocks = [layer for layer in chain if isinstance(layer, TransformerBlock)]
        self.token_layers = [layer for layer in chain if isinstance(layer, (PrefixTokens, PositionEmbedding))]
        self.block_layers = [layer for layer in chain if layer not in self.token_layers]
        self.stem = keras.Model(backbone.inputs[0], self.patch_embedding.input, name="stem")
        used = {id(v) for layer in (*self.stem.layers, self.patch_embedding, *chain) for v in layer.variables}
        self.unused_variables = [v for v in backbone.variables if id(v) not in used]
        self.num_prefix_tokens, self.hidden_dim = config.num_prefix_tokens, config.hidden_dim
        self.channels, self.grid = config.in_channels, config.grid
        if any(side % config.stride for side in config.image_size):
            raise ValueError(
                "Expected images that the ResNet below the patches divides into equal parts. Received: images of "
                f"{config.image_size[0]} x {config.image_size[1]} pixels and a ResNet that reduces them by "
                f"{config.stride}"
            )
        # In pixels of the image, whatever lies between.
        self.patch_size = tuple(config.stride * side for side in config.patch_size)
        self.num_patches = self.grid[0] * self.grid[1]

    @property
    def has_stem(self):
        """Whether there is a ResNet below the patches, through which pixels reach their neighbours' patches."""
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
        """Dropout, blocks and norm: of the same shape as the tokens."""
        for layer in self.block_layers:
            tokens = layer(tokens, training=training)
        return tokens

    def encode_patches(self, patches, training=None):
        """Encodes all patch embeddings and leaves the prefix tokens out, (batch, num_patches, hidden_dim)."""
        return self.run_blocks(self.add_positions(patches), training)[:, self.num_prefix_tokens :]

    def cut(self, images):
        """Flattened patches of pixels, (batch, num_patches, patch_height * patch_width * channels)."""
        return unfold(images, self.patch_size)

    def normalized(self, images):
        """Images as the backbone's blocks see them: what `preprocess_input` makes of raw ones, in float32."""
        return self.normalization(images)

    def raw(self, images):
        """Images of 0..255 again, the constants of the `normalization` layer undone, in float32."""
        images = ops.cast(images, "float32")
        return images if self.normalization.apply else self.normalization.denormalize(images)

    def raw_patches(self, patches):
        """Patches of 0..255 out of flattened normalised ones, in NumPy."""
        num_pixels = self.patch_size[0] * self.patch_size[1]
        offset, scale = (
            np.tile(np.broadcast_to(constants, self.channels), num_pixels)
            for constants in self.normalization.preprocessing.offset_and_scale
        )
        return patches * scale + offset
