"""Plots of attention maps, attention rollout and attention distance."""

import math
import os
from collections.abc import Sequence

import keras
import numpy as np
from keras import ops

from keras_vit import arguments
from keras_vit.images.figures import displayable, finish, literal, new_figure, new_panels, show
from keras_vit.images.tensorboard import TensorBoardPictures
from keras_vit.inspection.attention import FUSIONS, attention_rollout
from keras_vit.inspection.inputs import raw_pictures, shaped
from keras_vit.prediction.inputs import real_array


def attention_overlay(images, attention) -> np.ndarray:
    """Darkens images where attention is low. Returns uint8 (number, height, width, channels), with 1 or 3 channels.

    Args:
        images: (number, height, width, channels), in [0, 255]. The first three channels are shown, or only the first
            channel if there are fewer than three.
        attention: (number, rows, columns), non-negative, from `attention_rollout`. Each map is scaled to a maximum of 1
            and resized to the image.

    Raises:
        ValueError: If the shapes do not match.

    Example:
    >>> attention_overlay(np.full((1, 4, 4, 3), 200), [[[1.0]]]).max()
    np.uint8(200)
    """
    images, attention = images_and_attention(images, attention)
    highest = np.maximum(attention.max(axis=(1, 2), keepdims=True), 1e-30)
    mask = (attention / highest)[..., None]
    mask = ops.image.resize(mask, images.shape[1:3], interpolation="bilinear", data_format="channels_last")
    return np.round(images * np.clip(ops.convert_to_numpy(mask), 0, 1)).astype("uint8")


def images_and_attention(images, attention):
    """Returns displayable images and attention as NumPy arrays; raises ValueError if the shapes do not match."""
    images, attention = real_array("images", images), real_array("attention", attention).astype("float32")
    if images.ndim != 4 or not len(images):
        raise ValueError(f"Expected images of shape (1 or more, height, width, channels). Received: {images.shape}")
    if attention.ndim != 3 or len(attention) != len(images):
        raise ValueError(f"Expected `attention` of shape ({len(images)}, rows, columns). Received: {attention.shape}")
    return displayable(images), attention


class TensorBoardAttention(TensorBoardPictures):
    """Callback that writes the `attention_rollout` of a few images to TensorBoard, drawn with `attention_overlay`.

    Args:
        log_dir: The log folder, preferably not the folder of `keras.callbacks.TensorBoard`.
        images: A few images, preprocessed as for training.
        every: Int, the number of epochs between pictures. Pictures are always written after the last epoch.
        head_fusion: "mean", "max" or "min", as in `attention_rollout`.
        model: The model to inspect. None inspects the model that is trained. If you train a `Distiller`, pass its
            student.

    Raises:
        ImportError: If TensorFlow, which writes the logs on every backend, is not installed.
        ValueError: If an argument is out of range, or if the model does not have exactly one ViT or has no
            `normalization` layer.
    """

    name = "attention"

    def __init__(
        self,
        log_dir: str | os.PathLike,
        images,
        every: int = 1,
        head_fusion: str = "mean",
        model: keras.Model | None = None,
    ):
        super().__init__(log_dir, images, every)
        self.head_fusion = arguments.choice("head_fusion", head_fusion, tuple(FUSIONS))
        self.model_with_attention = None if model is None else arguments.model(model)

    def on_train_begin(self, logs=None):
        super().on_train_begin(logs)
        self._pictures = raw_pictures(self.model_with_attention or self.model, self.images)

    def pictures(self):
        attention = attention_rollout(self.model_with_attention or self.model, self.images, self.head_fusion)
        return attention_overlay(self._pictures, attention)


def plot_attention_rollout(
    images, attention, path: str | os.PathLike | None = None, titles: Sequence[str] | None = None
):
    """Plots each image, its `attention_overlay` and the attention weight of each patch, and returns the figure.

    Args:
        images: As in `attention_overlay`.
        attention: (number, rows, columns), from `attention_rollout` or `gradient_rollout`.
        path: Path of a .png file to write, or None. It replaces an existing file. If writing fails, the old file is
            kept.
        titles: A title per image, or None.

    Raises:
        ImportError: If matplotlib is not installed.
        ValueError: If the shapes do not match, or `path` does not end in .png.

    Example:
    >>> plot_attention_rollout(raw_images, attention_rollout(model, images), "rollout.png")  # doctest: +SKIP

    Reference: [arXiv 2010.11929](https://arxiv.org/abs/2010.11929), figure 6.
    """
    overlays = attention_overlay(images, attention)
    images, attention = images_and_attention(images, attention)
    titles = arguments.optional(arguments.several, "titles", titles)
    if titles is not None and len(titles) != len(images):
        raise ValueError(f"Expected {len(images)} `titles`, one for each image. Received: {len(titles)}")
    height, width = images.shape[1:3]
    figure, panels = new_panels(3 * len(images), 3, (9.2, (2.9 * height / width + 0.35) * len(images)))
    for i, (left, middle, right) in enumerate(panels.reshape(-1, 3)):
        _show(left, images[i], titles[i] if titles else "input")
        _show(middle, overlays[i], "attention")
        heat = right.imshow(attention[i], cmap="viridis", vmin=0, extent=(0, width, height, 0))
        right.set(xticks=[], yticks=[])
        right.set_title(f"by patch, {attention.shape[1]} x {attention.shape[2]}", fontsize=10)
        bar = figure.colorbar(heat, ax=right, shrink=0.85)
        bar.ax.tick_params(labelsize=8)
        bar.set_label("weight of the patch", fontsize=8)
    return finish(figure, path)


def plot_attention_maps(
    image,
    attention,
    path: str | os.PathLike | None = None,
    *,
    grid_size: tuple[int, int] | None = None,
    query: int | None = None,
):
    """Plots how much one token attends to each patch, and returns the figure, which has one panel for each head.

    Each panel has a separate scale, and its title contains the maximum.

    Args:
        image: (height, width, channels), in [0, 255], as in `attention_overlay`.
        attention: (num_heads, num_tokens, num_tokens), from `attention_maps` for one image.
        path: As in `plot_attention_rollout`; the same errors are raised.
        grid_size: (rows, columns) of patches, `patch_layout(model, images).grid_size`. None assumes a square grid, with
            or without one class token. Pass `grid_size` for every other layout, because the number of tokens can be
            ambiguous: nine tokens may be a class token and 4 x 2 patches, or 3 x 3 patches.
        query: Int, the index of the query token. None selects the first token if it is a prefix token, else the mean of
            all patches.

    Example:

    >>> plot_attention_maps(raw_images[0], attention_maps(model, images)[0], "heads.png")  # doctest: +SKIP
    """
    attention = shaped("attention", attention, "num_heads, num_tokens, num_tokens")
    grid_size = arguments.optional(arguments.pair, "grid_size", grid_size)
    query = arguments.optional(arguments.non_negative_int, "query", query)
    num_heads, num_tokens, _ = attention.shape
    rows, columns = grid_size or (math.isqrt(num_tokens),) * 2
    num_prefix = num_tokens - rows * columns
    if grid_size is None and num_prefix > 1:
        expected = "`grid_size`, because the patches do not form a square"
        raise ValueError(f"Expected {expected}. Received: grid_size=None for {num_tokens} tokens")
    if num_prefix < 0:
        raise ValueError(f"Expected `grid_size` of at most {num_tokens} patches. Received: grid_size={grid_size}")
    if query is not None and query >= num_tokens:
        raise ValueError(f"Expected `query` to be one of {num_tokens} tokens. Received: query={query}")
    query = 0 if query is None and num_prefix else query
    looks = attention.mean(axis=1) if query is None else attention[:, query]
    figure, panels = _heat(image, looks[:, num_prefix:].reshape(num_heads, rows, columns), "head")
    name = "mean of all patches" if query is None else f"token {query}" if query else "class token"
    if query is not None and query >= num_prefix:
        row, column = divmod(query - num_prefix, columns)
        name = f"patch at row {row}, column {column}"
        for axes in panels:
            _, right, bottom, _ = axes.get_images()[0].get_extent()
            axes.plot((column + 0.5) * right / columns, (row + 0.5) * bottom / rows, "c+", markersize=9)
            axes.set(xlim=(0, right), ylim=(bottom, 0))
    figure.suptitle(f"Attention from the {name}", fontsize=11)
    return finish(figure, path)


def plot_token_attention(image, attention, path: str | os.PathLike | None = None):
    """Plots the attention of each visual token of a VT module over the image, and returns the figure.

    `token_attention_maps` explains VT modules and visual tokens.

    Args:
        image: (height, width, channels), in [0, 255], as in `attention_overlay`.
        attention: (num_tokens, rows, columns), from `token_attention_maps` for one image.
        path: As in `plot_attention_rollout`; the same errors are raised.

    Example:

    >>> plot_token_attention(raw_images[0], token_attention_maps(model, images)[0], "tokens.png")  # doctest: +SKIP

    Reference: [arXiv 2006.03677](https://arxiv.org/abs/2006.03677), section 5.5.
    """
    figure, _ = _heat(image, shaped("attention", attention, "num_tokens, rows, columns"), "token")
    figure.suptitle("Pixels that each visual token reads", fontsize=11)
    return finish(figure, path)


def _heat(image, maps, kind):
    """Draws each of the `maps`, (number, rows, columns), over the image in grey; returns the figure and its panels."""
    images, _ = images_and_attention(shaped("image", image, "height, width, channels")[None], maps[:1])
    height, width = images.shape[1:3]
    across = min(len(maps), 6 if len(maps) > 4 else 4)
    down = math.ceil(len(maps) / across)
    figure, panels = new_panels(len(maps), across, (2.2 * across, (2.2 * height / width + 0.35) * down + 0.4))
    for i, (axes, weights) in enumerate(zip(panels, maps, strict=True)):
        _show(axes, images[0].mean(axis=-1, keepdims=True), f"{kind} {i} (up to {weights.max():.2g})")
        extent = (0, width, height, 0)
        axes.imshow(weights, cmap="inferno", alpha=0.65, vmin=0, extent=extent, interpolation="bilinear")
        axes.set(xlim=(0, width), ylim=(height, 0))
    return figure, panels


def plot_attention_distance(distance, path: str | os.PathLike | None = None):
    """Plots the result of `attention_distance` by block, and returns the figure.

    Each point is a head, and the line is the mean of each block. `path` and the errors are as in
    `plot_attention_rollout`.

    Reference: [arXiv 2010.11929](https://arxiv.org/abs/2010.11929), figure 7 right.
    """
    distance = shaped("distance", distance, "num_blocks, num_heads")
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


def _show(axes, image, title):
    height, width, _ = image.shape
    show(axes, image, extent=(0, width, height, 0))
    # Shorten the title, because a longer title would overlap the next panel.
    axes.set_title(literal(title if len(title) <= 34 else f"{title[:33]}…"), fontsize=10)
