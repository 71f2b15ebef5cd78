import math

import keras
import numpy as np
from keras import ops

from keras_vit import arguments
from keras_vit.pretraining import masking
from keras_vit.pretraining.masked_image_model import MaskedImageModel

BITS = 3
LEVELS = 2**BITS


class MaskedPatchPrediction(MaskedImageModel):
    """Pre-trains a ViT by predicting the mean colour of corrupted patches, as in the ViT paper.

    50% of the patch embeddings are corrupted before positions are added. 80% of the corrupted patches are masked
    (replaced by a learned mask embedding), 10% are swapped (replaced by the embedding of another patch), and 10% are
    kept unchanged. The model predicts the mean colour of each corrupted patch with 3 bits per channel, which makes 512
    classes for 3 channels. With more than 3 channels, it classifies each channel into 8 levels. The loss is the mean
    cross-entropy over corrupted patches.

    Training and saving work as in `MAE`. Calling the model returns a dict:

    - "prediction": float32 logits, (batch, num_patches, 1, 8 ** channels). With more than 3 channels, the shape is
      (batch, num_patches, channels, 8).
    - "mask": (batch, num_patches), True for corrupted patches.
    - "kind": (batch, num_patches), 0 for patches that are not corrupted, 1 for masked, 2 for swapped and 3 for kept.
    - "source": (batch, num_patches), the index of the patch that replaces a swapped patch.

    Args:
        backbone: As in `SimMIM`. Colours are computed from the images before normalization.
        mask_ratio: Float in (0, 1), the fraction of corrupted patches. If this fraction is not a whole number of
            patches, the number of corrupted patches is rounded up or down at random for each image.
        masked_share: Float in [0, 1], the fraction of corrupted patches that are masked.
        swapped_share: Float in [0, 1], the fraction of corrupted patches that are swapped. The remaining corrupted
            patches are kept.
        seed: Int or None, the random seed of the corruption.

    Raises:
        ValueError: If an argument is out of range, or the backbone is not supported.

    Example:
    >>> backbone = keras_vit.ViT("Ti/16", image_size=32, num_layers=1, num_classes=0)
    >>> model = MaskedPatchPrediction(backbone)
    >>> model.compile("adam")
    >>> history = model.fit(np.zeros((4, 32, 32, 3)), verbose=0)

    Reference: [arXiv 2010.11929](https://arxiv.org/abs/2010.11929), appendix B.1.2. The 3 bits are the highest bits of
    the mean of 8-bit pixels. All images have the same number of corrupted patches up to rounding, as in BERT (arXiv
    1810.04805).
    """

    def __init__(
        self,
        backbone: keras.Model,
        mask_ratio: float = 0.5,
        masked_share: float = 0.8,
        swapped_share: float = 0.1,
        seed: int | None = None,
        **kwargs,
    ):
        super().__init__(backbone, mask_ratio=mask_ratio, seed=seed, **kwargs)
        shares = [arguments.number("masked_share", masked_share), arguments.number("swapped_share", swapped_share)]
        if min(shares) < 0 or sum(shares) > 1 + 1e-6:
            expected = "`masked_share` and `swapped_share` of at least 0 and together at most 1"
            raise ValueError(f"Expected {expected}. Received: {masked_share=}, {swapped_share=}")
        self.masked_share, self.swapped_share = shares
        if self.encoder.num_patches < 2:
            raise ValueError("Expected a `backbone` of at least 2 patches. Received: 1 patch")
        channels = self.encoder.channels
        # The logits of a patch have the shape (number of predicted values, number of classes).
        self.head_shape = (1, LEVELS**channels) if channels <= 3 else (channels, LEVELS)
        self.add_linear_head(self.head_shape[0] * self.head_shape[1], "colour_head")

    def draw(self, batch_size, seed):
        kind, source = masking.corruption(
            batch_size, self.encoder.num_patches, seed, self.mask_ratio, self.masked_share, self.swapped_share
        )
        return {"mask": kind != masking.UNTOUCHED, "kind": kind, "source": source}

    def predict_hidden(self, images, hidden, training=None):
        patches = self.corrupt(self.encoder.embedding(images, training=training), hidden)
        logits = self.head(self.encoder.encode_patches(patches, training))
        return ops.reshape(logits, (-1, self.encoder.num_patches, *self.head_shape))

    def corrupt(self, patches, hidden):
        """Returns the corrupted patch embeddings, (batch, num_patches, hidden_dim)."""
        others = ops.take_along_axis(patches, hidden["source"][:, :, None], axis=1)
        kind = hidden["kind"][:, :, None]
        patches = ops.where(kind == masking.SWAPPED, others, patches)
        return ops.where(kind == masking.MASKED, ops.cast(self.mask_token, patches.dtype), patches)

    def colours(self, images):
        """Returns the int32 classes of the mean colours, with the shape of "prediction" without its last axis."""
        encoder = self.encoder
        patches = encoder.cut(encoder.normalization.raw_images(images))
        patches = ops.reshape(patches, (-1, encoder.num_patches, math.prod(encoder.patch_size), encoder.channels))
        # Round the pixels, because sums of whole numbers have no rounding errors that could change a class.
        pixels = ops.clip(ops.round(patches), 0, 255)
        mean = ops.sum(pixels, axis=2) / pixels.shape[2]
        levels = ops.cast(ops.floor(mean / (256 // LEVELS)), "int32")
        if self.head_shape[0] > 1:
            return levels
        weights = LEVELS ** np.arange(encoder.channels - 1, -1, -1, dtype="int32")
        return ops.sum(levels * ops.convert_to_tensor(weights, "int32"), axis=-1, keepdims=True)

    def prediction_loss(self, images, outputs):
        losses = ops.sparse_categorical_crossentropy(self.colours(images), outputs["prediction"], from_logits=True)
        mask = ops.cast(outputs["mask"], "float32")
        return ops.sum(ops.mean(losses, axis=-1) * mask) / ops.maximum(ops.sum(mask), 1.0)

    def masked_pixels(self, patches, outputs):
        kind = outputs["kind"][..., None]
        others = np.take_along_axis(patches, outputs["source"][..., None], axis=1)
        return np.where(kind == masking.MASKED, 127.5, np.where(kind == masking.SWAPPED, others, patches))

    def predicted_pixels(self, images, outputs):
        levels = outputs["prediction"].argmax(axis=-1)
        if self.head_shape[0] == 1:
            shifts = LEVELS ** np.arange(self.encoder.channels - 1, -1, -1)
            levels = levels // shifts % LEVELS
        # Show the colour in the middle of the predicted level.
        colours = (levels + 0.5) * (256 // LEVELS)
        return np.tile(colours, (1, 1, math.prod(self.encoder.patch_size)))
