import numbers
from collections.abc import Sequence

import keras
import numpy as np

from keras_vit.inspection.inputs import batches, indices
from keras_vit.models.vt_resnet.layers import VTModule
from keras_vit.prediction.taps import sublayers, taps, to_numpy


def token_attention_maps(
    model: keras.Model, images, modules: int | Sequence[int] | None = -1, batch_size: int = 8
) -> np.ndarray | list[np.ndarray]:
    """Returns the weights, float32, with which the visual tokens of one or several VT modules read pixels.

    Args:
        model: A model that contains one VT-ResNet of this package, possibly in mixed precision or nested in another
            model.
        images: As in `attention_maps`.
        modules: Int, the index of a VT module (negative indices count from the last); a list of indices; or None for
            all. A list or None returns a list of arrays.
        batch_size: Int, the number of images per batch.

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
        raise ValueError(
            "Expected a model that holds a VT-ResNet of this package, with layers of type VTModule. Received: model "
            f"{model.name!r}"
        )
    chosen = indices("modules", modules, len(found))
    maps = {i: [] for i in chosen}
    for batch in batches(model, images, batch_size):
        _, entering = taps(model, (batch,), found)
        for i in maps:
            weights = to_numpy(found[i].tokenizer(*entering[found[i]], return_attention_scores=True)[1])
            # Weights rounded to the compute dtype do not sum to 1.
            maps[i].append(weights / weights.sum(axis=(2, 3), keepdims=True))
    joined = [np.concatenate(maps[i]) for i in chosen]
    return joined[0] if isinstance(modules, numbers.Integral) else joined
