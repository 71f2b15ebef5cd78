import math

import keras
import numpy as np
from keras import ops

from keras_vit import arguments
from keras_vit.config import config_of
from keras_vit.layers import PositionEmbedding, TransformerBlock
from keras_vit.layers.layer_norm import LayerNorm
from keras_vit.pretraining import masking
from keras_vit.pretraining.masked_image_model import MaskedImageModel, dense, token_initializer


class MAE(MaskedImageModel):
    """Pre-trains a ViT without labels as a masked autoencoder (MAE).

    The ViT is the encoder. It gets only the visible patches: after positions are added, 75% of the patches are dropped.
    A small decoder gets the encoded visible patches, a learned mask token in place of each masked patch, and fixed
    sine-cosine positions. The decoder predicts the pixels of each patch, by default normalised per patch. The loss is
    the mean squared error on masked patches.

    Compile with an optimizer and no loss, and fit on images. Labels are ignored. `evaluate` returns the loss with new
    random masks, and `reconstruct` returns pictures of the predictions. Calling the model on images returns a dict:

    - "prediction": float32 (batch, num_patches, patch_height * patch_width * channels).
    - "mask": (batch, num_patches), True for masked patches.
    - "kept": (batch, num_visible), the indices of the visible patches, in random order.
    - "restore": (batch, num_patches), the position of each patch in a random order of all patches. This order starts
      with the visible patches.

    `plain_model` is the backbone, which is trained in place except for its head. `save`, `export` and
    `keras.callbacks.ModelCheckpoint` write only the backbone. `save_weights` writes all weights, the optimizer and the
    random state. To fine-tune, add a head to the backbone:
    `keras.Model(backbone.input, keras.layers.Dense(10)(backbone.output))`. To change the image size or the head, write
    the backbone with `keras_vit.save_weights(backbone, path)` and load it with `keras_vit.ViT(..., weights=path)`.

    Args:
        backbone: A ViT of this package for a fixed image size. Hybrids (a ResNet followed by a ViT) are not supported,
            because their ResNet would process the masked pixels. Relative and rotary positions are not supported.
        mask_ratio: Float in (0, 1), the fraction of masked patches. The number of masked patches is rounded up.
        decoder_num_layers: Int, the number of decoder blocks.
        decoder_hidden_dim: Int, a multiple of 4, the decoder's width. None uses half the encoder's width, rounded up
            to a multiple of 32.
        decoder_num_heads: Int, the number of heads in the decoder. None uses one head per 32 channels.
        decoder_mlp_dim: Int, the width of the hidden layer of the decoder's MLPs. None uses 4 * decoder_hidden_dim.
        norm_pixels: Bool, whether the decoder predicts pixels that are normalised to mean 0 and variance 1 per patch.
        seed: Int or None, the random seed of the masks.

    Raises:
        ValueError: If an argument is out of range, or the backbone is not supported.

    Example:
    >>> backbone = keras_vit.ViT("Ti/16", image_size=64, num_layers=1, num_classes=0)
    >>> model = MAE(backbone, decoder_num_layers=1)
    >>> model.compile("adam")
    >>> history = model.fit(np.zeros((4, 64, 64, 3)), verbose=0)
    >>> backbone.predict(np.zeros((1, 64, 64, 3)), verbose=0).shape
    (1, 192)

    Reference: [arXiv 2111.06377](https://arxiv.org/abs/2111.06377). The paper's decoder has 8 blocks of width 512.
    According to table 1, 4 blocks or half the width give the same accuracy after fine-tuning. As in the official code,
    `norm_pixels` divides by the square root of the unbiased variance plus 1e-6.
    """

    def __init__(
        self,
        backbone: keras.Model,
        mask_ratio: float = 0.75,
        decoder_num_layers: int = 4,
        decoder_hidden_dim: int | None = None,
        decoder_num_heads: int | None = None,
        decoder_mlp_dim: int | None = None,
        norm_pixels: bool = True,
        seed: int | None = None,
        **kwargs,
    ):
        super().__init__(backbone, mask_ratio=mask_ratio, seed=seed, **kwargs)
        encoder = self.encoder
        if encoder.is_hybrid or config_of(backbone).has_positions_in_blocks:
            expected = "a `backbone` without relative or rotary positions and without a ResNet before its patches"
            raise ValueError(f"Expected {expected}. Received: model {backbone.name!r}")
        # Add 1e-6, because 1 - 0.9 is slightly below 0.1 in floating point.
        self.num_visible = int(encoder.num_patches * (1 - self.mask_ratio) + 1e-6)
        if not self.num_visible:
            expected = f"a fraction that leaves at least 1 of {encoder.num_patches} patches visible"
            raise arguments.invalid("mask_ratio", expected, mask_ratio)

        def size(name, value, default=None):
            return arguments.positive_int(f"decoder_{name}", default if value is None else value)

        num_layers = size("num_layers", decoder_num_layers)
        width = size("hidden_dim", decoder_hidden_dim, 32 * math.ceil(encoder.hidden_dim / 64))
        num_heads = size("num_heads", decoder_num_heads, max(1, width // 32))
        mlp_dim = size("mlp_dim", decoder_mlp_dim, 4 * width)
        self.norm_pixels = arguments.boolean("norm_pixels", norm_pixels)
        policy = {"dtype": self.dtype_policy}
        length = encoder.num_prefix_tokens + encoder.num_patches
        self.mask_token = self.add_weight(name="mask_token", shape=(1, 1, width), initializer=token_initializer())
        self.decoder_embedding = dense(width, name="decoder_embedding", **policy)
        self.decoder_embedding.build((None, None, encoder.hidden_dim))
        options = {"num_prefix_tokens": encoder.num_prefix_tokens, "name": "decoder_positions", **policy}
        self.decoder_positions = PositionEmbedding(encoder.grid_size, method="sincos2d", **options)
        self.decoder_blocks = [
            TransformerBlock(num_heads, mlp_dim, name=f"decoder_block_{i:02d}", **policy) for i in range(num_layers)
        ]
        self.decoder_norm = LayerNorm(epsilon=1e-6, name="decoder_norm", **policy)
        for layer in (self.decoder_positions, *self.decoder_blocks, self.decoder_norm):
            layer.build((None, length, width))
        self.head = dense(encoder.patch_dim, dtype="float32", name="pixel_head")
        self.head.build((None, length, width))
        self.built = True

    def draw(self, batch_size, seed):
        kept, restore, mask = masking.shuffle(batch_size, self.encoder.num_patches, self.num_visible, seed)
        return {"mask": mask, "kept": kept, "restore": restore}

    def encode(self, images, hidden, training=None):
        """Returns the encoded prefix tokens and visible patches, (batch, prefix tokens + num_visible, hidden_dim)."""
        encoder = self.encoder
        tokens = encoder.add_positions(encoder.embedding(images, training=training))
        prefix, patches = tokens[:, : encoder.num_prefix_tokens], tokens[:, encoder.num_prefix_tokens :]
        patches = ops.take_along_axis(patches, hidden["kept"][:, :, None], axis=1)
        return encoder.run_blocks(ops.concatenate([prefix, patches], axis=1), training)

    def predict_hidden(self, images, hidden, training=None):
        num_prefix = self.encoder.num_prefix_tokens
        tokens = self.decoder_embedding(self.encode(images, hidden, training))
        shape = (ops.shape(images)[0], self.encoder.num_patches - self.num_visible, tokens.shape[-1])
        masked = ops.broadcast_to(ops.cast(self.mask_token, tokens.dtype), shape)
        patches = ops.concatenate([tokens[:, num_prefix:], masked], axis=1)
        patches = ops.take_along_axis(patches, hidden["restore"][:, :, None], axis=1)
        tokens = self.decoder_positions(ops.concatenate([tokens[:, :num_prefix], patches], axis=1))
        for block in self.decoder_blocks:
            tokens = block(tokens, training=training)
        return self.head(self.decoder_norm(tokens)[:, num_prefix:])

    def targets(self, images):
        """Returns the pixels to predict, float32 (batch, num_patches, patch_height * patch_width * channels)."""
        patches = self.encoder.cut(self.encoder.normalization(images))
        if not self.norm_pixels:
            return patches
        mean, variance = _moments(patches)
        return (patches - mean) / ops.sqrt(variance + 1e-6)

    def prediction_loss(self, images, outputs):
        squares = ops.mean(ops.square(outputs["prediction"] - self.targets(images)), axis=-1)
        mask = ops.cast(outputs["mask"], "float32")
        return ops.sum(squares * mask) / ops.sum(mask)

    def predicted_pixels(self, images, outputs):
        patches = outputs["prediction"]
        if self.norm_pixels:
            # Predictions are normalized per patch, so undo this with the mean and variance of the original patches.
            moments = _moments(self.encoder.cut(self.encoder.normalization(images)))
            mean, variance = (ops.convert_to_numpy(m) for m in moments)
            patches = patches * np.sqrt(variance + 1e-6) + mean
        return self.encoder.raw_patches(patches)


def _moments(patches):
    """Returns mean and unbiased variance per patch."""
    mean = ops.mean(patches, axis=-1, keepdims=True)
    squares = ops.sum(ops.square(patches - mean), axis=-1, keepdims=True)
    return mean, squares / max(patches.shape[-1] - 1, 1)
