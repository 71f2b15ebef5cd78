import keras
import numpy as np
from keras import ops

from keras_vit.inspection.watch import only_one, sublayers
from keras_vit.layers import PatchEmbedding, PositionEmbedding


def position_similarity(model: keras.Model) -> np.ndarray:
    """Returns the cosine similarity of each patch's position embedding to every other's.

    Args:
        model: Any model that holds one ViT of this package, as in `attention_maps`, with position embeddings of the
            kinds "learned", "learned2d" or "sincos2d".

    Returns:
        (rows, columns, rows, columns), float32: `[i, j]` is how the patch of row i and column j compares with each
        other. The grid is the one that the embeddings are stored for. Prefix tokens are left out.

    Raises:
        ValueError: If the model holds no table of positions, or several.

    Example:

    >>> position_similarity(keras_vit.ViTTi16(image_size=(48, 32))).shape
    (3, 2, 3, 2)

    Reference: [arXiv 2010.11929](https://arxiv.org/abs/2010.11929), section 4.5, figure 7 centre.
    """
    if not sublayers(model, PositionEmbedding):
        raise ValueError(
            'Expected a model with position embeddings ("learned", "learned2d" or "sincos2d"). Received: model '
            f"{model.name!r}, which has none, or relative ones in its attention, with no vector a patch to compare."
        )
    layer = only_one(model, PositionEmbedding)
    rows, columns = layer.grid_size
    shape = (1, layer.num_prefix_tokens + rows * columns, only_one(model, PatchEmbedding).hidden_dim)
    # `call` itself, since a layer in mixed precision would round its weights first.
    positions = ops.convert_to_numpy(layer.call(ops.zeros(shape, dtype="float32")))[0, layer.num_prefix_tokens :]
    positions = positions / np.maximum(np.linalg.norm(positions, axis=1, keepdims=True), 1e-12)
    return (positions @ positions.T).reshape(rows, columns, rows, columns)
