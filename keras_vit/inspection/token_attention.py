from collections.abc import Sequence

import keras
import numpy as np

from keras_vit.inspection.inputs import batches, collect
from keras_vit.models.vt_resnet.layers import VTModule
from keras_vit.prediction.taps import sublayers, taps, to_numpy


def token_attention_maps(
    model: keras.Model, images, modules: int | Sequence[int] | None = -1, batch_size: int = 8
) -> np.ndarray | list[np.ndarray]:
    """Returns the weights, float32, with which the visual tokens of one or several VT modules read pixels.

    Args:
        model: A model that contains one VT-ResNet of this package, possibly nested in another model.
        modules: The indices of VT modules, as `blocks` in `attention_maps`.
        images, batch_size: As in `attention_maps`.

    Returns:
        Arrays (batch, num_tokens, rows, columns), in pixels of the module's feature map. Each token's map sums to 1.

    Raises:
        ValueError: If the model has no VT module or runs one several times, or an index is out of range.

    Example:

    >>> model = keras_vit.VTResNet18(image_size=64)
    >>> maps = token_attention_maps(model, np.zeros((2, 64, 64, 3)), modules=0)
    >>> maps.shape
    (2, 16, 4, 4)

    Reference: [arXiv 2006.03677](https://arxiv.org/abs/2006.03677), section 3.1, the tokenizers' softmax over HW.
    """
    found = sublayers(model, VTModule)
    if not found:
        expected = "a model that holds a VT-ResNet of this package, with layers of type VTModule"
        raise ValueError(f"Expected {expected}. Received: model {model.name!r}")

    def weights(batch, chosen):
        _, entering = taps(model, (batch,), found)
        calls = [(found[i].tokenizer, entering[found[i]]) for i in chosen]
        maps = [to_numpy(tokenizer(*args, return_attention_scores=True)[1]) for tokenizer, args in calls]
        # Weights rounded to the compute dtype do not sum to 1.
        return [each / each.sum(axis=(2, 3), keepdims=True) for each in maps]

    return collect("modules", modules, len(found), batches(model, images, batch_size), weights)
