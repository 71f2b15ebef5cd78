from dataclasses import asdict

import keras
import numpy as np
from keras import ops

from keras_vit import arguments
from keras_vit.model_config import ModelConfig
from keras_vit.preprocessing import Preprocessing


@keras.saving.register_keras_serializable(package="keras_vit")
class ImageNormalization(keras.layers.Layer):
    """Carries the record of the model that it is the first layer of, and scales images where asked to.

    The record is saved, reloaded and cloned with the layer, and stays under a head of a user's own. `config_of`,
    pipelines, `preprocess_input`, predictions and exports read it here.

    Args:
        mean: Float, or one float a channel: the mean of images scaled to [0, 1].
        std: Float, or one float a channel: the standard deviation of images scaled to [0, 1]. With the default, 0.5 for
            both, images of 0..255 become [-1, 1], as the official checkpoints expect.
        apply: Bool. True takes raw images of 0..255 and returns `(x / 255 - mean) / std`, or so with another
            `value_range`; False passes images through.
        interpolation: How images are resized before they come here: "bilinear", "bicubic", "nearest", "lanczos3",
            "lanczos5" or "area".
        crop_fraction: Float in (0, 1]: the share of a side that the evaluation's centre crop keeps.
        folded: Bool. True says that the kernel of the next layer does what `apply` asks for: raw images are taken, and
            passed through. See `keras_vit.fold_preprocessing`.
        class_names: The names of the model's classes in the order of its outputs, or None.
        multi_label: Bool. True says that the model was trained for any number of classes an image, so that each output
            is a probability by itself (sigmoid); False that it was for one of them (softmax).
        value_range: As in `Preprocessing`, and so `antialias` and `resize_mode`.
        antialias: See there.
        resize_mode: See there.
        config: A `ViTConfig`, a `BiTConfig` or what its `to_dict` returns. It holds the constants and the classes too,
            in the place of the arguments above. None where there is no record, as in files of version 0.1.

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
        value_range=(0.0, 1.0),
        antialias=None,
        resize_mode=None,
        config=None,
        **kwargs,
    ):
        # Float32 whatever the policy says: see Returns.
        super().__init__(**{**kwargs, "dtype": "float32"}, autocast=False)
        self.apply, self.folded = bool(apply), bool(folded)
        if self.folded and not self.apply:
            raise ValueError(f"Expected apply=True with folded=True. Received: apply={apply!r}")
        self.config = config if config is None or isinstance(config, ModelConfig) else ModelConfig.from_dict(config)
        if self.config is None:
            own = Preprocessing(
                value_range=value_range,
                mean=mean,
                std=std,
                interpolation=interpolation,
                antialias=antialias,
                crop_fraction=crop_fraction,
                resize_mode=resize_mode,
            )
            # Of how many channels the images are, `build` is told.
            channels = max(len(own.mean), len(own.std))
            classes = {"class_names": class_names, "multi_label": bool(multi_label)}
            self._own = ModelConfig(preprocessing=own, in_channels=channels, **classes)

    @property
    def _record(self):
        """What the constants and the classes are read from."""
        return self._own if self.config is None else self.config

    def _change(self, **changes):
        changed = self._record.replace(**changes)
        if self.config is None:
            self._own = changed
        else:
            self.config = changed

    @property
    def preprocessing(self):
        """The constants, a `Preprocessing`."""
        return self._record.preprocessing

    @property
    def class_names(self):
        """The names of the model's classes, a list of strings, or None."""
        return None if self._record.class_names is None else list(self._record.class_names)

    @class_names.setter
    def class_names(self, names):
        # Of any number, for a head to come.
        self._change(class_names=arguments.class_names(names, None))

    @property
    def multi_label(self):
        """Whether the model is for any number of classes an image."""
        return self._record.multi_label

    @multi_label.setter
    def multi_label(self, value):
        self._change(multi_label=bool(value))

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
        self.preprocessing.check_channels(images_shape[-1])

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
        constants = [np.array(c, "float32") for c in self.preprocessing.offset_and_scale]
        return constants if isinstance(images, np.ndarray) else [ops.convert_to_tensor(c) for c in constants]

    def compute_output_shape(self, images_shape):
        return images_shape

    def get_config(self):
        config = {**super().get_config(), "apply": self.apply, "folded": self.folded}
        if self.config is not None:
            return {**config, "config": self.config.to_dict()}
        return {
            **config,
            **{name: list(v) if isinstance(v, tuple) else v for name, v in asdict(self.preprocessing).items()},
            "class_names": self.class_names,
            "multi_label": self.multi_label,
            "config": None,
        }

    @classmethod
    def from_config(cls, config):
        # Here, since Keras would wrap the error of a damaged record in one that repeats all of it.
        if config.get("config") is not None:
            config = {**config, "config": ModelConfig.from_dict(config["config"])}
        return super().from_config(config)
