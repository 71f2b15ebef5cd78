import keras
import numpy as np
from keras import ops

from keras_vit.inspection.gradients import batches_and_classes, class_weights, gradients
from keras_vit.models.graph import producing_call
from keras_vit.prediction.taps import onward, sublayers, taps, to_numpy


def grad_cam(model: keras.Model, images, classes=None, layer: str | None = None, batch_size: int = 8) -> np.ndarray:
    """Returns Grad-CAM, float32 (batch, rows, columns), non-negative: how much each place raises the class output.

    Each channel of a feature map is weighted by the mean gradient of the class output with respect to it. The sum of
    the channels is clipped at 0. `plot_attention_rollout` and `attention_overlay` draw the result.

    Args:
        model: A model with one output, (batch, classes), such as a BiT, EfficientNet or CoAtNet, possibly fine-tuned or
            nested in another model. Use `gradient_rollout` for a ViT.
        images, classes, batch_size: As in `gradient_rollout`.
        layer: String, the name of the layer whose output is the feature map, (batch, rows, columns, channels). None
            takes the input of the last `GlobalAveragePooling2D`.

    Raises:
        ValueError: If the model has no such layer, or an argument is invalid.

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

        feature_map = source(*entering[source])
        if len(feature_map.shape) != 4:
            received = f"layer {source.name!r} with output of shape {tuple(feature_map.shape)}"
            raise ValueError(f"Expected a `layer` with output (batch, rows, columns, channels). Received: {received}")
        gradient = to_numpy(gradients(class_output, feature_map)[0])
        maps.append(np.einsum("brsc,bc->brs", to_numpy(feature_map), gradient.mean(axis=(1, 2))))
    return np.maximum(np.concatenate(maps), 0)


def _source(model, name):
    """Returns the layer whose output is the feature map."""
    if name is not None:
        found = [layer for layer in sublayers(model, keras.Layer) if layer.name == name]
        if len(found) != 1:
            expected = f"the name of one layer of model {model.name!r} as `layer`"
            raise ValueError(f"Expected {expected}. Received: {name!r}, the name of {len(found)} layers")
        return found[0]
    poolings = sublayers(model, keras.layers.GlobalAveragePooling2D)
    if not poolings:
        expected = "a layer of type GlobalAveragePooling2D, or the name of a layer; for a ViT, use gradient_rollout"
        raise ValueError(f"Expected {expected}. Received: model {model.name!r}, layer=None")
    return producing_call(poolings[-1].input)[0]
