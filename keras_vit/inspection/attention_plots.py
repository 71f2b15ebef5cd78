"""Pictures of where a model looks."""

import math

import numpy as np
from keras import ops

from keras_vit.pictures import displayable, finish, new_figure


def attention_overlay(images, attention) -> np.ndarray:
    """Lays attention over images: each pixel keeps as much of its brightness as the patch gets of the highest share.

    Args:
        images: (number, height, width, channels), of 0..255. Of more than three channels the first three are shown, of
            two the first.
        attention: (number, rows, columns), of at least 0, as `attention_rollout` returns it. It is stretched over the
            whole image, bilinearly.

    Returns:
        uint8 images, (number, height, width, 1 or 3).

    Raises:
        ValueError: If the shapes do not belong together.

    Example:

    >>> attention_overlay(np.full((1, 4, 4, 3), 200), [[[1.0]]]).max()
    np.uint8(200)

    Reference: [arXiv 2010.11929](https://arxiv.org/abs/2010.11929), figure 6.
    """
    images, attention = _images_and_attention(images, attention)
    highest = np.maximum(attention.max(axis=(1, 2), keepdims=True), 1e-30)
    mask = ops.image.resize(
        (attention / highest)[..., None].astype("float32"),
        images.shape[1:3],
        interpolation="bilinear",
        data_format="channels_last",
    )
    return np.round(images * np.clip(ops.convert_to_numpy(mask), 0, 1)).astype("uint8")


def plot_attention_rollout(images, attention, path=None, titles=None):
    """Draws images, each beside itself darkened where the model does not look, and beside the attention as numbers.

    Args:
        images: (number, height, width, channels), of 0..255, as in `attention_overlay`.
        attention: (number, rows, columns), as `attention_rollout` or `gradient_rollout` returns it.
        path: Path of a .png file to write, or None. An existing file is replaced; a failed write leaves nothing behind.
        titles: A string an image, drawn over it, or None.

    Returns:
        A `matplotlib.figure.Figure` with a row of three panels an image.

    Raises:
        ImportError: If matplotlib is not installed.
        ValueError: If the shapes do not belong together, or `path` does not end in .png.

    Example:

    >>> rollout = keras_vit.inspection.attention_rollout(model, images)  # doctest: +SKIP
    >>> keras_vit.inspection.plot_attention_rollout(raw_images, rollout, "rollout.png")  # doctest: +SKIP

    Reference: [arXiv 2010.11929](https://arxiv.org/abs/2010.11929), figure 6.
    """
    overlays = attention_overlay(images, attention)
    images, attention = _images_and_attention(images, attention)
    if titles is not None and len(titles) != len(images):
        raise ValueError(f"Expected {len(images)} `titles`, one an image. Received: {len(titles)}")
    height, width = images.shape[1:3]
    figure = new_figure(9.2, (2.9 * height / width + 0.35) * len(images))
    panels = figure.subplots(len(images), 3, squeeze=False)
    for i, (left, middle, right) in enumerate(panels):
        _show(left, images[i], titles[i] if titles else "input")
        _show(middle, overlays[i], "attention")
        heat = right.imshow(attention[i], cmap="viridis", vmin=0, extent=(0, width, height, 0))
        right.set(xticks=[], yticks=[])
        right.set_title(f"by patch, {attention.shape[1]} x {attention.shape[2]}", fontsize=10)
        bar = figure.colorbar(heat, ax=right, shrink=0.85)
        bar.ax.tick_params(labelsize=8)
        bar.set_label("weight of the patch", fontsize=8)
    return finish(figure, path)


def plot_attention_maps(image, attention, path=None, *, grid=None, query=None):
    """Draws where each head of one block looks from one token, laid over the image.

    Args:
        image: (height, width, channels), of 0..255, as in `attention_overlay`.
        attention: (num_heads, num_tokens, num_tokens), as `attention_maps` returns it for one image.
        path: Path of a .png file to write, or None. An existing file is replaced; a failed write leaves nothing behind.
        grid: (rows, columns) of patches, the last tokens, as `patch_layout` tells it. None is for a square of
            patches, alone or after one class token: it takes 9 tokens for 3 x 3 patches, though they may be 4 x 2 after
            a class token.
        query: Int, the token that looks. None takes the first, the class token, where there are tokens before the
            patches, and the mean of all patches where there are none.

    Returns:
        A `matplotlib.figure.Figure` with one panel a head. Each has a scale of its own, whose end is in its title.

    Raises:
        ImportError: If matplotlib is not installed.
        ValueError: If the shapes do not belong together, the number of tokens tells no `grid`, there is no such token,
            or `path` does not end in .png.

    Example:

    >>> heads = keras_vit.inspection.attention_maps(model, images, blocks=11)[0]  # doctest: +SKIP
    >>> keras_vit.inspection.plot_attention_maps(raw_images[0], heads, "heads.png")  # doctest: +SKIP
    """
    attention = np.asarray(ops.convert_to_numpy(attention), "float32")
    if attention.ndim != 3 or attention.shape[1] != attention.shape[2]:
        raise ValueError(
            f"Expected `attention` of shape (num_heads, num_tokens, num_tokens). Received: shape {attention.shape}"
        )
    num_heads, num_tokens, _ = attention.shape
    if grid is None:
        side = math.isqrt(num_tokens)
        if num_tokens - side**2 not in (0, 1):
            raise ValueError(
                "Expected `grid`, since neither all tokens nor all but the first make a square. "
                f"Received: grid=None for {num_tokens} tokens"
            )
        grid = side, side
    rows, columns = grid
    num_prefix = num_tokens - rows * columns
    if num_prefix < 0:
        raise ValueError(f"Expected `grid` of at most {num_tokens} patches. Received: grid={grid}")
    if query is not None and not 0 <= query < num_tokens:
        raise ValueError(f"Expected `query` to be one of {num_tokens} tokens. Received: query={query}")
    if query is None and not num_prefix:
        looks, name = attention.mean(axis=1), "mean of all patches"
    else:
        query = query or 0
        looks = attention[:, query]
        place = divmod(query - num_prefix, columns)
        name = f"token {query}" if query < num_prefix else f"patch at row {place[0]}, column {place[1]}"
        name = "class token" if not query and num_prefix else name
    maps = looks[:, num_prefix:].reshape(num_heads, rows, columns)
    images, _ = _images_and_attention(np.asarray(ops.convert_to_numpy(image))[None], maps[:1])
    height, width = images.shape[1:3]
    across = min(num_heads, 6 if num_heads > 4 else 4)
    down = math.ceil(num_heads / across)
    figure = new_figure(2.2 * across, (2.2 * height / width + 0.35) * down + 0.4)
    panels = figure.subplots(down, across, squeeze=False).ravel()
    for axes in panels[num_heads:]:
        axes.remove()
    for head, (axes, weights) in enumerate(zip(panels, maps, strict=False)):
        _show(axes, images[0].mean(axis=-1, keepdims=True), f"head {head} (up to {weights.max():.2g})")
        extent = (0, width, height, 0)
        axes.imshow(weights, cmap="inferno", alpha=0.65, vmin=0, extent=extent, interpolation="bilinear")
        if query is not None and query >= num_prefix:
            row, column = divmod(query - num_prefix, columns)
            axes.plot((column + 0.5) * width / columns, (row + 0.5) * height / rows, "c+", markersize=9)
        axes.set(xlim=(0, width), ylim=(height, 0))
    figure.suptitle(f"Attention from the {name}", fontsize=11)
    return finish(figure, path)


def plot_attention_distance(distance, path=None):
    """Draws the mean attention distance of each head by the depth of its block.

    Args:
        distance: (num_blocks, num_heads), in pixels, as `attention_distance` returns it.
        path: Path of a .png file to write, or None. An existing file is replaced; a failed write leaves nothing behind.

    Returns:
        A `matplotlib.figure.Figure` with a dot a head and a line through the blocks' means.

    Raises:
        ImportError: If matplotlib is not installed.
        ValueError: If the array is of another shape, or `path` does not end in .png.

    Example:

    >>> figure = plot_attention_distance([[60.0, 20.0], [90.0, 100.0]])  # doctest: +SKIP

    Reference: [arXiv 2010.11929](https://arxiv.org/abs/2010.11929), figure 7 right.
    """
    distance = np.asarray(ops.convert_to_numpy(distance), "float32")
    if distance.ndim != 2 or not distance.size:
        raise ValueError(f"Expected `distance` of shape (num_blocks, num_heads). Received: shape {distance.shape}")
    figure = new_figure(6.2, 4.2)
    axes = figure.subplots()
    for head, of_blocks in enumerate(distance.T):
        axes.plot(of_blocks, "o", markersize=5, alpha=0.75, color="#1f77b4", label=None if head else "a head")
    axes.plot(distance.mean(axis=1), "-", color="#ff7f0e", label="mean of the heads")
    axes.set(title="Mean attention distance", xlabel="block", ylabel="distance (pixels)")
    axes.set_ylim(bottom=0)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="lower right")
    return finish(figure, path)


def _images_and_attention(images, attention):
    images = np.asarray(ops.convert_to_numpy(images))
    attention = np.asarray(ops.convert_to_numpy(attention), "float32")
    if images.ndim != 4 or not len(images):
        raise ValueError(
            f"Expected images of shape (number, height, width, channels), at least one. Received: shape {images.shape}"
        )
    if attention.ndim != 3 or len(attention) != len(images):
        raise ValueError(
            f"Expected `attention` of shape ({len(images)}, rows, columns), for as many images. "
            f"Received: shape {attention.shape}"
        )
    return displayable(images), attention


def _show(axes, image, title):
    height, width, channels = image.shape
    shown = image[..., 0] if channels == 1 else image
    axes.imshow(shown, cmap="gray", vmin=0, vmax=255, extent=(0, width, height, 0))
    axes.set(xticks=[], yticks=[])
    # Long class names would run into the next panel.
    axes.set_title(title if len(title) <= 34 else f"{title[:33]}…", fontsize=10)
