"""Gradient-weighted attention rollout, and gradients on any backend."""

import keras
import numpy as np
from keras import ops

from keras_vit.inspection.inputs import batches, class_indices
from keras_vit.models.graph import producing_call
from keras_vit.prediction.classes import fitting_class_names
from keras_vit.prediction.taps import AttentionTaps, attention_weights, onward, sublayers, taps, to_numpy


def gradient_rollout(
    model: keras.Model, images, classes=None, batch_size: int = 8, readout: str | None = None
) -> np.ndarray:
    """Returns gradient-weighted attention rollout for a class, float32 (batch, rows, columns), non-negative.

    In each block, the attention weights are multiplied by the gradient of the class's output with respect to these
    weights. Negative products are set to 0, and the products are averaged over the attention heads, which gives a
    matrix B. The matrices I + B of all blocks are multiplied, where I is the identity matrix. Then I is subtracted from
    the product, and the row that the classification head reads is returned, as in `attention_rollout`. Only one block's
    gradients are in memory at a time.

    Args:
        model: As in `attention_maps`, with one output, (batch, classes). Models with quantized attention or with
            `attention_norm` raise a ValueError.
        images, batch_size, readout: As in `attention_rollout`.
        classes: The class to explain, an int or a class name of the model, or a list of one class per image. None
            explains the top-1 class of each image.

    Example:
    >>> model = keras_vit.ViTTi16(image_size=(48, 32), num_classes=3, head_init="glorot_uniform")
    >>> gradient_rollout(model, np.zeros((2, 48, 32, 3)), classes=1).shape
    (2, 3, 2)

    Reference: [arXiv 2103.15679](https://arxiv.org/abs/2103.15679), equations 5 and 6. The paper does not cover models
    that pool the patches. For these models, the rows of the patches are averaged with the weights of the pooling.
    """
    taps = AttentionTaps(model, readout)
    modes = (getattr(block.attention.out, "quantization_mode", None) for block in taps.blocks)
    if mode := next(filter(None, modes), None):
        received = f"model {model.name!r}, quantized to {mode!r}"
        raise ValueError(f"Expected a model without quantized attention (it has no gradient). Received: {received}")
    if any(block.attention_norm for block in taps.blocks):
        raise ValueError(f"Expected a model without attention_norm. Received: model {model.name!r}")
    pairs = batches_and_classes(model, images, classes, batch_size)
    return np.concatenate([_rollout(taps, batch, chosen) for batch, chosen in pairs])


def batches_and_classes(model, images, classes, batch_size):
    """Yields (batch of images, array of their class indices), or (batch of images, None) if `classes` is None."""
    parts = batches(model, images, batch_size)
    if classes is not None:
        number = len(keras.tree.flatten(images)[0])
        classes = class_indices("classes", classes, fitting_class_names(model))
        if classes.shape not in ((), (number,)):
            expected = f"Expected `classes` to be one integer, or one for each of {number} images"
            raise ValueError(f"{expected}. Received: shape {classes.shape}")
        classes = np.broadcast_to(classes, number)
    for i, batch in enumerate(parts):
        yield batch, None if classes is None else classes[i * batch_size : (i + 1) * batch_size]


def _rollout(taps, inputs, classes):
    """Returns the gradient-weighted rollout of a batch."""
    outputs, calls = taps.run(inputs)
    batch, length, _ = calls[0][1].shape
    row = start = to_numpy(taps.read_out(ops.tile(ops.eye(length, dtype="float32")[None], (batch, 1, 1))))
    gradient, later = None, None
    for block, tokens, options in reversed(calls):
        rest = onward(taps.model, (inputs,), block, later)
        weight = class_weights(outputs, classes) if gradient is None else ops.cast(gradient, "float32")

        def weighted(tokens, change, block=block, options=options, rest=rest, weight=weight):
            attended = block.attention(block.norm_1(tokens), **options) + change
            (y,) = rest(block.add_mlp(block.add_attention(tokens, attended)))
            return ops.sum(ops.cast(y, "float32") * weight)

        gradient, change = gradients(weighted, tokens, ops.zeros_like(tokens))
        # Let A be the attention weights, and V the values. `change` is the gradient of the attention layer's output,
        # `of_heads` is the gradient of A V, the input of the output projection, and `of_scores` is the gradient of A.
        value = to_numpy(block.attention.project(block.norm_1(tokens))[2])
        of_heads = np.matmul(to_numpy(change), to_numpy(block.attention.out.kernel).T).reshape(value.shape)
        of_scores = np.matmul(of_heads.transpose(0, 2, 1, 3), value.transpose(0, 2, 3, 1))
        positive = np.maximum(to_numpy(attention_weights(block, tokens, options)) * of_scores, 0).mean(axis=1)
        row = row + np.einsum("bq,bqk->bk", row, positive)
        later = block
    return to_numpy(taps.to_grid(row - start))


def class_weights(outputs, classes):
    """Returns one-hot `classes`, (batch, num_classes). If `classes` is None, uses the top-1 classes of `outputs`."""
    shapes = [tuple(y.shape) for y in outputs]
    if len(shapes) != 1 or len(shapes[0]) != 2:
        raise ValueError(f"Expected a model whose output is (batch, classes). Received: {', '.join(map(str, shapes))}")
    (logits,), num_classes = outputs, shapes[0][1]
    if classes is None:
        classes = to_numpy(logits).argmax(axis=1)
    if classes.dtype.kind not in "iu" or classes.min() < 0 or classes.max() >= num_classes:
        raise ValueError(f"Expected `classes` to be integers of 0..{num_classes - 1}. Received: {classes.tolist()}")
    return ops.convert_to_tensor(np.eye(num_classes, dtype="float32")[classes])


def gradients(function, *values) -> list:
    """Returns the gradients of a scalar function on any backend. If a value has no effect, its gradient is 0."""
    backend = keras.backend.backend()
    if backend == "tensorflow":
        import tensorflow as tf  # noqa: TID251

        # Do not watch the variables, because TensorFlow would keep all activations for their gradients.
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(values)
            y = function(*values)
        return list(tape.gradient(y, values, unconnected_gradients="zero"))
    if backend == "jax":
        import jax  # noqa: TID251

        return list(jax.grad(function, argnums=tuple(range(len(values))))(*values))
    if backend == "torch":
        import torch  # noqa: TID251

        with torch.enable_grad():
            values = [value.detach().requires_grad_() for value in values]
            found = torch.autograd.grad(function(*values), values, allow_unused=True)
        return [ops.zeros_like(x) if g is None else g for g, x in zip(found, values, strict=True)]
    raise ValueError(f"Expected a backend with gradients: tensorflow, jax or torch. Received: {backend!r}")


def grad_cam(model: keras.Model, images, classes=None, layer: str | None = None, batch_size: int = 8) -> np.ndarray:
    """Returns Grad-CAM, float32 (batch, rows, columns), non-negative: how much each position raises a class's output.

    Each channel of a feature map is multiplied by the mean gradient of the class's output with respect to the channel.
    The channels are summed, and negative sums are set to 0. Plot the result with `plot_attention_rollout` or
    `attention_overlay`.

    Args:
        model: A model with one output, (batch, classes), such as a BiT, EfficientNet or CoAtNet, possibly fine-tuned or
            nested in another model. Use `gradient_rollout` for a ViT.
        images, classes, batch_size: As in `gradient_rollout`.
        layer: String, the name of the layer whose output is the feature map, (batch, rows, columns, channels). None
            selects the input of the last `GlobalAveragePooling2D`. If the model has no such layer, a ValueError is
            raised.

    Example:
    >>> model = keras_vit.BiT("R50x1", image_size=64, num_classes=3, head_init="glorot_uniform")
    >>> grad_cam(model, np.zeros((2, 64, 64, 3)), classes=1).shape
    (2, 2, 2)

    Reference: [arXiv 1610.02391](https://arxiv.org/abs/1610.02391), equations 1 and 2.
    """
    source, maps = _source(model, layer), []
    for inputs, chosen in batches_and_classes(model, images, classes, batch_size):
        outputs, entering = taps(model, (inputs,), [source])
        weights, rest = class_weights(outputs, chosen), onward(model, (inputs,), source)

        def class_output(feature_map, weights=weights, rest=rest):
            (logits,) = rest(feature_map)
            return ops.sum(ops.cast(logits, "float32") * weights)

        feature_map = keras.Model(keras.tree.flatten(source.input), source.output)(entering[source])
        if len(feature_map.shape) != 4:
            received = f"layer {source.name!r} with output of shape {tuple(feature_map.shape)}"
            raise ValueError(f"Expected a `layer` with output (batch, rows, columns, channels). Received: {received}")
        gradient = to_numpy(gradients(class_output, feature_map)[0])
        maps.append(np.einsum("brsc,bc->brs", to_numpy(feature_map), gradient.mean(axis=(1, 2))))
    return np.maximum(np.concatenate(maps), 0)


def _source(model, name):
    """Returns the layer called `name`. If `name` is None, returns the layer before the last GlobalAveragePooling2D."""
    if name is not None:
        found = [layer for layer in sublayers(model, keras.Layer) if layer.name == name]
        if len(found) != 1:
            expected = f"the name of one layer of model {model.name!r} as `layer`"
            raise ValueError(f"Expected {expected}. Received: {name!r}, the name of {len(found)} layers")
        return found[0]
    poolings = sublayers(model, keras.layers.GlobalAveragePooling2D)
    if not poolings:
        expected = "a model with a layer of type GlobalAveragePooling2D, or the name of a layer"
        advice = "Use gradient_rollout for a ViT."
        raise ValueError(f"Expected {expected}. Received: model {model.name!r}, layer=None. {advice}")
    return producing_call(poolings[-1].input)[0]
