"""Finds a ViT inside any model and looks on while the whole model runs."""

import contextlib
import functools
import itertools
import math
from collections.abc import Callable
from typing import NamedTuple

import keras
import numpy as np
from keras import ops

from keras_vit import arguments
from keras_vit.layers import (
    AttentionPooling,
    ClassToken,
    ImageNormalization,
    PatchEmbedding,
    TokenPooling,
    TransformerBlock,
)

READOUTS = (None, "token", "gap")


class PatchLayout(NamedTuple):
    """How a ViT's tokens lie on its images.

    Args:
        image_size: (height, width) of the images in pixels, as the ViT itself gets them.
        grid: (rows, columns) of patches.
        patch_size: (height, width) of a patch, in pixels of those images. In a hybrid whose ResNet does not divide the
            images evenly these are the image's pixels by those of the feature map, and no whole numbers.
        num_prefix_tokens: How many class, distillation and register tokens stand before the patches.
    """

    image_size: tuple[int, int]
    grid: tuple[int, int]
    patch_size: tuple[float, float]
    num_prefix_tokens: int


def patch_layout(model: keras.Model, images) -> PatchLayout:
    """Says how the tokens of the ViT in a model lie on its images.

    Args:
        model: Any model that holds one ViT of this package.
        images: The model's input, a batch of at least one image. It is run once.

    Returns:
        A `PatchLayout`, a named tuple of `image_size`, `grid`, `patch_size` and `num_prefix_tokens`.

    Raises:
        ValueError: If the model holds no ViT, or several.

    Example:

    >>> layout = patch_layout(keras_vit.ViTTi16(image_size=(48, 32), num_registers=4), np.zeros((1, 48, 32, 3)))
    >>> layout.grid, layout.patch_size, layout.num_prefix_tokens
    ((3, 2), (16.0, 16.0), 5)
    """
    watch = Watch(model)
    watch.run(next(batches(images, 1)))
    return watch.layout


def pictures_of(model: keras.Model, images) -> np.ndarray:
    """Returns a model's input images as they look, (batch, height, width, channels), of 0..255, in float32.

    Args:
        model: Any model that holds one ViT of this package, whose `normalization` layer tells how to undo the scaling.
        images: The model's input.

    Raises:
        ValueError: If the model holds no ViT, or several, or none with a `normalization` layer.
    """
    watch = Watch(model)
    watch.run(images)
    if watch.pictures is None:
        raise ValueError(f"Expected a model with a `normalization` layer of this package. Received: {_named(model)}")
    return watch.pictures


class Watch:
    """Runs a model as it is, and hands on what happens inside its blocks while it happens.

    The model may be nested in others in any way: for the time of a run the `call` of each layer that is looked at is
    replaced by one that calls the original and looks on. So nothing is rebuilt, no weight is copied, and no more than
    one block's attention is held at a time. It is for eager runs in inference mode, of one thread.

    Args:
        model: Any model that holds one ViT of this package.
        readout: "token" or "gap", what the model's head reads, or None, as in `attention_rollout`.

    Raises:
        ValueError: If it holds no block, or blocks that merge tokens, or several patch embeddings, or `readout` is none
            of those.
    """

    def __init__(self, model, readout=None):
        self.model = model
        self.blocks = sublayers(model, TransformerBlock)
        if not self.blocks:
            raise ValueError(
                "Expected a model that holds a ViT of this package, with layers of type TransformerBlock. "
                f"Received: {_named(model)}"
            )
        if any(block.token_merging for block in self.blocks):
            raise ValueError(
                "Expected a model without token merging, after which attention lies on no grid of patches. Received: "
                f"{_named(model)}. Build it with token_merging=0 and load the same weights."
            )
        self.patch_embedding = only_one(model, PatchEmbedding)
        # What the model's head reads: a token, the mean of all patches, or what a learned probe attends to. Of a user's
        # own layers nothing can be told.
        self.readout = "token" if sublayers(model, ClassToken) else "gap"
        for pooling in sublayers(model, (TokenPooling, AttentionPooling)):
            if isinstance(pooling, AttentionPooling):
                self.readout = "map"
            elif pooling.method == "gap":
                self.readout = "gap"
        if arguments.one_of("readout", readout, READOUTS) is not None:
            self.readout = readout
        self.layout = self.pictures = self._feature_map_size = None

    def run(self, inputs, on_attention: Callable | None = None, on_pooling: Callable | None = None):
        """Runs the model on a batch.

        Args:
            inputs: The model's input.
            on_attention: Called for each block in the order in which they run, as `on_attention(index, scores)`, with
                the attention weights, (batch, num_heads, num_tokens, num_tokens), in NumPy's float32.
            on_pooling: Called as `on_pooling(scores)` with those of attention pooling, (batch, num_heads, 1, patches).

        Returns:
            What the model returns.

        Raises:
            ValueError: If a block runs more than once.
        """
        count = itertools.count()

        def block(layer, tokens, **kwargs):
            self.see_tokens(layer, tokens)
            if on_attention is None:
                return original(layer)(tokens, training=False)
            tokens, scores = original(layer)(tokens, training=False, return_attention_scores=True)
            scores = to_numpy(scores)
            if layer.compute_dtype != "float32":
                # Their float32 softmax was rounded to the compute dtype, after which rows sum to 1 no more.
                scores /= scores.sum(axis=-1, keepdims=True)
            on_attention(next(count), scores)
            # On PyTorch the tokens would hold on to the scores of all blocks before, for a gradient.
            return ops.stop_gradient(tokens)

        def pooling(layer, tokens, **kwargs):
            x, scores = original(layer)(tokens, return_attention_scores=True)
            on_pooling(to_numpy(scores))
            return x

        calls = {layer: functools.partial(block, layer) for layer in self.blocks}
        if on_pooling is not None:
            calls |= {layer: functools.partial(pooling, layer) for layer in sublayers(self.model, AttentionPooling)}
        return self.run_with(inputs, calls)

    def run_with(self, inputs, calls):
        """Runs the model with the `call` of some layers replaced, and looks at its images: see `pictures`, `layout`."""

        def normalization(layer, images, **kwargs):
            x = ops.cast(ops.stop_gradient(images), "float32")
            self._image_size = tuple(int(side) for side in images.shape[1:3])
            self.pictures = to_numpy(x if layer.apply else layer.denormalize(x))
            return original(layer)(images)

        def embedding(layer, feature_map, **kwargs):
            self._feature_map_size = tuple(int(side) for side in feature_map.shape[1:3])
            return original(layer)(feature_map)

        calls = dict(calls)
        for layer in sublayers(self.model, ImageNormalization):
            calls[layer] = functools.partial(normalization, layer)
        calls[self.patch_embedding] = functools.partial(embedding, self.patch_embedding)
        self._image_size = self.layout = None
        self._have_run = set()
        with replaced_calls(calls):
            return self.model(inputs, training=False)

    def see_tokens(self, block, tokens):
        """Takes the layout from the tokens of a block that runs now, which come after the patch embedding has run."""
        if block in self._have_run:
            # Two images, as of a siamese model, would be told as one.
            raise ValueError(
                f"Expected a model of blocks that run once. Received: {block.name!r} run again in "
                f"{_named(self.model)}. Of a model that calls a ViT several times pass the ViT: model.get_layer(...)."
            )
        self._have_run.add(block)
        height, width = self._feature_map_size
        grid = (height // self.patch_embedding.patch_size[0], width // self.patch_embedding.patch_size[1])
        image_size = self._image_size or (height, width)
        layout = PatchLayout(
            image_size,
            grid,
            tuple(
                float(patch * pixels / side)
                for patch, pixels, side in zip(
                    self.patch_embedding.patch_size, image_size, (height, width), strict=True
                )
            ),
            tokens.shape[1] - math.prod(grid),
        )
        if layout.num_prefix_tokens < 0 or self.layout not in (None, layout):
            raise ValueError(
                "Expected blocks that all take every patch. Received: a block of "
                f"{tokens.shape[1]} tokens in {_named(self.model)}, whose patches are {grid[0]} x {grid[1]}"
            )
        self.layout = layout

    def read_out(self, rows, pooling=None):
        """What the model's head reads of each token: the class token's row, or a mean over those of the patches.

        Args:
            rows: (batch, num_tokens, num_tokens), of what goes from each token (last axis) to each other.
            pooling: (batch, patches), how attention pooling weighs the patches.

        Returns:
            (batch, num_tokens).

        Raises:
            ValueError: If a token was asked for and there is none.
        """
        if self.readout == "token" and not self.layout.num_prefix_tokens:
            raise ValueError(
                "Invalid value received for argument `readout`. Expected 'gap' for a model without a class token. "
                f"Received: 'token' for {_named(self.model)}"
            )
        if self.readout == "token":
            return rows[:, 0]
        rows = rows[:, self.layout.num_prefix_tokens :]
        return rows.mean(axis=1) if self.readout == "gap" else np.einsum("bp,bpt->bt", pooling, rows)

    def to_grid(self, rows):
        """Of numbers for each token, (batch, num_tokens), those of the patches, (batch, rows, columns)."""
        return rows[:, self.layout.num_prefix_tokens :].reshape(-1, *self.layout.grid)


def sublayers(model, kind):
    """All layers of a kind in a model, however deep, each once, in the order in which they were added."""
    if not isinstance(model, keras.Layer):
        raise ValueError(f"Expected a Keras model. Received: {model!r}")
    # Keras has no public way to the layers inside layers that are no models.
    return [layer for layer in model._flatten_layers() if isinstance(layer, kind)]


def only_one(model, kind):
    """The one layer of a kind in a model, however deep.

    Raises:
        ValueError: If there is none, or several.
    """
    found = sublayers(model, kind)
    if len(found) != 1:
        raise ValueError(
            f"Expected a model with one layer of type {kind.__name__}. Received: {_named(model)} with {len(found)}. "
            "Of a model that holds several ViTs pass one: model.get_layer(...)."
        )
    return found[0]


def original(layer):
    """A layer's own `call`, while another one is in its place."""
    return functools.partial(type(layer).call, layer)


@contextlib.contextmanager
def replaced_calls(calls):
    """Replaces the `call` of layers, each with its function in `calls`, until the block ends."""
    try:
        for layer, function in calls.items():
            layer.call = function
        yield
    finally:
        for layer in calls:
            vars(layer).pop("call", None)


def batches(inputs, batch_size):
    """Cuts a model's input, an array or a structure of arrays, into batches."""
    number = len(keras.tree.flatten(inputs)[0])
    if not number:
        raise ValueError("Expected `images` to hold at least one image. Received: none")
    for start in range(0, number, batch_size):
        yield keras.tree.map_structure(lambda x, start=start: x[start : start + batch_size], inputs)


def to_numpy(x):
    """A tensor of any float dtype as a NumPy array of float32."""
    # A copy, since some backends lend their own memory, which must not be written to.
    return np.array(ops.convert_to_numpy(ops.cast(ops.stop_gradient(x), "float32")))


def _named(model):
    return f"model {model.name!r}"
