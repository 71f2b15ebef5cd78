"""Finds a ViT inside any model and looks at what goes into its blocks."""

import inspect
import math
from collections.abc import Callable
from typing import NamedTuple

import keras
import numpy as np
from keras import ops

from keras_vit import arguments
from keras_vit.layers import (
    AttentionPooling,
    ImageNormalization,
    PatchEmbedding,
    TokenPooling,
    TransformerBlock,
)
from keras_vit.models.graph import is_graph, replay
from keras_vit.record import config_of

READOUTS = (None, "token", "gap")
# What is looked at: the input of these.
_SEEN = {
    ImageNormalization: "images",
    PatchEmbedding: "feature_map",
    TransformerBlock: "tokens",
    AttentionPooling: "pooled",
}


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
    """Looks at what goes into the blocks of the ViT in a model, and at what their attention makes of it.

    The model may be nested in others in any way: its layers are called from a graph made for it, down to the blocks, in
    which all models and layers that hold them are unfolded. The model stays as it is, no weight is copied, and no more
    than one block's attention is held at a time. It is for eager runs in inference mode.

    Args:
        model: Any model that holds one ViT of this package. A `call` of one's own around the ViT is run with symbolic
            tensors, as `keras.Layer` and `keras.ops` take them.
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
        embedding = only_one(model, PatchEmbedding)
        self.config = config_of(next(inner for inner in sublayers(model, keras.Model) if embedding in inner.layers))
        # What the model's head reads: a token, the mean of all patches, or what a learned probe attends to. Of a user's
        # own layers nothing can be told.
        self.readout = "token" if self.config.class_token else "gap"
        for pooling in sublayers(model, (TokenPooling, AttentionPooling)):
            if isinstance(pooling, AttentionPooling):
                self.readout = "map"
            elif pooling.method == "gap":
                self.readout = "gap"
        if arguments.one_of("readout", readout, READOUTS) is not None:
            self.readout = readout
        self.layout = self.pictures = None

    def run(self, inputs, on_attention: Callable | None = None, on_pooling: Callable | None = None):
        """Runs the model on a batch, and looks at its images: see `pictures`, `layout`.

        Args:
            inputs: The model's input.
            on_attention: Called for each block in the order in which they run, as `on_attention(index, scores)`, with
                the attention weights, (batch, num_heads, num_tokens, num_tokens), in NumPy's float32.
            on_pooling: Called as `on_pooling(scores)` with those of attention pooling, (batch, num_heads, 1, patches).

        Returns:
            A dict of lists of tensors: the model's "outputs", the "tokens" that each block takes, and what it "gives".

        Raises:
            ValueError: If a block runs more than once.
        """
        graph = self._graph(inputs)
        seen = keras.Model(graph.pop("inputs"), graph)(keras.tree.flatten(inputs), training=False)
        self._look_at_images(seen)
        for i, (block, tokens) in enumerate(zip(self.blocks, seen["tokens"], strict=True)):
            if on_attention is not None:
                on_attention(i, scores_of(block, tokens))
        if on_pooling is not None:
            for pooling, tokens in zip(self._layers["pooled"], seen["pooled"], strict=True):
                on_pooling(to_numpy(pooling(tokens, return_attention_scores=True)[1]))
        return seen

    def around_blocks(self, inputs):
        """What lies around the blocks, as a function: of a list of what they give, to the dict that `run` returns."""
        graph = self._graph(inputs, cut=True)
        model = keras.Model(graph.pop("inputs") + graph["gives"], graph)
        images = [ops.convert_to_tensor(x) for x in keras.tree.flatten(inputs)]
        return lambda gives: model([*images, *gives], training=False)

    def _graph(self, inputs, cut=False):
        """Symbolic tensors of the model's run, by what they are; with `cut` what blocks give is an input itself."""
        graph = {"gives": [], **{name: [] for name in _SEEN.values()}}
        self._layers = {name: [] for name in _SEEN.values()}

        def call(operation, *args, **kwargs):
            name = next((name for kind, name in _SEEN.items() if isinstance(operation, kind)), None)
            if name is None and isinstance(operation, keras.Layer) and sublayers(operation, tuple(_SEEN)):
                return self._unfolded(operation, args, kwargs, call)
            y = _Call(operation)(*args, **kwargs)
            if name is None:
                return y
            if name == "tokens" and operation in self._layers[name]:
                # Two images, as of a siamese model, would be told as one.
                raise ValueError(
                    f"Expected a model of blocks that run once. Received: {operation.name!r} run again in "
                    f"{_named(self.model)}. Of a model that calls a ViT several times pass the ViT: "
                    "model.get_layer(...)."
                )
            self._layers[name].append(operation)
            graph[name].append(args[0])
            if name == "tokens":
                y = keras.Input(batch_shape=y.shape, dtype=y.dtype) if cut else y
                graph["gives"].append(y)
            return y

        arrays = keras.tree.flatten(inputs)
        # Sides that the model leaves open are those of the images.
        sources = [
            keras.Input(
                [side or given for side, given in zip(x.shape[1:], array.shape[1:], strict=True)],
                dtype=keras.backend.standardize_dtype(x.dtype),
            )
            for x, array in zip(self.model.inputs if is_graph(self.model) else arrays, arrays, strict=True)
        ]
        structure = keras.tree.pack_sequence_as(inputs, sources)
        graph["outputs"] = self._unfolded(self.model, (structure,), {}, call)
        self.blocks = self._layers["tokens"]
        return {"inputs": sources, **graph}

    def _unfolded(self, layer, args, kwargs, call):
        """Calls what a layer consists of in its place. Returns a list of its outputs."""
        given = [x for x in keras.tree.flatten((args, kwargs)) if isinstance(x, keras.KerasTensor)]
        if is_graph(layer):
            return replay(layer, given, call)
        inner = {id(x): keras.Input(batch_shape=x.shape, dtype=x.dtype) for x in given}
        args, kwargs = keras.tree.map_structure(lambda x: inner.get(id(x), x), (args, kwargs))
        return replay(keras.Model(list(inner.values()), layer.call(*args, **kwargs)), given, call)

    def _look_at_images(self, seen):
        (feature_map,) = seen["feature_map"]
        sides = tuple(int(side) for side in feature_map.shape[1:3])
        image_size = sides
        for layer, images in zip(self._layers["images"], seen["images"], strict=True):
            x = ops.cast(ops.stop_gradient(images), "float32")
            image_size = tuple(int(side) for side in images.shape[1:3])
            self.pictures = to_numpy(x if layer.apply else layer.denormalize(x))
        patch_size, num_prefix_tokens = self.config.patch_size, self.config.num_prefix_tokens
        grid = tuple(side // patch for side, patch in zip(sides, patch_size, strict=True))
        pixels = (float(p * of / side) for p, of, side in zip(patch_size, image_size, sides, strict=True))
        self.layout = PatchLayout(image_size, grid, tuple(pixels), num_prefix_tokens)
        for tokens in seen["tokens"]:
            if tokens.shape[1] != num_prefix_tokens + math.prod(grid):
                raise ValueError(
                    "Expected blocks that all take every patch. Received: a block of "
                    f"{tokens.shape[1]} tokens in {_named(self.model)}, whose patches are {grid[0]} x {grid[1]}"
                )

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


class _Call(keras.Operation):
    """One call of a layer, in a graph of which the layer itself keeps nothing."""

    def __init__(self, operation):
        super().__init__()
        self.operation = operation

    def call(self, *args, **kwargs):
        if "training" in inspect.signature(self.operation.call).parameters:
            # Layers that suppose otherwise, as augmentation does, have it written in their model's graph.
            kwargs["training"] = False
        y = self.operation(*args, **kwargs)
        # On PyTorch each block would keep what its gradient takes.
        return ops.stop_gradient(y) if isinstance(self.operation, TransformerBlock) else y

    def compute_output_spec(self, *args, **kwargs):
        return self.operation.compute_output_spec(*args, **kwargs)


def scores_of(block, tokens):
    """The attention weights of a block for its tokens, (batch, num_heads, num_tokens, num_tokens), in NumPy."""
    scores = to_numpy(block.attention(block.norm_1(tokens), return_attention_scores=True)[1])
    if block.compute_dtype != "float32":
        # Their float32 softmax was rounded to the compute dtype, after which rows sum to 1 no more.
        scores /= scores.sum(axis=-1, keepdims=True)
    return scores


def sublayers(model, kind):
    """All layers of a kind in a model, however deep, each once, in the order in which they were added."""
    if not isinstance(model, keras.Layer):
        raise ValueError(f"Expected a Keras model. Received: {model!r}")
    found, pending = [], [model]
    while pending:
        layer = pending.pop(0)
        if layer not in found:
            found.append(layer)
            # Keras lists the layers of models alone; other layers have theirs as attributes.
            inner = layer.layers if isinstance(layer, keras.Model) else keras.tree.flatten(list(vars(layer).values()))
            pending = [each for each in inner if isinstance(each, keras.Layer)] + pending
    return [layer for layer in found if isinstance(layer, kind)]


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
