import keras
import numpy as np
from keras import ops

from keras_vit.layers import arguments

INTERPOLATIONS = ("bilinear", "bicubic", "nearest", "lanczos3", "lanczos5", "area")


@keras.saving.register_keras_serializable(package="keras_vit")
class ImageNormalization(keras.layers.Layer):
    """Carries the preprocessing constants of a checkpoint, and applies them where asked to.

    It is the first layer of every model of this package, so the constants are saved, reloaded and cloned with it.
    Pipelines, `preprocess_input` and exports read them here.

    Args:
        mean: Float, or one float a channel: the mean of images scaled to [0, 1].
        std: Float, or one float a channel: the standard deviation of images scaled to [0, 1]. With the default, 0.5 for
            both, images of 0..255 become [-1, 1], as the official checkpoints expect.
        apply: Bool. True takes raw images of 0..255 and returns `(x / 255 - mean) / std`; False passes images through.
        interpolation: How images are resized before they come here: "bilinear", "bicubic", "nearest", "lanczos3",
            "lanczos5" or "area".
        crop_fraction: Float in (0, 1]: the share of the shorter side that the evaluation's centre crop keeps.
        folded: Bool. True says that the kernel of the next layer does what `apply` asks for: raw images are taken, and
            passed through. See `keras_vit.fold_preprocessing`.

    Call arguments:
        images: Images, (batch, height, width, channels).

    Returns:
        Images of the same shape, always in float32: a reduced compute dtype would round pixels before they are centred.

    Raises:
        ValueError: If a constant is out of its range, or holds another number of channels than the images, or what is
            not applied is said to be folded.

    Example:

    >>> layer = keras_vit.layers.ImageNormalization(apply=True)
    >>> float(layer(np.full((1, 2, 2, 3), 255.0))[0, 0, 0, 0])
    1.0
    """

    def __init__(
        self, mean=0.5, std=0.5, apply=False, interpolation="bilinear", crop_fraction=1.0, folded=False, **kwargs
    ):
        # Float32 whatever the policy says: see Returns.
        super().__init__(**{**kwargs, "dtype": "float32"}, autocast=False)
        self.mean = _constants("mean", mean)
        self.std = _constants("std", std)
        if any(value <= 0 for value in self.std):
            raise ValueError(f"Invalid value received for argument `std`. Expected positive numbers. Received: {std!r}")
        if not 0 < arguments.number("crop_fraction", crop_fraction) <= 1:
            raise ValueError(
                "Invalid value received for argument `crop_fraction`. Expected a number in (0, 1]. "
                f"Received: {crop_fraction!r}"
            )
        self.apply, self.folded = bool(apply), bool(folded)
        if self.folded and not self.apply:
            raise ValueError(f"Expected apply=True with folded=True. Received: apply={apply!r}")
        self.interpolation = arguments.one_of("interpolation", interpolation, INTERPOLATIONS)
        self.crop_fraction = float(crop_fraction)

    def build(self, images_shape):
        for name, constants in (("mean", self.mean), ("std", self.std)):
            if len(constants) not in (1, images_shape[-1]):
                raise ValueError(
                    f"Expected `{name}` to hold one number, or one for each of the images' {images_shape[-1]} "
                    f"channels. Received: {constants}"
                )

    def call(self, images):
        images = ops.cast(images, self.compute_dtype)
        return self.normalize(images) if self.apply and not self.folded else images

    def normalize(self, images):
        """Applies the constants to float images of 0..255: a NumPy array or a tensor of the backend."""
        offset, scale = self._offset_and_scale(images)
        # In this form, and not as x * a + b, -1 and 1 come out exact.
        return (images - offset) / scale

    def denormalize(self, images):
        """Undoes `normalize`, for float images that it made: a NumPy array or a tensor of the backend."""
        offset, scale = self._offset_and_scale(images)
        return images * scale + offset

    def _offset_and_scale(self, images):
        """The constants for 0..255, each of the images' kind."""
        constants = [np.array([255 * value for value in c], "float32") for c in (self.mean, self.std)]
        return constants if isinstance(images, np.ndarray) else [ops.convert_to_tensor(c) for c in constants]

    def compute_output_shape(self, images_shape):
        return images_shape

    def get_config(self):
        return {
            **super().get_config(),
            "mean": list(self.mean),
            "std": list(self.std),
            "apply": self.apply,
            "interpolation": self.interpolation,
            "crop_fraction": self.crop_fraction,
            "folded": self.folded,
        }


def _constants(name, value):
    values = value if isinstance(value, (tuple, list)) else (value,)
    try:
        return tuple(float(v) for v in values)
    except (TypeError, ValueError):
        raise ValueError(
            f"Invalid value received for argument `{name}`. Expected a number, or one a channel. Received: {value!r}"
        ) from None
