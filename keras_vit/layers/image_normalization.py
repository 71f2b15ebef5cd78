import keras
import numpy as np
from keras import ops

from keras_vit import arguments
from keras_vit.preprocessing import Preprocessing


@keras.saving.register_keras_serializable(package="keras_vit")
class ImageNormalization(keras.layers.Layer):
    """Carries the preprocessing constants of a checkpoint and the names of its classes, and scales where asked to.

    It is the first layer of every model of this package, so both are saved, reloaded and cloned with it. Pipelines,
    `preprocess_input`, predictions and exports read them here.

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
        class_names: The names of the model's classes in the order of its outputs, or None.
        multi_label: Bool. True says that the model was trained for any number of classes an image, so that each output
            is a probability by itself (sigmoid); False that it was for one of them (softmax).

    Call arguments:
        images: Images, (batch, height, width, channels).

    Returns:
        Images of the same shape, always in float32: a reduced compute dtype would round pixels before they are centred.

    Raises:
        ValueError: If a constant is out of its range, or holds another number of channels than the images, what is
            not applied is said to be folded, or `class_names` are no strings.

    Example:

    >>> layer = keras_vit.layers.ImageNormalization(apply=True)
    >>> float(layer(np.full((1, 2, 2, 3), 255.0))[0, 0, 0, 0])
    1.0
    """

    def __init__(
        self,
        mean=0.5,
        std=0.5,
        apply=False,
        interpolation="bilinear",
        crop_fraction=1.0,
        folded=False,
        class_names=None,
        multi_label=False,
        **kwargs,
    ):
        # Float32 whatever the policy says: see Returns.
        super().__init__(**{**kwargs, "dtype": "float32"}, autocast=False)
        self.preprocessing = Preprocessing(mean=mean, std=std, interpolation=interpolation, crop_fraction=crop_fraction)
        self.apply, self.folded = bool(apply), bool(folded)
        if self.folded and not self.apply:
            raise ValueError(f"Expected apply=True with folded=True. Received: apply={apply!r}")
        self.class_names, self.multi_label = class_names, bool(multi_label)

    @property
    def class_names(self):
        """The names of the model's classes, a list of strings, or None."""
        return None if self._class_names is None else list(self._class_names)

    @class_names.setter
    def class_names(self, names):
        # Of any number, for a head to come.
        self._class_names = arguments.class_names(names, None)

    @property
    def mean(self):
        """The mean of images scaled to [0, 1], a tuple of one float or one a channel."""
        return self.preprocessing.mean

    @property
    def std(self):
        """The standard deviation, likewise."""
        return self.preprocessing.std

    @property
    def interpolation(self):
        """How images are resized for the model."""
        return self.preprocessing.interpolation

    @property
    def crop_fraction(self):
        """The share of the shorter side that the evaluation's centre crop keeps."""
        return self.preprocessing.crop_fraction

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
            "class_names": self.class_names,
            "multi_label": self.multi_label,
        }
