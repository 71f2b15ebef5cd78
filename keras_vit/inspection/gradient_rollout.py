import functools

import keras
import numpy as np
from keras import ops

from keras_vit import arguments
from keras_vit.inspection.gradients import gradients
from keras_vit.inspection.watch import Watch, batches, original, replaced_calls, to_numpy


def gradient_rollout(
    model: keras.Model, images, classes=None, batch_size: int = 8, readout: str | None = None
) -> np.ndarray:
    """Follows the attention that speaks for a class through all blocks, to the patches that it comes from.

    Each block's attention weights A are multiplied by the gradient of the class' output with respect to them, negative
    products dropped and the heads averaged: B. The product of the matrices I + B over the blocks, less the identity,
    tells how each patch bears on each token. Of it the class token's row is returned, or a mean of the patches' rows
    where the head reads them, as in `attention_rollout`. Gradients are computed block by block from the last, so that
    one block's attention is held at a time; each block costs one more run of what lies around the blocks.

    Args:
        model: Any model that holds one ViT of this package, as in `attention_maps`, whose output is (batch, classes).
        images: The model's input, as in `attention_maps`.
        classes: The class to explain: its index, or one index an image. None takes each image's most probable one.
        batch_size: Int, how many images run at a time.
        readout: As in `attention_rollout`.

    Returns:
        (batch, rows, columns), float32, not below 0.

    Raises:
        ValueError: If the model holds no ViT, or several, or runs it more than once, gives no (batch, classes), or has
            no such class; or if its attention is quantized.

    Example:

    >>> model = keras_vit.ViTTi16(image_size=(48, 32), num_classes=3, head_init="glorot_uniform")
    >>> gradient_rollout(model, np.zeros((2, 48, 32, 3)), classes=1).shape
    (2, 3, 2)

    Reference: [arXiv 2103.15679](https://arxiv.org/abs/2103.15679), equations 5 and 6. Where patches are pooled, which
    the paper does not treat, the last step is the pooling's own.
    """
    arguments.positive_int("batch_size", batch_size)
    watch, grids, start = Watch(model, readout), [], 0
    if mode := quantization_of_attention(watch):
        raise ValueError(
            "Expected a model without quantized attention, whose gradient is not known. "
            f"Received: model {model.name!r}, quantized to {mode!r}"
        )
    number = len(keras.tree.flatten(images)[0])
    if classes is not None:
        classes = np.asarray(ops.convert_to_numpy(classes) if ops.is_tensor(classes) else classes)
        if classes.shape not in ((), (number,)):
            raise ValueError(
                f"Expected `classes` to be one integer, or one for each of {number} images. Received: shape "
                f"{classes.shape}"
            )
        classes = np.broadcast_to(classes, number)
    for batch in batches(images, batch_size):
        size = len(keras.tree.flatten(batch)[0])
        chosen = None if classes is None else classes[start : start + size]
        grids.append(_of_batch(watch, batch, chosen))
        start += size
    return np.concatenate(grids)


def quantization_of_attention(watch):
    """How an output projection of a model's attention is quantized, or None: Keras then runs another call than ours."""
    modes = (getattr(block.attention.out, "quantization_mode", None) for block in watch.blocks)
    return next((mode for mode in modes if mode), None)


def _of_batch(watch, inputs, classes):
    calls, pooling = [], []
    # Each call of a block by its layer, input and output.
    logits = _run(watch, inputs, lambda layer, x: _record(calls, layer, x), pooling)
    weights = _weights_of_class(logits, classes)
    outputs = [y for _, _, y in calls]
    # The gradient of the class' output with respect to the input of each block, by the block's index.
    pulled = {}
    row = start = _readout_row(watch, calls[0][1].shape, pooling)
    for i in reversed(range(len(calls))):

        def around(delta, i=i):
            """The class' output, and what reaches it through later blocks, when the output of block `i` changes."""
            seen = []

            def constant(layer, tokens):
                seen.append(tokens)
                y = outputs[len(seen) - 1]
                return y + delta if len(seen) - 1 == i else y

            y = _sum(_run(watch, inputs, constant) * weights)
            return y + sum(_sum(gradient * seen[j]) for j, gradient in pulled.items())

        (gradient,) = gradients(around, ops.zeros_like(outputs[i]))
        pulled[i], scores, score_gradient = _through_block(*calls[i][:2], gradient)
        row = row + np.einsum("bq,bqk->bk", row, np.maximum(scores * score_gradient, 0).mean(axis=1))
    return watch.to_grid(row - start)


def _run(watch, inputs, call_block, pooling=None):
    """Runs the model with `call_block(layer, tokens)` in place of each block."""

    def block(layer, tokens, **kwargs):
        watch.see_tokens(layer, tokens)
        return call_block(layer, tokens)

    calls = {layer: functools.partial(block, layer) for layer in watch.blocks}
    if pooling is not None and watch.readout == "map":
        watch.run(inputs, on_pooling=pooling.append)
    return watch.run_with(inputs, calls)


def _record(calls, layer, x):
    x = ops.stop_gradient(x)
    y = ops.stop_gradient(original(layer)(x, training=False))
    calls.append((layer, x, y))
    return y


def _weights_of_class(logits, classes):
    """1 at each image's class, (batch, classes)."""
    if not hasattr(logits, "shape") or len(logits.shape) != 2:
        raise ValueError(
            "Expected a model whose output is (batch, classes). Received: "
            f"{keras.tree.map_structure(lambda y: tuple(y.shape), logits)}"
        )
    num_classes = logits.shape[1]
    if classes is None:
        classes = to_numpy(logits).argmax(axis=1)
    if classes.dtype.kind not in "iu" or classes.min() < 0 or classes.max() >= num_classes:
        raise ValueError(f"Expected `classes` to be integers of 0..{num_classes - 1}. Received: {classes.tolist()}")
    return ops.convert_to_tensor(np.eye(num_classes, dtype="float32")[classes])


def _readout_row(watch, tokens_shape, pooling):
    """How much the head reads of each token, (batch, num_tokens)."""
    batch, length, _ = tokens_shape
    weights = None
    if pooling:
        weights = pooling[0].mean(axis=1)[:, 0]
    identity = np.broadcast_to(np.eye(length, dtype="float32"), (batch, length, length))
    return watch.read_out(identity, weights)


def _through_block(layer, x, gradient):
    """Takes a gradient back through one block.

    Returns:
        The gradient of the block's input; its attention weights and their gradient, in NumPy.
    """
    attention, seen = layer.attention, {}

    def look_on(tokens, **kwargs):
        seen["value"] = attention.project(tokens)[2]
        y, seen["scores"] = original(attention)(tokens, training=False, return_attention_scores=True)
        return y, seen["scores"]

    with replaced_calls({attention: look_on}):
        original(layer)(x, training=False, return_attention_scores=True)
    batch, length, num_heads, head_dim = seen["value"].shape

    # The joined heads A V, which the output projection takes, tell the gradient of A without a matrix of its size.
    def outputs(delta_x, delta_heads):
        project = original(attention.out)
        with replaced_calls({attention.out: lambda heads, **kwargs: project(heads + delta_heads[:, : heads.shape[1]])}):
            y = original(layer)(x + delta_x, training=False)
        return _sum(y * gradient)

    joined = ops.zeros((batch, length, num_heads * head_dim), dtype=seen["value"].dtype)
    of_x, of_heads = gradients(outputs, ops.zeros_like(x), joined)
    of_heads = to_numpy(of_heads).reshape(batch, length, num_heads, head_dim)
    of_scores = np.matmul(of_heads.transpose(0, 2, 1, 3), to_numpy(seen["value"]).transpose(0, 2, 3, 1))
    return of_x, to_numpy(seen["scores"]), of_scores


def _sum(x):
    return ops.sum(ops.cast(x, "float32"))
