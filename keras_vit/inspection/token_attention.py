import numbers
from collections.abc import Sequence

import keras
import numpy as np
from keras import ops

from keras_vit.inspection.inputs import batches, indices
from keras_vit.models.vt_resnet.vt_module import VTModule
from keras_vit.prediction.watch import infer, run_once, sublayers, to_numpy, unfolded


def token_attention_maps(
    model: keras.Model, images, modules: int | Sequence[int] | None = -1, batch_size: int = 8
) -> np.ndarray | list[np.ndarray]:
    """Returns how much of each pixel the visual tokens of one or several VT modules read, float32.

    Args:
        model: A model that contains one VT-ResNet of this package, possibly in mixed precision or nested in another
            model.
        images: As in `attention_maps`.
        modules: Int, the index of a VT module (negative: from the end); a list of them; or None for all. Returns a list
            of arrays unless `modules` is an int.
        batch_size: Int, the number of images per batch.

    Returns:
        (batch, num_tokens, rows, columns), in pixels of the module's feature map; each token's map sums to 1.

    Raises:
        ValueError: If the model has no VT module or runs one several times, or a module does not exist.

    Example:

    >>> model = keras_vit.VTResNet18(image_size=64)
    >>> maps = token_attention_maps(model, np.zeros((2, 64, 64, 3)), modules=0)
    >>> maps.shape
    (2, 16, 4, 4)

    Reference: [arXiv 2006.03677](https://arxiv.org/abs/2006.03677), section 3.1: the softmax over HW of the tokenizers.
    """
    found = sublayers(model, VTModule)
    if not found:
        raise ValueError(
            "Expected a model that holds a VT-ResNet of this package, with layers of type VTModule. Received: model "
            f"{model.name!r}"
        )
    chosen = indices("modules", modules, len(found))
    maps = {i: [] for i in chosen}

    def call(layer, *args, **kwargs):
        if isinstance(layer, VTModule):
            run_once(layer, ran, model)
            *outputs, weights = layer(*args, training=False, return_attention_scores=True)
            if (i := found.index(layer)) in maps:
                weights = to_numpy(weights)
                # Weights rounded to the compute dtype do not sum to 1.
                maps[i].append(weights / weights.sum(axis=(2, 3), keepdims=True))
            return tuple(outputs) if layer.project else outputs[0]
        if isinstance(layer, keras.Layer) and sublayers(layer, VTModule):
            return unfolded(layer, args, kwargs, call)
        return infer(layer, args, kwargs)

    for batch in batches(images, batch_size):
        ran = []
        unfolded(model, (keras.tree.map_structure(ops.convert_to_tensor, batch),), {}, call)
    joined = [np.concatenate(maps[i]) for i in chosen]
    return joined[0] if isinstance(modules, numbers.Integral) else joined
