from typing import NamedTuple

import keras
import numpy as np
from keras import ops

from keras_vit import arguments
from keras_vit.layers import initializers
from keras_vit.pretraining.encoder import Encoder


class Reconstruction(NamedTuple):
    """Images of 0..255 as NumPy arrays, each (batch, height, width, channels), cropped to whole patches."""

    original: np.ndarray
    masked: np.ndarray
    prediction: np.ndarray


class MaskedImageModel(keras.Model):
    """What the ways of pre-training by hidden patches share; a subclass says what is hidden, predicted and lost.

    It is trained by `compile(optimizer)`, without a loss, and `fit` on images alone; labels beside them are ignored.
    `evaluate` gives the loss on fresh random masks. `save` keeps the whole run, with the state of the optimizer and of
    the masks.

    `backbone` is the plain ViT with the weights trained so far; its head, and whatever else does not take part, is
    neither trained nor decayed. Fine-tune it as it is, put a new head on it, `keras.Model(backbone.input,
    keras.layers.Dense(10)(backbone.output))`, or load its weights into a ViT of another head or size:
    `keras_vit.save_weights(model.backbone, path)`, then `keras_vit.ViT(..., num_classes=10, weights=path)`.

    Args:
        backbone: A ViT of this package's builders, for images of a fixed size, with a head or without.
        mask_ratio: Float in (0, 1), the share of the patches that is hidden.
        seed: Int or None, the random seed of the masks.
        **kwargs: As of any `keras.Model`. The layers that are added have the backbone's dtype policy by default.
    """

    # Until the backbone is known.
    _unused = frozenset()

    def __init__(self, backbone, mask_ratio, seed=None, **kwargs):
        encoder = Encoder(backbone)
        # Images reach the `normalization` layer in the precision they have, as they do in the backbone itself.
        super().__init__(**{"dtype": encoder.patch_embedding.dtype_policy, **kwargs}, autocast=False)
        self.backbone = backbone
        self.encoder = encoder
        self.mask_ratio = arguments.rate("mask_ratio", mask_ratio)
        if not self.mask_ratio:
            raise ValueError(
                "Invalid value received for argument `mask_ratio`. Expected a number in (0, 1). Received: 0"
            )
        self.seed = seed
        self.seed_generator = keras.random.SeedGenerator(seed)
        self._unused = {id(v) for v in encoder.unused_variables}

    def draw(self, batch_size, seed):
        """What is hidden in each of a batch's images, as a dict of tensors with "mask" (batch_size, num_patches).

        Args:
            batch_size: Int, or a scalar tensor.
            seed: Int, or a `keras.random.SeedGenerator`.
        """
        raise NotImplementedError

    def predict_hidden(self, images, hidden, training=None):
        """The prediction for all patches, (batch, num_patches, ...), in float32; `hidden` is as `draw` returns it."""
        raise NotImplementedError

    def prediction_loss(self, images, outputs):
        """The loss, a scalar in float32, of what `call` returned for the images."""
        raise NotImplementedError

    def predicted_pixels(self, images, outputs):
        """Predicted patches, (batch, num_patches, patch_height * patch_width * channels), of 0..255, in NumPy.

        Args:
            images: A tensor.
            outputs: What `call` returned for them, in NumPy.
        """
        raise NotImplementedError

    def masked_pixels(self, patches, outputs):
        """The patches of 0..255, as they were shown, hidden ones grey, in NumPy."""
        return np.where(outputs["mask"][..., None], 127.5, patches)

    def call(self, images, training=None, hidden=None):
        if hidden is None:
            hidden = self.draw(ops.shape(images)[0], self.seed_generator)
        return {"prediction": self.predict_hidden(images, hidden, training), **hidden}

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        if getattr(self, "loss", None) is not None or sample_weight is not None:
            raise ValueError(
                f"Expected {type(self).__name__} to be compiled without a loss, since it has its own, and fitted "
                f"without sample weights. Received: loss={self.loss!r}, sample_weight={sample_weight!r}"
            )
        # What layers add: weight regularizers.
        return sum(self.losses, self.prediction_loss(x, y_pred))

    def reconstruct(self, images, seed=0):
        """Hides patches of images and predicts them.

        Args:
            images: A batch of images, as the backbone takes them.
            seed: Int, of the masks: the same each time for the same seed, whatever has been trained in between.

        Returns:
            `Reconstruction`: the original images, those with hidden patches in grey, and the originals with the
            predictions in the hidden places.
        """
        images = ops.convert_to_tensor(images)
        hidden = self.draw(int(images.shape[0]), seed)
        outputs = {k: ops.convert_to_numpy(v) for k, v in self(images, training=False, hidden=hidden).items()}
        patches = ops.convert_to_numpy(self.encoder.cut(self.encoder.raw(images)))
        predicted = np.where(outputs["mask"][..., None], self.predicted_pixels(images, outputs), patches)
        parts = patches, self.masked_pixels(patches, outputs), predicted
        return Reconstruction(*(self._join(np.clip(part, 0, 255)) for part in parts))

    def _join(self, patches):
        """Puts cut patches together again, in NumPy."""
        (rows, columns), (ph, pw) = self.encoder.grid, self.encoder.patch_size
        x = patches.reshape(-1, rows, columns, ph, pw, self.encoder.channels).transpose(0, 1, 3, 2, 4, 5)
        return x.reshape(-1, rows * ph, columns * pw, self.encoder.channels).astype("float32")

    # The weights that take no part are here as frozen ones. They stay trainable in the backbone.
    @property
    def trainable_variables(self):
        return [v for v in super().trainable_variables if id(v) not in self._unused]

    @property
    def non_trainable_variables(self):
        trainable = {id(v) for v in self.trainable_variables}
        return [v for v in self.variables if id(v) not in trainable]

    @property
    def trainable_weights(self):
        return [v for v in super().trainable_weights if id(v) not in self._unused]

    @property
    def non_trainable_weights(self):
        trainable = {id(v) for v in self.trainable_weights}
        return [v for v in self.weights if id(v) not in trainable]

    # Keras' own pair leaves the state of random generators out, and a run that is reloaded would repeat its masks.
    def save_own_variables(self, store):
        store["mask_token"] = ops.convert_to_numpy(self.mask_token)
        store["seed_generator"] = ops.convert_to_numpy(self.seed_generator.state).astype("int64")

    def load_own_variables(self, store):
        self.mask_token.assign(store["mask_token"])
        state = self.seed_generator.state
        state.assign(np.asarray(store["seed_generator"]).astype(state.dtype))

    def get_config(self):
        return {
            **super().get_config(),
            "backbone": keras.saving.serialize_keras_object(self.backbone),
            "mask_ratio": self.mask_ratio,
            "seed": self.seed,
        }

    @classmethod
    def from_config(cls, config, custom_objects=None):
        backbone = keras.saving.deserialize_keras_object(config["backbone"], custom_objects)
        return cls(**{**config, "backbone": backbone})


def dense(units, **options):
    """A dense layer of a decoder, whose initial weights a seed draws alike on each backend."""
    return keras.layers.Dense(units, kernel_initializer=initializers.GlorotUniform(), **options)


def token_initializer():
    """Of a mask token, as in SimMIM's and MAE's official code."""
    return initializers.TruncatedNormal(stddev=0.02)
