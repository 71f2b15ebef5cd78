"""Reads the input tensors of layers inside a model, and the attention weights of the model's ViT."""

import contextlib
from typing import NamedTuple

import keras
import numpy as np
from keras import ops

from keras_vit import arguments
from keras_vit.layers import AttentionPooling, ImageNormalization, PatchEmbedding, TokenPooling, TransformerBlock
from keras_vit.models.graph import is_graph, nodes_before, producing_call


class PatchLayout(NamedTuple):
    """The position of a ViT's tokens in its images.

    Args:
        image_size: (height, width) in pixels of the images that reach the ViT.
        grid_size: (rows, columns) of patches.
        patch_size: (height, width) of a patch in pixels of these images; in hybrids, not always whole numbers.
        num_prefix_tokens: Number of class, distillation and register tokens before the patches.
    """

    image_size: tuple[int, int]
    grid_size: tuple[int, int]
    patch_size: tuple[float, float]
    num_prefix_tokens: int


class AttentionTaps:
    """Reads the input tokens of all blocks of a model's only ViT, in inference mode."""

    def __init__(self, model, readout=None):
        self.model = model
        self.blocks = sublayers(model, TransformerBlock)
        if not self.blocks:
            expected = "a model that holds a ViT of this package, with layers of type TransformerBlock"
            raise ValueError(f"Expected {expected}. Received: model {model.name!r}")
        if any(block.token_merging for block in self.blocks):
            advice = "Build it with token_merging=0 and load the same weights."
            raise ValueError(f"Expected a model without token merging. Received: model {model.name!r}. {advice}")
        self.embedding = only_one(model, PatchEmbedding)
        backbone = next((inner for inner in sublayers(model, keras.Model) if self.embedding in inner.layers), model)
        self.normalization = next(iter(sublayers(backbone, ImageNormalization)), None)
        self.poolings = sublayers(model, (AttentionPooling, TokenPooling))
        self.readout = arguments.choice("readout", readout, (None, "token", "gap"))
        self.layout = self.images = self.values = None

    def run(self, inputs):
        """Returns two lists: the model's outputs, and (block, input tokens, call arguments) for each block."""
        layers = [*self.blocks, self.embedding, *self.poolings]
        layers += [] if self.normalization is None else [self.normalization]
        outputs, self.values = taps(self.model, (inputs,), layers)
        calls = []
        for block in self.blocks:
            tokens, *rotary = self.values[block]
            calls.append((block, tokens, {"rotary": rotary[0]} if rotary else {}))
        self.images = None if self.normalization is None else self.values[self.normalization][0]
        sides, patch = self.values[self.embedding][0].shape[1:3], self.embedding.patch_size
        image_size = tuple(sides if self.images is None else self.images.shape[1:3])
        (rows, columns), num_tokens = (sides[0] // patch[0], sides[1] // patch[1]), calls[0][1].shape[1]
        if num_tokens < rows * columns:
            expected = f"blocks that get a token for each of the {rows} x {columns} patches"
            raise ValueError(f"Expected {expected}. Received: {num_tokens} tokens in model {self.model.name!r}")
        pixels = patch[0] * image_size[0] / sides[0], patch[1] * image_size[1] / sides[1]
        self.layout = PatchLayout(image_size, (rows, columns), pixels, num_tokens - rows * columns)
        return outputs, calls

    def rollout(self, inputs, fuse=ops.mean, discard=None) -> tuple:
        """Returns the outputs and the rollout, float32 (batch, rows, columns). Export calls it in a traced graph."""
        outputs, calls = self.run(inputs)
        product = None
        for call in calls:
            matrices = fuse(attention_weights(*call), axis=1)
            if discard is not None:
                matrices = discard(matrices)
            # The identity matrix stands for the skip connection.
            matrices = matrices + ops.eye(matrices.shape[-1], dtype="float32")
            matrices = matrices / ops.sum(matrices, axis=-1, keepdims=True)
            product = matrices if product is None else ops.matmul(matrices, product)
        return outputs, self.to_grid(self.read_out(product, fuse))

    def read_out(self, rows, fuse=ops.mean):
        """Returns the row (batch, num_tokens) of the token that the head reads. Averages the rows of several tokens.

        With attention pooling, the mean is weighted by the attention of the pooling.
        """
        num_prefix, readout = self.layout.num_prefix_tokens, self.readout or self._pooling()
        if readout == "token" and not num_prefix:
            expected = f"'gap' for a model without a class token, such as {self.model.name!r}"
            raise arguments.invalid("readout", expected, readout)
        if readout == "token_gap":
            return (rows[:, 0] + ops.mean(rows[:, num_prefix:], axis=1)) / 2
        if readout == "token":
            # The heads of a distilled model read two tokens.
            read = [layer.index for layer in self.poolings if isinstance(layer, TokenPooling)]
            return ops.mean(ops.take(rows, read if self.readout is None and read else [0], axis=1), axis=1)
        rows = rows[:, num_prefix:]
        if readout != "map":
            return ops.mean(rows, axis=1)
        pooling = self.poolings[-1]
        weights = in_float32(pooling(self.values[pooling][0], return_attention_scores=True)[1])
        weights = fuse(weights, axis=1)[:, 0]
        return ops.einsum("bp,bpt->bt", weights / ops.sum(weights, axis=-1, keepdims=True), rows)

    def _pooling(self):
        """Returns the pooling, from the model's layers or its config: "token", "gap", "token_gap" or "map"."""
        if self.poolings:
            return getattr(self.poolings[-1], "method", "map")
        config = getattr(self.normalization, "config", None)
        if config is None:
            expected = "a layer of type TokenPooling or AttentionPooling, or readout='token' or 'gap'"
            raise ValueError(f"Expected {expected}. Received: model {self.model.name!r}, readout=None")
        return config.pooling

    def to_grid(self, rows):
        """Drops the prefix tokens, and reshapes numbers per token, (batch, num_tokens), to (batch, rows, columns)."""
        return ops.reshape(rows[:, self.layout.num_prefix_tokens :], (-1, *self.layout.grid_size))


def taps(model, args, layers):
    """Runs a model or layer without gradients; returns its outputs and {layer: input tensors} of `layers`.

    `args` are the arguments of the call. The `layers` may be at any depth, and each must run once.
    """
    with _no_gradients():
        return _read(model, args, layers)


def _read(model, args, layers):
    """Does the same as `taps`, but gradients can be computed."""
    graph, values = _graph_and_inputs(model, args)
    calls = [(*call, _within(call[0], layers)) for call in nodes_before(graph.outputs)]
    calls = [call for call in calls if call[2]]
    ran = [layer for *_, inner in calls for layer in inner]
    for layer in layers:
        if ran.count(layer) != 1:
            received = f"{layer.name!r} {'run again' if layer in ran else 'not run'} in model {model.name!r}"
            advice = "If the model calls a ViT several times, pass the ViT: model.get_layer(...)."
            raise ValueError(f"Expected a model in which each block runs once. Received: {received}. {advice}")
    reader = keras.Model(graph.inputs, [*graph.outputs, *(x for _, tensors, _ in calls for x in tensors)])
    computed = keras.tree.flatten(reader(values, training=False))
    outputs, computed = computed[: len(graph.outputs)], iter(computed[len(graph.outputs) :])
    found = {}
    for operation, tensors, inner in calls:
        entering = [next(computed) for _ in tensors]
        found |= {operation: entering} if operation in layers else _read(operation, entering, inner)[1]
    return outputs, found


def onward(model, args, start, end=None):
    """Returns a differentiable function from the output of layer `start` to [first input tensor of layer `end`].

    If `end` is None, the function returns the model's outputs. `model` and `args` are as in `taps`.
    """
    graph, values = _graph_and_inputs(model, args)
    calls = list(nodes_before(graph.outputs))
    ((first, entering),) = (call for call in calls if _within(call[0], [start]))
    last, stops = next((call for call in calls if end is not None and _within(call[0], [end])), (None, graph.outputs))
    if first is not start:
        with _no_gradients():
            entering = keras.tree.flatten(keras.Model(graph.inputs, entering)(values, training=False))
        inner = onward(first, entering, start, end if last is first else None)
        if last is first:
            return inner
    # Use only a block's first input, its tokens. Its later inputs, such as rotary positions, do not depend on tokens.
    stops = stops[:1] if last is not None and last is end else stops
    tensors = [*graph.outputs, *(x for _, inputs in calls for x in inputs)]
    leaving = list({id(x): x for x in tensors if producing_call(x)[0] is first}.values())
    computed = [x for x in stops if all(x is not y for y in leaving)]
    rest = keras.Model([*graph.inputs, *leaving], computed) if computed else None

    def run(x):
        outputs = [x] if first is start else inner(x)
        entering = [outputs[producing_call(y)[3]] for y in leaving]
        found = {id(y): x for y, x in zip(leaving, entering, strict=True)}
        if rest is not None:
            found |= zip(map(id, computed), keras.tree.flatten(rest([*values, *entering], training=False)), strict=True)
        found = [found[id(x)] for x in stops]
        return found if last is None or last is end else _read(last, found, [end])[1][end][:1]

    return run


def _within(operation, layers):
    """Returns the layers of the list `layers` that an operation contains, including the operation itself."""
    held = sublayers(operation, keras.Layer) if isinstance(operation, keras.Layer) else ()
    return [layer for layer in layers if layer in held]


def _graph_and_inputs(model, args):
    """Returns the functional graph of a model, traced if necessary, and a list of its input tensors."""
    values = [ops.convert_to_tensor(x) for x in keras.tree.flatten(args)]
    if not is_graph(model):
        symbols = [keras.Input(batch_shape=x.shape, dtype=keras.backend.standardize_dtype(x.dtype)) for x in values]
        model = keras.Model(symbols, model.call(*keras.tree.pack_sequence_as(args, symbols)))
    return model, [ops.cast(x, tensor.dtype) for x, tensor in zip(values, model.inputs, strict=True)]


def _no_gradients():
    """Returns a context in which PyTorch does not store activations for gradients."""
    if keras.backend.backend() != "torch":
        return contextlib.nullcontext()
    import torch  # noqa: TID251

    return torch.no_grad()


def attention_weights(block, tokens, options):
    """Returns a block's attention weights, (batch, num_heads, num_tokens, num_tokens), float32, without gradients."""
    with _no_gradients():
        return in_float32(block.attention(block.norm_1(tokens), return_attention_scores=True, **options)[1])


def in_float32(scores):
    """Casts attention weights to float32."""
    weights = ops.cast(scores, "float32")
    if keras.backend.standardize_dtype(scores.dtype) == "float32":
        return weights
    # Rows that were rounded to the compute dtype do not sum to exactly 1, so divide by the sums.
    return weights / ops.sum(weights, axis=-1, keepdims=True)


def sublayers(model, kind) -> list:
    """Returns all layers of a type at any depth of a model, each once, in the order they were added."""
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
        received = f"{len(found)} in model {model.name!r}. To choose one of several ViTs, pass model.get_layer(...)."
        raise ValueError(f"Expected a model with one layer of type {kind.__name__}. Received: {received}")
    return found[0]


def to_numpy(x) -> np.ndarray:
    """Converts a tensor to a NumPy float32 array."""
    # Some backends return read-only shared memory, so copy it.
    return np.array(ops.convert_to_numpy(ops.cast(ops.stop_gradient(x), "float32")))
