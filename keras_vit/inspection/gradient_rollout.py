import keras
import numpy as np
from keras import ops

from keras_vit import arguments
from keras_vit.inspection.gradients import gradients
from keras_vit.inspection.watch import Watch, batches, scores_of, to_numpy


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
    pooling = []
    seen = watch.run(inputs, on_pooling=pooling.append if watch.readout == "map" else None)
    outputs, around = seen["gives"], watch.around_blocks(inputs)
    weights = _weights_of_class(seen["outputs"], classes)
    # The gradient of the class' output with respect to the input of each block, by the block's index.
    pulled = {}
    row = start = _readout_row(watch, seen["tokens"][0].shape, pooling)
    for i in reversed(range(len(outputs))):

        def following(output, i=i):
            """The class' output, and what reaches it through later blocks, when block `i` gives `output`."""
            changed = around([*outputs[:i], output, *outputs[i + 1 :]])
            y = _sum(changed["outputs"][0] * weights)
            return y + sum(_sum(gradient * changed["tokens"][j]) for j, gradient in pulled.items())

        (gradient,) = gradients(following, outputs[i])
        pulled[i], scores, score_gradient = _through_block(watch.blocks[i], seen["tokens"][i], gradient)
        row = row + np.einsum("bq,bqk->bk", row, np.maximum(scores * score_gradient, 0).mean(axis=1))
    return watch.to_grid(row - start)


def _weights_of_class(outputs, classes):
    """1 at each image's class, (batch, classes)."""
    shapes = [tuple(y.shape) for y in outputs]
    if len(shapes) != 1 or len(shapes[0]) != 2:
        raise ValueError(f"Expected a model whose output is (batch, classes). Received: {', '.join(map(str, shapes))}")
    (logits,), num_classes = outputs, shapes[0][1]
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


def _through_block(block, tokens, gradient):
    """Takes a gradient back through one block.

    Returns:
        The gradient of the block's input; its attention weights and their gradient, in NumPy.
    """
    attention = block.attention

    def outputs(tokens, change):
        attended = attention(block.norm_1(tokens)) + change
        return _sum(block.add_mlp(block.add_attention(tokens, attended)) * gradient)

    tokens = ops.stop_gradient(tokens)
    of_tokens, of_attended = gradients(outputs, tokens, ops.zeros_like(tokens))
    value = to_numpy(attention.project(block.norm_1(tokens))[2])
    # What the output projection takes are the joined heads A V: they tell the gradient of A.
    of_heads = np.matmul(to_numpy(of_attended), to_numpy(attention.out.kernel).T).reshape(value.shape)
    of_scores = np.matmul(of_heads.transpose(0, 2, 1, 3), value.transpose(0, 2, 3, 1))
    return of_tokens, scores_of(block, tokens), of_scores


def _sum(x):
    return ops.sum(ops.cast(x, "float32"))
