import math

import keras
import numpy as np
from keras import ops

from keras_vit import arguments
from keras_vit.layers import PositionEmbedding, TransformerBlock
from keras_vit.pretraining import masking
from keras_vit.pretraining.masked_image_model import MaskedImageModel, dense, token_initializer


class MAE(MaskedImageModel):
    """Pre-trains a ViT as a masked autoencoder: it sees the visible patches alone, and a decoder predicts the others.

    After positions are added, 75% of the patches are left out, so that a step costs a fraction of a full one. A small
    decoder gets the encoder's tokens in their places, a learned mask token in all others, and fixed sine-cosine
    positions. Its target is the pixels of each patch, by default scaled to mean 0 and variance 1 within the patch. The
    loss is the mean squared difference over the masked patches.

    Compile this model with an optimizer and without a loss, and fit it on images; labels are ignored. `evaluate` gives
    the loss on new random masks, and `reconstruct` pictures of the predictions.

    `plain_model`, the given backbone, is trained in place, without its head and other layers that take no part. `save`,
    `export` and `keras.callbacks.ModelCheckpoint` write it alone; `save_weights` keeps all that a run needs to go on,
    also the optimizer and the state of the masks. Fine-tune the backbone as it is, put a new head on it,
    `keras.Model(backbone.input, keras.layers.Dense(10)(backbone.output))`, or load its weights into a ViT with another
    head or size: `keras_vit.save_weights(backbone, path)`, then `keras_vit.ViT(..., num_classes=10, weights=path)`.

    Args:
        backbone: A ViT of this package's builders, for images of a fixed size, with a head or without. Relative
            positions, which would count over gaps, and hybrids, whose ResNet sees pixels of masked patches, are
            refused.
        mask_ratio: Float in (0, 1), the share of the patches that is masked, rounded up.
        decoder_num_layers: Int, the number of decoder blocks.
        decoder_hidden_dim: Int, a multiple of 4, the width of the decoder; by default half of the encoder's, rounded up
            to a multiple of 32.
        decoder_num_heads: Int, the attention heads of a decoder block; by default one for each 32 channels.
        decoder_mlp_dim: Int, the hidden width of its MLP; by default four times its width.
        norm_pixels: Bool, whether the target is scaled within each patch.
        seed: Int or None, the random seed of the masks.

    Call arguments:
        images: (batch, height, width, channels), as the backbone takes them.
        training: Bool.
        hidden: The masked patches, as `draw` returns them; drawn anew by default.

    Returns:
        A dict: "prediction" in float32, (batch, num_patches, patch_height * patch_width * channels); "mask", (batch,
        num_patches), True for masked patches; "kept" and "restore" as in `masking.shuffle`.

    Raises:
        ValueError: If an argument is out of its range, or the backbone is not a plain ViT of a fixed size.

    Example:

    >>> backbone = keras_vit.ViT("Ti/16", image_size=64, num_layers=1, num_classes=0)
    >>> model = MAE(backbone, decoder_num_layers=1)
    >>> model.compile("adam")
    >>> history = model.fit(np.zeros((4, 64, 64, 3)), verbose=0)
    >>> backbone.predict(np.zeros((1, 64, 64, 3)), verbose=0).shape
    (1, 192)

    Reference: [arXiv 2111.06377](https://arxiv.org/abs/2111.06377). The paper's decoder has 8 blocks of width 512 for
    every encoder; its table 1 finds 4 blocks, and half the width, as good after fine-tuning. The variance within a
    patch is the unbiased one plus 1e-6, as in its official code.
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
        if any(block.attention.max_relative_distance is not None for block in encoder.blocks):
            raise ValueError(
                'Expected a `backbone` without position_embedding="relative", which would count over the patches that '
                f"are left out. Received: model {backbone.name!r}"
            )
        if encoder.is_hybrid:
            raise ValueError(
                "Expected a `backbone` without a ResNet below its patches, which would see pixels of masked ones. "
                f"Received: model {backbone.name!r}"
            )
        # 1 - 0.9 is a little less than 0.1 in binary.
        self.num_visible = int(encoder.num_patches * (1 - self.mask_ratio) + 1e-6)
        if not self.num_visible:
            raise ValueError(
                "Invalid value received for argument `mask_ratio`. Expected at least one visible patch of "
                f"{encoder.num_patches}. Received: {mask_ratio!r}"
            )
        if decoder_hidden_dim is None:
            decoder_hidden_dim = 32 * math.ceil(encoder.hidden_dim / 64)
        width = arguments.positive_int("decoder_hidden_dim", decoder_hidden_dim)
        if decoder_num_heads is None:
            decoder_num_heads = max(1, width // 32)
        num_heads = arguments.positive_int("decoder_num_heads", decoder_num_heads)
        mlp_dim = arguments.positive_int("decoder_mlp_dim", 4 * width if decoder_mlp_dim is None else decoder_mlp_dim)
        num_layers = arguments.positive_int("decoder_num_layers", decoder_num_layers)
        self.norm_pixels = bool(norm_pixels)

        policy = {"dtype": self.dtype_policy}
        length = encoder.num_prefix_tokens + encoder.num_patches
        self.mask_token = self.add_weight(name="mask_token", shape=(1, 1, width), initializer=token_initializer())
        self.decoder_embedding = dense(width, name="decoder_embedding", **policy)
        self.decoder_embedding.build((None, None, encoder.hidden_dim))
        self.decoder_positions = PositionEmbedding(
            encoder.grid_size,
            method="sincos2d",
            num_prefix_tokens=encoder.num_prefix_tokens,
            name="decoder_positions",
            **policy,
        )
        self.decoder_blocks = [
            TransformerBlock(num_heads, mlp_dim, name=f"decoder_block_{i:02d}", **policy) for i in range(num_layers)
        ]
        self.decoder_norm = keras.layers.LayerNormalization(epsilon=1e-6, name="decoder_norm", **policy)
        for layer in (self.decoder_positions, *self.decoder_blocks, self.decoder_norm):
            layer.build((None, length, width))
        self.head = dense(encoder.patch_dim, dtype="float32", name="pixel_head")
        self.head.build((None, length, width))
        self.built = True

    def draw(self, batch_size, seed):
        kept, restore, mask = masking.shuffle(batch_size, self.encoder.num_patches, self.num_visible, seed)
        return {"mask": mask, "kept": kept, "restore": restore}

    def encode(self, images, hidden, training=None):
        """Encodes the visible patches alone, (batch, prefix tokens + num_visible, hidden_dim)."""
        encoder = self.encoder
        tokens = encoder.add_positions(encoder.embed(images, training))
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
        """The target of the decoder, (batch, num_patches, patch_height * patch_width * channels), in float32."""
        patches = self.encoder.cut(self.encoder.normalized(images))
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
            # The mean and the spread within a patch are the original's: they are not predicted.
            moments = _moments(self.encoder.cut(self.encoder.normalized(images)))
            mean, variance = (ops.convert_to_numpy(m) for m in moments)
            patches = patches * np.sqrt(variance + 1e-6) + mean
        return self.encoder.raw_patches(patches)


def _moments(patches):
    """Mean and unbiased variance of each patch."""
    mean = ops.mean(patches, axis=-1, keepdims=True)
    squares = ops.sum(ops.square(patches - mean), axis=-1, keepdims=True)
    return mean, squares / max(patches.shape[-1] - 1, 1)
