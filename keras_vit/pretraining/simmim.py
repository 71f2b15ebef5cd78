import math

import keras
from keras import ops

from keras_vit import arguments
from keras_vit.pretraining import masking
from keras_vit.pretraining.masked_image_model import MaskedImageModel


class SimMIM(MaskedImageModel):
    """Pre-trains a ViT by predicting the pixels of masked squares with a linear head.

    The image is divided into squares, and 60% of the squares are masked: a learned mask token replaces the embeddings
    of the patches in these squares before positions are added. The loss is the mean absolute error of the normalised
    pixels in masked patches. In hybrids (a ResNet followed by a ViT), the ResNet processes the masked pixels, so some
    information leaks to neighbouring patches. Training and saving work as in `MAE`. Calling the model returns a dict of
    "prediction" and "mask", as in `MAE`.

    Args:
        backbone: A ViT of this package for a fixed image size.
        mask_ratio: Float in (0, 1), the fraction of masked squares. The number of masked squares is rounded up, and at
            least one square must stay visible.
        mask_unit: Int or (height, width), the size of a square in pixels, a multiple of the patch size. Squares at the
            right and bottom of the image may be cut off. None uses 32 pixels, or a quarter of the image if this is
            smaller. This size is rounded down to whole patches, but not to less than one patch.
        seed: Int or None, the random seed of the masks.

    Raises:
        ValueError: If an argument is out of range, the mask hides the whole image, or the backbone is not supported.

    Example:
    >>> backbone = keras_vit.ViT("Ti/16", image_size=64, num_layers=1, num_classes=0)
    >>> model = SimMIM(backbone)
    >>> model.compile("adam")
    >>> history = model.fit(np.zeros((4, 64, 64, 3)), verbose=0)

    Reference: [arXiv 2111.09886](https://arxiv.org/abs/2111.09886). As in the official code, the loss is divided by the
    number of masked pixels plus 1e-5, then by the number of channels. The official code does not cut off squares at
    the edges.
    """

    def __init__(
        self,
        backbone: keras.Model,
        mask_ratio: float = 0.6,
        mask_unit: int | tuple[int, int] | None = None,
        seed: int | None = None,
        **kwargs,
    ):
        super().__init__(backbone, mask_ratio=mask_ratio, seed=seed, **kwargs)
        patch_size, grid = self.encoder.patch_size, self.encoder.grid_size
        if mask_unit is None:
            patches = [max(1, min(32 // p, side // 4)) for p, side in zip(patch_size, grid, strict=True)]
            mask_unit = tuple(n * p for n, p in zip(patches, patch_size, strict=True))
        self.mask_unit = arguments.pair("mask_unit", mask_unit)
        if any(side % patch for side, patch in zip(self.mask_unit, patch_size, strict=True)):
            expected = f"whole patches, which are {patch_size[0]} x {patch_size[1]} pixels"
            raise arguments.invalid("mask_unit", expected, mask_unit)
        sides = zip(grid, patch_size, self.mask_unit, strict=True)
        squares = math.prod(-(-side * patch // unit) for side, patch, unit in sides)
        if math.ceil(squares * self.mask_ratio - 1e-9) >= squares:
            expected = f"smaller squares, because mask_ratio={mask_ratio} hides all {squares} squares of the image"
            raise arguments.invalid("mask_unit", expected, mask_unit)
        self.add_linear_head(self.encoder.patch_dim, "pixel_head")

    def draw(self, batch_size, seed):
        unit = [side // patch for side, patch in zip(self.mask_unit, self.encoder.patch_size, strict=True)]
        return {"mask": masking.unit_mask(batch_size, self.encoder.grid_size, unit, self.mask_ratio, seed)}

    def predict_hidden(self, images, hidden, training=None):
        patches = self.encoder.embedding(images, training=training)
        patches = ops.where(hidden["mask"][:, :, None], ops.cast(self.mask_token, patches.dtype), patches)
        return self.head(self.encoder.encode_patches(patches, training))

    def prediction_loss(self, images, outputs):
        targets = self.encoder.cut(self.encoder.normalization(images))
        mask = ops.cast(outputs["mask"], "float32")
        channels = self.encoder.channels
        num_pixels = ops.sum(mask) * (targets.shape[-1] // channels)
        differences = ops.sum(ops.abs(outputs["prediction"] - targets), axis=-1)
        return ops.sum(differences * mask) / (num_pixels + 1e-5) / channels

    def predicted_pixels(self, images, outputs):
        return self.encoder.raw_patches(outputs["prediction"])
