from dataclasses import asdict, fields

import keras
import numpy as np
from keras import ops

from keras_vit import arguments
from keras_vit.config import ModelConfig, Preprocessing, preprocessing_record


@keras.saving.register_keras_serializable(package="keras_vit")
class ImageNormalization(keras.layers.Layer):
    """The first layer of each model. It stores the model's config and, with `apply=True`, scales the images.

    Saved, cloned and extended models keep the config, because they keep this layer.

    Args:
        preprocessing: A `keras_vit.Preprocessing`, or a dict of its fields; None for the default.
        apply: Bool. True scales raw images x of 0..255 to `(low + x / 255 * (high - low) - mean) / std`. (low, high) is
            the `value_range` of `preprocessing`, which also contains `mean` and `std`. False returns images unchanged.
        folded: Bool, only with `apply`. True returns raw images unchanged, because the next layer's kernel includes the
            scaling. See `keras_vit.fold_preprocessing`.
        class_names: The class names in the order of the outputs, or None.
        task: "single_label", "multi_label" or "regression", as in `keras_vit.ViTConfig`.
        config: A config such as a `ViTConfig`, or its `to_dict()`. It replaces `preprocessing`, `apply`, `class_names`
            and `task`. None if the layer does not belong to a model.

    Input and output shape: (batch, height, width, channels). The output is float32 under any dtype policy.

    Raises:
        ValueError: If an argument is out of range, the number of constants in `preprocessing` does not fit the
            channels, or `folded` is True but `apply` is False.

    Example:
    >>> layer = keras_vit.layers.ImageNormalization(apply=True)
    >>> float(layer(np.full((1, 2, 2, 3), 255.0))[0, 0, 0, 0])
    1.0
    """

    def __init__(
        self,
        preprocessing=None,
        apply=False,
        folded=False,
        class_names=None,
        task="single_label",
        config=None,
        **kwargs,
    ):
        # Compute in float32, because lower precisions would round the pixels before they are centred.
        super().__init__(**{**kwargs, "dtype": "float32"}, autocast=False)
        apply = arguments.boolean("apply", apply)
        if config is None:
            preprocessing = preprocessing_record({} if preprocessing is None else preprocessing)
            # The number of channels is not known yet. So take the number of constants, which `build` checks later.
            channels = max(len(preprocessing.mean), len(preprocessing.std))
            config = {"preprocessing": preprocessing, "include_preprocessing": apply, "in_channels": channels}
            config = ModelConfig(**config, class_names=class_names, task=task)
        self._record = config if isinstance(config, ModelConfig) else ModelConfig.from_dict(config)
        self.folded = arguments.boolean("folded", folded)
        if self.folded and not self.apply:
            raise ValueError(f"Expected apply=True with folded=True. Received: apply={self.apply!r}")

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
    def task(self):
        """The task: "single_label", "multi_label" or "regression"."""
        return self._record.task

    @task.setter
    def task(self, task):
        self._record = self._record.replace(task=task)

    @property
    def apply(self):
        """True if the model takes raw images of 0..255."""
        return self._record.include_preprocessing

    def build(self, images_shape):
        self.preprocessing.check_channels(images_shape[-1])

    def call(self, images):
        # On JAX, `fit`, `evaluate` and `predict` do not compare the shape of images with the model's input shape.
        # So compare them in this call.
        if self.config is not None and not isinstance(images, keras.KerasTensor):
            expected = (None, *self.config.image_size, self.config.in_channels)
            arguments.image_shape("images", tuple(images.shape), expected)
            if None in images.shape[1:] and None not in expected[1:]:
                # After images of two sizes, TensorFlow traces the model for an unknown size. This line then raises an
                # error at run time for all sizes except the model's.
                images = ops.reshape(images, (ops.shape(images)[0], *expected[1:]))
        images = _to_tensor(images, self.compute_dtype)
        return self.normalize(images) if self.apply and not self.folded else images

    def normalize(self, images):
        """Scales float images of 0..255 as with `apply=True`. `images` is a NumPy array or a backend tensor."""
        images = images if isinstance(images, np.ndarray) else _to_tensor(images, images.dtype)
        offset, scale = self._offset_and_scale(images)
        # Do not rewrite this as x * a + b, which would not give exactly -1 and 1 for 0 and 255.
        return (images - offset) / scale

    def raw_images(self, images):
        """Converts model inputs to float32 images of 0..255. With `apply`, the model inputs are such images already."""
        images = images.astype("float32") if isinstance(images, np.ndarray) else _to_tensor(images, "float32")
        if self.apply:
            return images
        offset, scale = self._offset_and_scale(images)
        return images * scale + offset

    def _offset_and_scale(self, images):
        constants = [np.array(c, "float32") for c in self.preprocessing.offset_and_scale]
        return constants if isinstance(images, np.ndarray) else [ops.convert_to_tensor(c) for c in constants]

    def cost_steps(self, images_shape, **call_arguments):
        return None if self.apply and not self.folded else []

    def compute_output_shape(self, images_shape):
        return images_shape

    def get_config(self):
        config = {**super().get_config(), "folded": self.folded}
        if self.config is not None:
            return {**config, "config": self.config.to_dict()}
        constants = {name: list(v) if isinstance(v, tuple) else v for name, v in asdict(self.preprocessing).items()}
        names = ("apply", "class_names", "task")
        return {**config, "preprocessing": constants, **{name: getattr(self, name) for name in names}, "config": None}

    @classmethod
    def from_config(cls, config):
        config = dict(config)
        if config.get("config") is not None:
            # In files of version 0.2, `apply` is not in the config, but next to it.
            own = {"include_preprocessing": config.pop("apply", False), **config["config"]}
            # Build the config here, because an error in Keras' `from_config` would repeat the whole config.
            config["config"] = ModelConfig.from_dict(own)
        else:
            # In files of version 0.2, each constant and the task are arguments of the layer.
            constants = {field.name: config.pop(field.name) for field in fields(Preprocessing) if field.name in config}
            config |= {"preprocessing": constants} if constants else {}
            for task in ("multi_label", "regression"):
                config |= {"task": task} if config.pop(task, False) else {}
        return super().from_config(config)


def _to_tensor(images, dtype):
    """Casts images, and on PyTorch moves them to Keras' device. A `DataLoader` gives tensors on the CPU."""
    return ops.cast(images if isinstance(images, keras.KerasTensor) else ops.convert_to_tensor(images), dtype)
