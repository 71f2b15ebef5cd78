import keras
from keras import ops

from keras_vit import arguments
from keras_vit.pretraining import masking
from keras_vit.pretraining.masked_image_model import MaskedImageModel


class SimMIM(MaskedImageModel):
    """Pre-trains a ViT by the pixels of masked squares, predicted by one linear layer.

    60% of the squares of 32 x 32 pixels are masked: the embeddings of their patches become a learned mask token before
    positions are added. A linear head predicts the pixels of each patch, after normalization, from the encoder's
    output. The loss is the mean absolute difference over the masked pixels. In hybrids the ResNet below the patches
    sees the masked pixels, and passes some of them on to their neighbours.

    How it is trained and saved, its call and its "prediction" and "mask" are described in `MAE`.

    Args:
        backbone: A ViT of this package's builders, for images of a fixed size, with a head or without.
        mask_ratio: Float in (0, 1), the share of the squares that is masked.
        mask_unit: Int or (height, width), the size of a square in pixels, whole patches. Squares at the right and
            bottom that do not fit are cut off. For small images take about a quarter of their size.
        seed: Int or None, the random seed of the masks.

    Raises:
        ValueError: If an argument is out of its range, or the backbone is not a plain ViT of a fixed size.

    Example:

    >>> backbone = keras_vit.ViT("Ti/16", image_size=64, num_layers=1, num_classes=0)
    >>> model = SimMIM(backbone)
    >>> model.compile("adam")
    >>> history = model.fit(np.zeros((4, 64, 64, 3)), verbose=0)

    Reference: [arXiv 2111.09886](https://arxiv.org/abs/2111.09886). As in its official code, the loss is divided by the
    number of masked pixels plus 1e-5, then by the channels.
    """

    def __init__(
        self,
        backbone: keras.Model,
        mask_ratio: float = 0.6,
        mask_unit: int | tuple[int, int] = 32,
        seed: int | None = None,
        **kwargs,
    ):
        super().__init__(backbone, mask_ratio=mask_ratio, seed=seed, **kwargs)
        self.mask_unit = arguments.pair("mask_unit", mask_unit)
        patch_size = self.encoder.patch_size
        if any(side % patch for side, patch in zip(self.mask_unit, patch_size, strict=True)):
            raise ValueError(
                "Invalid value received for argument `mask_unit`. Expected whole patches, which are "
                f"{patch_size[0]} x {patch_size[1]} pixels. Received: {mask_unit!r}"
            )
        self.add_linear_head(self.encoder.patch_dim, "pixel_head")

    def draw(self, batch_size, seed):
        unit = [side // patch for side, patch in zip(self.mask_unit, self.encoder.patch_size, strict=True)]
        return {"mask": masking.unit_mask(batch_size, self.encoder.grid_size, unit, self.mask_ratio, seed)}

    def predict_hidden(self, images, hidden, training=None):
        patches = self.encoder.embed(images, training)
        patches = ops.where(hidden["mask"][:, :, None], ops.cast(self.mask_token, patches.dtype), patches)
        return self.head(self.encoder.encode_patches(patches, training))

    def prediction_loss(self, images, outputs):
        targets = self.encoder.cut(self.encoder.normalized(images))
        mask = ops.cast(outputs["mask"], "float32")
        channels = self.encoder.channels
        num_pixels = ops.sum(mask) * (targets.shape[-1] // channels)
        differences = ops.sum(ops.abs(outputs["prediction"] - targets), axis=-1)
        return ops.sum(differences * mask) / (num_pixels + 1e-5) / channels

    def predicted_pixels(self, images, outputs):
        return self.encoder.raw_patches(outputs["prediction"])
