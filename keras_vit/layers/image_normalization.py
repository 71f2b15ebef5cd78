from dataclasses import asdict

import keras
import numpy as np
from keras import ops

from keras_vit.config import ModelConfig, Preprocessing


@keras.saving.register_keras_serializable(package="keras_vit")
class ImageNormalization(keras.layers.Layer):
    """The first layer of each model: carries its config and, with `apply=True`, scales its images.

    The config is saved, reloaded and cloned with the layer, and stays when a new head is added. `config_of`,
    `preprocess_input`, pipelines, predictions and exports read it here.

    Args:
        mean, std, interpolation, crop_fraction, value_range, antialias, resize_mode, crop_rounding: As in
            `keras_vit.Preprocessing`.
        apply: Bool. True scales raw images of 0..255 to `(x / 255 - mean) / std`, adapted to `value_range`; False
            passes images through.
        folded: Bool. True passes raw images through because the next layer's kernel includes the scaling. See
            `keras_vit.fold_preprocessing`.
        class_names: The class names in the order of the outputs, or None.
        multi_label: Bool, whether the model was trained for any number of classes per image (sigmoid) instead of one
            (softmax).
        regression: Bool, whether its outputs are numbers instead of classes.
        config: A config such as a `ViTConfig`, or its `to_dict()`, which replaces the constants and classes above; None
            without a model.

    Input and output shape: (batch, height, width, channels). The output is float32 under any dtype policy.

    Raises:
        ValueError: If an argument is out of range or does not fit the channels, or for `folded` without `apply`.

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
        regression=False,
        value_range=(0.0, 1.0),
        antialias=None,
        resize_mode=None,
        crop_rounding="even",
        config=None,
        **kwargs,
    ):
        # Always float32: lower precision would round pixels before they are centred.
        super().__init__(**{**kwargs, "dtype": "float32"}, autocast=False)
        self.apply, self.folded = bool(apply), bool(folded)
        if self.folded and not self.apply:
            raise ValueError(f"Expected apply=True with folded=True. Received: apply={apply!r}")
        if config is None:
            preprocessing = Preprocessing(
                value_range=value_range,
                mean=mean,
                std=std,
                interpolation=interpolation,
                antialias=antialias,
                crop_fraction=crop_fraction,
                resize_mode=resize_mode,
                crop_rounding=crop_rounding,
            )
            # The constants are checked against the images in `build`.
            channels = max(len(preprocessing.mean), len(preprocessing.std))
            outputs = {"class_names": class_names, "multi_label": bool(multi_label), "regression": bool(regression)}
            config = ModelConfig(preprocessing=preprocessing, in_channels=channels, **outputs)
        self._record = config if isinstance(config, ModelConfig) else ModelConfig.from_dict(config)

    @property
    def config(self):
        """The model's config, or None."""
        return self._record if self._record.family else None

    @property
    def preprocessing(self):
        """The `Preprocessing` of the images."""
        return self._record.preprocessing

    @property
    def class_names(self):
        """The class names, a list of strings, or None."""
        return None if self._record.class_names is None else list(self._record.class_names)

    @class_names.setter
    def class_names(self, names):
        self._record = self._record.replace(class_names=names)

    @property
    def multi_label(self):
        """Whether an image may have any number of classes."""
        return self._record.multi_label

    @multi_label.setter
    def multi_label(self, value):
        self._record = self._record.replace(multi_label=bool(value))

    @property
    def regression(self):
        """Whether the outputs are numbers instead of classes."""
        return self._record.regression

    @regression.setter
    def regression(self, value):
        self._record = self._record.replace(regression=bool(value))

    def build(self, images_shape):
        self.preprocessing.check_channels(images_shape[-1])

    def call(self, images):
        images = ops.cast(images, self.compute_dtype)
        return self.normalize(images) if self.apply and not self.folded else images

    def normalize(self, images):
        """Scales float images of 0..255, a NumPy array or a backend tensor."""
        offset, scale = self._offset_and_scale(images)
        # In this form, unlike x * a + b, -1 and 1 are exact.
        return (images - offset) / scale

    def denormalize(self, images):
        """Undoes `normalize`."""
        offset, scale = self._offset_and_scale(images)
        return images * scale + offset

    def raw_images(self, images):
        """Converts model inputs to float32 images of 0..255, which they already are if the layer scales them."""
        images = images.astype("float32") if isinstance(images, np.ndarray) else ops.cast(images, "float32")
        return images if self.apply else self.denormalize(images)

    def _offset_and_scale(self, images):
        constants = [np.array(c, "float32") for c in self.preprocessing.offset_and_scale]
        return constants if isinstance(images, np.ndarray) else [ops.convert_to_tensor(c) for c in constants]

    def cost_steps(self, images_shape, **call_arguments):
        return None if self.apply and not self.folded else []

    def compute_output_shape(self, images_shape):
        return images_shape

    def get_config(self):
        config = {**super().get_config(), "apply": self.apply, "folded": self.folded}
        if self.config is not None:
            return {**config, "config": self.config.to_dict()}
        constants = {name: list(v) if isinstance(v, tuple) else v for name, v in asdict(self.preprocessing).items()}
        names = ("class_names", "multi_label", "regression")
        return {**config, **constants, **{name: getattr(self, name) for name in names}, "config": None}

    @classmethod
    def from_config(cls, config):
        # Parsed here: Keras would wrap the error of an invalid config in one that repeats all of it.
        if config.get("config") is not None:
            config = {**config, "config": ModelConfig.from_dict(config["config"])}
        return super().from_config(config)
