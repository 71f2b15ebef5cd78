"""Finds the ViT in a model and runs it block by block."""

import inspect
from collections.abc import Callable
from typing import NamedTuple

import keras
import numpy as np
from keras import ops

from keras_vit import arguments
from keras_vit.config import config_of
from keras_vit.layers import AttentionPooling, ImageNormalization, PatchEmbedding, TokenPooling, TransformerBlock
from keras_vit.models.graph import is_graph, replay
from keras_vit.prediction.inputs import check_size

# The layers that `Watch.run` handles.
_SEEN = (ImageNormalization, PatchEmbedding, TransformerBlock, AttentionPooling, TokenPooling)


class PatchLayout(NamedTuple):
    """The position of a ViT's tokens in its images.

    Args:
        image_size: (height, width) in pixels of the images that reach the ViT.
        grid_size: (rows, columns) of patches.
        patch_size: (height, width) of a patch in pixels of these images; not always whole numbers in hybrids.
        num_prefix_tokens: Number of class, distillation and register tokens before the patches.
    """

    image_size: tuple[int, int]
    grid_size: tuple[int, int]
    patch_size: tuple[float, float]
    num_prefix_tokens: int


class Watch:
    """Runs a model layer by layer in inference mode, to read inputs of blocks or replace their outputs."""

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
                "Expected a model without token merging, which breaks the grid of patches. Received: "
                f"{_named(model)}. Build it with token_merging=0 and load the same weights."
            )
        embedding = only_one(model, PatchEmbedding)
        self.config = config_of(next(inner for inner in sublayers(model, keras.Model) if embedding in inner.layers))
        self.readout = arguments.one_of("readout", readout, (None, "token", "gap"))

    def run(self, inputs, on_block: Callable | None = None) -> list:
        """Returns a list of outputs; `on_block(index, block, tokens, **inputs)` may return another output of a block.

        `inputs` is {"rotary": ...} in models with rotary positions, else {}.
        """
        if hasattr(inputs, "shape"):
            check_size(self.model, inputs, "images")
        self.layout = self.images = self.pooled = None
        # The numbers of the tokens that are pooled by themselves.
        self.read = []
        self.pooling = self.config.pooling
        ran = []

        def call(layer, *args, **kwargs):
            if isinstance(layer, TransformerBlock):
                run_once(layer, ran, self.model)
                y = None if on_block is None else on_block(len(ran) - 1, layer, args[0], **kwargs)
                # Otherwise PyTorch keeps the activations of all blocks.
                return ops.stop_gradient(layer(args[0], training=False, **kwargs)) if y is None else y
            if isinstance(layer, ImageNormalization):
                self.images = layer, args[0]
            elif isinstance(layer, PatchEmbedding):
                self.layout = self._layout(args[0])
            elif isinstance(layer, AttentionPooling):
                self.pooled, self.pooling = (layer, args[0]), "map"
            elif isinstance(layer, TokenPooling):
                self.pooling = layer.method
                if layer.method == "token":
                    self.read.append(layer.index)
            elif isinstance(layer, keras.Layer) and sublayers(layer, _SEEN):
                return unfolded(layer, args, kwargs, call)
            return infer(layer, args, kwargs)

        return unfolded(self.model, (keras.tree.map_structure(ops.convert_to_tensor, inputs),), {}, call)

    def _layout(self, feature_map):
        sides = tuple(feature_map.shape[1:3])
        image_size = sides if self.images is None else tuple(self.images[1].shape[1:3])
        patch = self.config.patch_size
        grid_size = sides[0] // patch[0], sides[1] // patch[1]
        pixels = patch[0] * image_size[0] / sides[0], patch[1] * image_size[1] / sides[1]
        return PatchLayout(image_size, grid_size, pixels, self.config.num_prefix_tokens)

    def rollout(self, inputs, fuse=ops.mean, discard=None) -> tuple:
        """Returns a list of outputs and the attention rollout, (batch, rows, columns), float32; works in graphs too.

        `fuse(scores, axis=1)` fuses the heads, and `discard(matrices)` may set fused weights to 0.
        """
        product = None

        def step(i, block, tokens, **inputs):
            nonlocal product
            tokens, scores = block(tokens, training=False, return_attention_scores=True, **inputs)
            matrices = fuse(as_weights(scores), axis=1)
            if discard is not None:
                matrices = discard(matrices)
            # The identity stands for the residual branch.
            matrices = matrices + ops.eye(matrices.shape[-1], dtype="float32")
            matrices = matrices / ops.sum(matrices, axis=-1, keepdims=True)
            product = ops.matmul(matrices, product) if i else matrices
            return ops.stop_gradient(tokens)

        outputs = self.run(inputs, step)
        return outputs, self.to_grid(self.read_out(product, fuse))

    def read_out(self, rows, fuse=ops.mean):
        """Selects or averages the rows that the head reads: (batch, num_tokens, num_tokens) to (batch, num_tokens)."""
        num_prefix = self.layout.num_prefix_tokens
        readout = self.readout or self.pooling
        if readout == "token" and not num_prefix:
            raise ValueError(
                "Invalid value received for argument `readout`. Expected 'gap' for a model without a class token. "
                f"Received: 'token' for {_named(self.model)}"
            )
        if readout == "token_gap":
            return (rows[:, 0] + ops.mean(rows[:, num_prefix:], axis=1)) / 2
        if readout == "token" or (readout is None and self.config.class_token):
            # A distilled model reads two tokens.
            return ops.mean(ops.take(rows, self.read if self.readout is None and self.read else [0], axis=1), axis=1)
        rows = rows[:, num_prefix:]
        if readout != "map" or not self.pooled:
            return ops.mean(rows, axis=1)
        layer, tokens = self.pooled
        weights = fuse(as_weights(layer(tokens, return_attention_scores=True)[1]), axis=1)[:, 0]
        return ops.einsum("bp,bpt->bt", weights / ops.sum(weights, axis=-1, keepdims=True), rows)

    def to_grid(self, rows):
        """Reshapes the patches of (batch, num_tokens) to (batch, rows, columns)."""
        return ops.reshape(rows[:, self.layout.num_prefix_tokens :], (-1, *self.layout.grid_size))


def run_once(layer, ran, model):
    """Adds a layer to the list `ran`; raises if it is in it already."""
    if layer in ran:
        raise ValueError(
            f"Expected a model of blocks that run once. Received: {layer.name!r} run again in {_named(model)}. If the "
            "model calls a ViT several times, pass the ViT: model.get_layer(...)."
        )
    ran.append(layer)


def infer(layer, args, kwargs):
    """Calls a layer in inference mode, whatever its default."""
    if "training" in inspect.signature(layer.call).parameters:
        # Keras' augmentation layers default to training=True.
        kwargs["training"] = False
    return layer(*args, **kwargs)


def unfolded(layer, args, kwargs, call):
    """Runs a model's graph, or one traced from a layer, with the function `call` for each layer; returns a list."""
    tensors = [x for x in keras.tree.flatten((args, kwargs)) if ops.is_tensor(x)]
    if not is_graph(layer):
        inputs = {id(x): keras.Input(batch_shape=x.shape, dtype=x.dtype) for x in tensors}
        args, kwargs = keras.tree.map_structure(lambda x: inputs.get(id(x), x), (args, kwargs))
        layer = keras.Model(list(inputs.values()), layer.call(*args, **kwargs))
    cast = [ops.convert_to_tensor(x, dtype=i.dtype) for x, i in zip(tensors, layer.inputs, strict=True)]
    return replay(layer, cast, call)


def scores_of(block, tokens, **inputs) -> np.ndarray:
    """Returns a block's attention weights, (batch, num_heads, num_tokens, num_tokens), as NumPy float32."""
    return to_numpy(as_weights(block.attention(block.norm_1(tokens), return_attention_scores=True, **inputs)[1]))


def as_weights(scores):
    """Casts attention weights to float32, without a gradient."""
    weights = ops.cast(ops.stop_gradient(scores), "float32")
    if keras.backend.standardize_dtype(scores.dtype) == "float32":
        return weights
    # Rows rounded to the compute dtype do not sum to 1.
    return weights / ops.sum(weights, axis=-1, keepdims=True)


def sublayers(model, kind) -> list:
    """Returns all layers of a type in a model, at any depth, each once, in the order they were added."""
    if not isinstance(model, keras.Layer):
        raise ValueError(f"Expected a Keras model. Received: {model!r}")
    found, pending = [], [model]
    while pending:
        layer = pending.pop(0)
        if layer not in found:
            found.append(layer)
            # Layers that are not models hold sublayers as attributes.
            inner = layer.layers if isinstance(layer, keras.Model) else keras.tree.flatten(list(vars(layer).values()))
            pending = [each for each in inner if isinstance(each, keras.Layer)] + pending
    return [layer for layer in found if isinstance(layer, kind)]


def only_one(model, kind) -> keras.Layer:
    """Returns the only layer of a type in a model; raises ValueError if there are none or several."""
    found = sublayers(model, kind)
    if len(found) != 1:
        raise ValueError(
            f"Expected a model with one layer of type {kind.__name__}. Received: {_named(model)} with {len(found)}. "
            "If the model holds several ViTs, pass one of them: model.get_layer(...)."
        )
    return found[0]


def to_numpy(x) -> np.ndarray:
    """Converts a tensor to a NumPy float32 array."""
    # A copy, as some backends return read-only shared memory.
    return np.array(ops.convert_to_numpy(ops.cast(ops.stop_gradient(x), "float32")))


def _named(model):
    return f"model {model.name!r}"
