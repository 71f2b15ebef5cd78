"""Computes and plots embedding filters and position similarity."""

import math
import os

import keras
import numpy as np
from keras import ops

from keras_vit import arguments
from keras_vit.images.figures import finish, new_figure, new_panels, show
from keras_vit.inspection.inputs import shaped
from keras_vit.layers import ImageNormalization, PatchEmbedding, PositionEmbedding
from keras_vit.models.bit.standardized_conv import StandardizedConv2D
from keras_vit.prediction.taps import only_one, sublayers

FIGURE_7 = 28


def embedding_filters(model: keras.Model, number: int | None = None) -> np.ndarray:
    """Returns the principal components of the patch embedding filters, (number, height, width, channels), float32.

    In a hybrid model (a ResNet followed by a ViT), the filters are the standardized filters of the ResNet's first
    convolution. Components have unit length and are sorted by decreasing variance. In each component, the entry with
    the largest absolute value is positive.

    Args:
        model: As in `attention_maps`.
        number: Int, the number of components. None returns 28, as in the paper, or all if there are fewer than 28.

    Raises:
        ValueError: If the model does not have exactly one patch embedding, has fewer components than `number`, or was
            returned by `fold_preprocessing`, which changes the filters.

    Example:
    >>> embedding_filters(keras_vit.ViTTi16(), number=8).shape
    (8, 16, 16, 3)

    Reference: [arXiv 2010.11929](https://arxiv.org/abs/2010.11929), section 4.5, figure 7 left.
    """
    embedding = only_one(model, PatchEmbedding)
    if any(layer.folded for layer in sublayers(model, ImageNormalization)):
        expected = "a model whose preprocessing is not folded into its filters"
        advice = "Pass the model that you gave to fold_preprocessing."
        raise ValueError(f"Expected {expected}. Received: model {model.name!r}. {advice}")
    root = next((layer for layer in sublayers(model, StandardizedConv2D) if layer.name == "root_conv"), None)
    kernel = ops.convert_to_numpy(embedding.kernel if root is None else root.standardized_kernel())
    *shape, num_filters = kernel.shape
    filters = kernel.reshape(-1, num_filters).T.astype("float32")
    most = min(filters.shape)
    number = min(FIGURE_7, most) if number is None else arguments.positive_int("number", number)
    if number > most:
        raise ValueError(f"Expected `number` of at most {most}, the number of components. Received: {number}")
    components = np.linalg.svd(filters - filters.mean(axis=0), full_matrices=False)[2][:number]
    largest = np.take_along_axis(components, np.abs(components).argmax(axis=1)[:, None], axis=1)
    return (components * np.sign(largest)).reshape(number, *shape)


def position_similarity(model: keras.Model) -> np.ndarray:
    """Returns the cosine similarities of a model's position embeddings, (rows, columns, rows, columns), float32.

    `[i, j, k, l]` is the similarity of the patch in row i and column j to the patch in row k and column l. Prefix
    tokens are left out. If the model has no position embeddings of type "learned", "learned2d" or "sincos2d", a
    ValueError is raised.

    Example:
    >>> position_similarity(keras_vit.ViTTi16(image_size=(48, 32))).shape
    (3, 2, 3, 2)

    Reference: [arXiv 2010.11929](https://arxiv.org/abs/2010.11929), section 4.5, figure 7 centre.
    """
    if not sublayers(model, PositionEmbedding):
        expected = 'a model with position embeddings ("learned", "learned2d" or "sincos2d")'
        raise ValueError(f"Expected {expected}. Received: {model.name!r}, which does not have them.")
    layer = only_one(model, PositionEmbedding)
    rows, columns = layer.grid_size
    shape = (1, layer.num_prefix_tokens + rows * columns, only_one(model, PatchEmbedding).hidden_dim)
    # Use `call`, because `__call__` would round the weights to the compute dtype in mixed precision.
    positions = ops.convert_to_numpy(layer.call(ops.zeros(shape, dtype="float32")))[0, layer.num_prefix_tokens :]
    positions = positions / np.maximum(np.linalg.norm(positions, axis=1, keepdims=True), 1e-12)
    return (positions @ positions.T).reshape(rows, columns, rows, columns)


def plot_embedding_filters(filters, path: str | os.PathLike | None = None):
    """Plots the principal components of the embedding filters, one per panel, and returns the figure.

    Args:
        filters: (number, height, width, channels), from `embedding_filters`. The first three channels are shown, or
            only the first channel if there are fewer than three. Each component is scaled separately to the range from
            black to white, and 0 is middle grey.
        path: As in `plot_attention_rollout`; the same errors are raised.

    Reference: [arXiv 2010.11929](https://arxiv.org/abs/2010.11929), figure 7 left.
    """
    filters = shaped("filters", filters, "number, height, width, channels")
    shown = filters[..., :3] if filters.shape[-1] >= 3 else filters[..., :1]
    shown = 0.5 + 0.5 * shown / np.maximum(np.abs(shown).max(axis=(1, 2, 3), keepdims=True), 1e-30)
    across = min(7, len(filters))
    down = math.ceil(len(filters) / across)
    figure, panels = new_panels(len(filters), across, (1.0 * across + 0.2, 1.2 * down + 0.5))
    for i, (axes, image) in enumerate(zip(panels, shown, strict=True)):
        show(axes, image, vmax=1)
        axes.set_title(str(i + 1), fontsize=8, pad=2)
    figure.suptitle("Embedding filters: principal components", fontsize=11)
    return finish(figure, path)


def plot_position_similarity(similarity, path: str | os.PathLike | None = None):
    """Plots the result of `position_similarity` as a grid with one map per patch, and returns the figure.

    `path` and the errors are as in `plot_attention_rollout`.

    Reference: [arXiv 2010.11929](https://arxiv.org/abs/2010.11929), figure 7 centre.
    """
    similarity = shaped("similarity", similarity, "rows, columns, rows, columns")
    rows, columns = similarity.shape[:2]
    # matplotlib needs a minute to draw hundreds of panels, so join all maps into one image.
    gap = max(1, round(max(rows, columns) / 7))
    tiles = np.pad(similarity, ((0, 0), (0, 0), (0, gap), (0, gap)), constant_values=np.nan)
    mosaic = tiles.transpose(0, 2, 1, 3).reshape(rows * (rows + gap), columns * (columns + gap))[:-gap, :-gap]
    scale = min(6.6 / columns, 6.6 / rows)
    figure = new_figure(max(scale * columns, 2.0) + 1.6, max(scale * rows, 1.2) + 0.8)
    axes = figure.subplots()
    picture = axes.imshow(mosaic, cmap="viridis", vmin=-1, vmax=1, interpolation="nearest")
    for number, set_ticks in ((columns, axes.set_xticks), (rows, axes.set_yticks)):
        chosen = np.arange(0, number, max(1, math.ceil(number / 16)))
        set_ticks(chosen * (number + gap) + (number - 1) / 2, chosen)
    axes.tick_params(length=0, labelsize=8)
    axes.spines[:].set_visible(False)
    axes.set(title="Position embedding similarity", xlabel="column of the patch", ylabel="row of the patch")
    figure.colorbar(picture, ax=axes, shrink=0.8, label="cosine similarity")
    return finish(figure, path)
