import math
from typing import NamedTuple

import keras
import numpy as np
from keras import ops

from keras_vit import arguments
from keras_vit.config import config_of
from keras_vit.layers import PositionEmbedding, RotaryEmbedding, initializers
from keras_vit.layers.class_token import PrefixTokens
from keras_vit.layers.patch_embedding import unfold
from keras_vit.models.backbone import find_blocks
from keras_vit.models.wrapper import TrainingWrapper
from keras_vit.prediction.features import check_every_patch
from keras_vit.prediction.preprocessing import require_normalization


class Encoder:
    """Runs the layers of a ViT one by one. It is not a Keras layer, so that the weights are not saved twice."""

    def __init__(self, backbone):
        self.blocks = find_blocks(backbone, "vit")
        layers, embedding = backbone.layers, backbone.get_layer("patch_embedding")
        self.backbone = backbone
        self.normalization = require_normalization(backbone)
        config = config_of(backbone)
        # Find the layers from the patch embedding to the norm. With norm_after_pooling, no norm follows the blocks.
        tokens = layers[layers.index(embedding) + 1 : layers.index(self.blocks[0])]
        self.rotary = next((layer for layer in tokens if isinstance(layer, RotaryEmbedding)), None)
        tokens = [layer for layer in tokens if layer is not self.rotary]
        chain = [*tokens, *self.blocks, *([] if config.norm_after_pooling else [backbone.get_layer("norm")])]
        if config.any_size or any(side % config.stride for side in config.image_size):
            received = f"model {backbone.name!r} for images of {config.image_size} pixels, with stride {config.stride}"
            expected = "images of a fixed size, with image sides divisible by the ResNet's stride"
            raise ValueError(f"Expected a `backbone` for {expected}. Received: {received}")
        if self.normalization.folded:
            raise ValueError(f"Expected a `backbone` without folded preprocessing. Received: model {backbone.name!r}")
        check_every_patch(backbone, self.blocks)
        self.token_layers = [layer for layer in chain if isinstance(layer, (PrefixTokens, PositionEmbedding))]
        self.block_layers = [layer for layer in chain if layer not in self.token_layers]
        # This model maps images to patch embeddings without positions.
        self.embedding = keras.Model(backbone.inputs[0], embedding.output, name="embedding")
        self.model = keras.Model(backbone.inputs[0], chain[-1].output, name="encoder")
        self.dtype_policy = embedding.dtype_policy
        self.is_hybrid = config.stages is not None
        self.num_prefix_tokens, self.hidden_dim = config.num_prefix_tokens, config.hidden_dim
        self.channels, self.grid_size = config.in_channels, config.grid
        # The patch size in image pixels. In hybrids, this includes the stride of the ResNet.
        self.patch_size = tuple(config.stride * side for side in config.patch_size)
        self.patch_dim = math.prod(self.patch_size) * self.channels
        self.num_patches = math.prod(self.grid_size)

    def add_positions(self, patches):
        """Prepends the prefix tokens and adds positions; returns (batch, prefix tokens + num_patches, hidden_dim)."""
        for layer in self.token_layers:
            patches = layer(patches)
        return patches

    def run_blocks(self, tokens, training=None):
        """Applies dropout, all blocks and the norm to tokens (batch, num_tokens, hidden_dim)."""
        inputs = {} if self.rotary is None else {"rotary": self.rotary.angles(self.grid_size)}
        for layer in self.block_layers:
            tokens = layer(tokens, training=training, **(inputs if layer in self.blocks else {}))
        return tokens

    def encode_patches(self, patches, training=None):
        """Encodes all patch embeddings; returns (batch, num_patches, hidden_dim), without the prefix tokens."""
        return self.run_blocks(self.add_positions(patches), training)[:, self.num_prefix_tokens :]

    def cut(self, images):
        """Splits images into flattened patches, (batch, num_patches, patch_dim)."""
        return unfold(images, self.patch_size)

    def raw_patches(self, patches):
        """Converts flattened patches in the model's value range to pixels in [0, 255], as a NumPy array."""
        constants = self.normalization.preprocessing.offset_and_scale
        offset, scale = (np.resize(np.broadcast_to(c, self.channels), self.patch_dim) for c in constants)
        return patches * scale + offset


class Reconstruction(NamedTuple):
    """The result of `reconstruct`: images in [0, 255] as NumPy arrays, each (batch, height, width, channels).

    The images are cropped to whole patches. `original` is not masked. In `masked`, masked patches are grey, and swapped
    patches of `MaskedPatchPrediction` are replaced by other patches. In `prediction`, the model's predictions replace
    all patches for which "mask" is True.
    """

    original: np.ndarray
    masked: np.ndarray
    prediction: np.ndarray


class MaskedImageModel(TrainingWrapper):
    """Base class of masked image models. Subclasses add a weight `mask_token` and define these methods:

    - draw(batch_size, seed) selects random masked patches and returns a dict of tensors. Its "mask", (batch_size,
      num_patches), is True for masked patches. The dict is the argument `hidden` of `predict_hidden`.
    - predict_hidden(images, hidden, training) returns the prediction for all patches, (batch, num_patches, ...).
    - prediction_loss(images, outputs) returns the loss, a float32 scalar. `outputs` are the results of `call`.
    - predicted_pixels(images, outputs) returns the predicted patches in [0, 255] as a NumPy array of the shape that
      `Encoder.cut` returns.
    """

    has_own_loss = True

    def __init__(self, backbone: keras.Model, mask_ratio: float, seed: int | None = None, **kwargs):
        encoder = Encoder(arguments.model(backbone, "backbone"))
        super().__init__(encoder, **kwargs)
        self.encoder = encoder
        # Track the encoder instead of the backbone, so that the optimizer does not change the backbone's head.
        self.encoder_model = encoder.model
        self.mask_ratio = arguments.fraction("mask_ratio", mask_ratio)
        self.seed = arguments.optional(arguments.non_negative_int, "seed", seed)
        self.seed_generator = keras.random.SeedGenerator(self.seed)

    @property
    def backbone(self) -> keras.Model:
        """The ViT that is trained."""
        return self.encoder.backbone

    @property
    def plain_model(self):
        return self.backbone

    def forward_passes(self):
        # Compile `predict_hidden` instead of `call`, because `call` draws random masks.
        return [(self, "predict_hidden")]

    def add_linear_head(self, units, name):
        """Adds a mask token, and a linear head that maps encoded patches to `units` outputs."""
        if not self.encoder_model.trainable_weights:
            raise ValueError(f"Expected a `backbone` with trainable weights. Received: model {self.backbone.name!r}")
        width = self.encoder.hidden_dim
        self.mask_token = self.add_weight(name="mask_token", shape=(1, 1, width), initializer=token_initializer())
        self.head = dense(units, dtype="float32", name=name)
        self.head.build((None, None, width))
        self.built = True

    def masked_pixels(self, patches, outputs):
        """Returns a copy of `patches`, a NumPy array of values in [0, 255]. In the copy, masked patches are grey."""
        return np.where(outputs["mask"][..., None], 127.5, patches)

    def call(self, images, training=None, hidden=None):
        if hidden is None:
            hidden = self.draw(ops.shape(images)[0], self.seed_generator)
        return {"prediction": self.predict_hidden(images, hidden, training), **hidden}

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        if getattr(self, "loss", None) is not None or sample_weight is not None:
            expected = f"{type(self).__name__} to be compiled without a loss and fitted without sample weights"
            raise ValueError(f"Expected {expected}. Received: loss={self.loss!r}, {sample_weight=}")
        # Add the losses of the weight regularizers.
        return sum(self.losses, self.prediction_loss(x, y_pred)) / self.num_replicas

    def reconstruct(self, images, seed: int = 0) -> Reconstruction:
        """Masks random patches of images and predicts these patches.

        Args:
            images: A batch of images, preprocessed as for training.
            seed: Int, the random seed of the masks. On one kind of device, it always gives the same masks.

        Returns:
            A `Reconstruction` of three arrays: the original images, the images with masked patches, and the images with
            the model's predictions in the masked patches.
        """
        images = ops.convert_to_tensor(images)
        hidden = self.draw(int(images.shape[0]), arguments.optional(arguments.non_negative_int, "seed", seed))
        outputs = {k: ops.convert_to_numpy(v) for k, v in self(images, training=False, hidden=hidden).items()}
        patches = ops.convert_to_numpy(self.encoder.cut(self.encoder.normalization.raw_images(images)))
        predicted = np.where(outputs["mask"][..., None], self.predicted_pixels(images, outputs), patches)
        parts = patches, self.masked_pixels(patches, outputs), predicted
        return Reconstruction(*(self._join(np.clip(part, 0, 255)) for part in parts))

    def _join(self, patches):
        """Joins flattened patches into images. Both are NumPy arrays."""
        (rows, columns), (ph, pw) = self.encoder.grid_size, self.encoder.patch_size
        x = patches.reshape(-1, rows, columns, ph, pw, self.encoder.channels).transpose(0, 1, 3, 2, 4, 5)
        return x.reshape(-1, rows * ph, columns * pw, self.encoder.channels).astype("float32")

    # Save the state of the random generator, which Keras does not save. A resumed run would otherwise repeat its masks.
    def save_own_variables(self, store):
        store["mask_token"] = ops.convert_to_numpy(self.mask_token)
        store["seed_generator"] = ops.convert_to_numpy(self.seed_generator.state).astype("int64")

    def load_own_variables(self, store):
        self.mask_token.assign(store["mask_token"])
        state = self.seed_generator.state
        state.assign(np.asarray(store["seed_generator"]).astype(state.dtype))


def dense(units, **options):
    """Returns a dense layer. The same random seed gives the same initial weights on every backend."""
    return keras.layers.Dense(units, kernel_initializer=initializers.GlorotUniform(), **options)


def token_initializer():
    """Returns the mask token's initializer, as in the official code of SimMIM and MAE."""
    return initializers.TruncatedNormal(stddev=0.02)
