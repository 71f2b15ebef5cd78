"""Pictures of what a model has learned, whatever the image."""

import math

import numpy as np
from keras import ops

from keras_vit.pictures import finish, new_figure


def plot_embedding_filters(filters, path=None):
    """Draws the principal components of the embedding filters as small images.

    Args:
        filters: (number, height, width, channels), as `embedding_filters` returns them. Of more than three channels the
            first three are shown, of two the first. Zero is middle grey, and each component fills the scale.
        path: Path of a .png file to write, or None. An existing file is replaced; a failed write leaves nothing behind.

    Returns:
        A `matplotlib.figure.Figure` with one panel a component.

    Raises:
        ImportError: If matplotlib is not installed.
        ValueError: If the array is of another shape, or `path` does not end in .png.

    Example:

    >>> filters = keras_vit.inspection.embedding_filters(model)  # doctest: +SKIP
    >>> keras_vit.inspection.plot_embedding_filters(filters, "filters.png")  # doctest: +SKIP

    Reference: [arXiv 2010.11929](https://arxiv.org/abs/2010.11929), figure 7 left.
    """
    filters = np.asarray(ops.convert_to_numpy(filters), "float32")
    if filters.ndim != 4 or not filters.size:
        raise ValueError(
            f"Expected `filters` of shape (number, height, width, channels). Received: shape {filters.shape}"
        )
    shown = filters[..., :3] if filters.shape[-1] >= 3 else filters[..., :1]
    shown = 0.5 + 0.5 * shown / np.maximum(np.abs(shown).max(axis=(1, 2, 3), keepdims=True), 1e-30)
    across = min(7, len(filters))
    down = math.ceil(len(filters) / across)
    figure = new_figure(1.0 * across + 0.2, 1.2 * down + 0.5)
    panels = figure.subplots(down, across, squeeze=False).ravel()
    for axes in panels[len(filters) :]:
        axes.remove()
    for i, (axes, image) in enumerate(zip(panels, shown, strict=False)):
        axes.imshow(image[..., 0] if image.shape[-1] == 1 else image, cmap="gray", vmin=0, vmax=1)
        axes.set(xticks=[], yticks=[])
        axes.set_title(str(i + 1), fontsize=8, pad=2)
    figure.suptitle("Embedding filters: principal components", fontsize=11)
    return finish(figure, path)


def plot_position_similarity(similarity, path=None):
    """Draws the similarity of each position embedding to all others: at each patch's place a map of the whole grid.

    Args:
        similarity: (rows, columns, rows, columns), as `position_similarity` returns it.
        path: Path of a .png file to write, or None. An existing file is replaced; a failed write leaves nothing behind.

    Returns:
        A `matplotlib.figure.Figure`.

    Raises:
        ImportError: If matplotlib is not installed.
        ValueError: If the array is of another shape, or `path` does not end in .png.

    Example:

    >>> similarity = keras_vit.inspection.position_similarity(model)  # doctest: +SKIP
    >>> keras_vit.inspection.plot_position_similarity(similarity, "positions.png")  # doctest: +SKIP

    Reference: [arXiv 2010.11929](https://arxiv.org/abs/2010.11929), figure 7 centre.
    """
    similarity = np.asarray(ops.convert_to_numpy(similarity), "float32")
    if similarity.ndim != 4 or similarity.shape[:2] != similarity.shape[2:] or not similarity.size:
        raise ValueError(
            f"Expected `similarity` of shape (rows, columns, rows, columns). Received: shape {similarity.shape}"
        )
    rows, columns = similarity.shape[:2]
    # One picture of all maps, with gaps of nothing between them: hundreds of panels would take matplotlib a minute.
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
