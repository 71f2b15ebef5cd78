"""Attention weights of a ViT's blocks, and the distances and paths that they give."""

import numbers
from collections.abc import Sequence

import keras
import numpy as np

from keras_vit import arguments
from keras_vit.inspection.watch import Watch, batches, scores_of

FUSIONS = {"mean": np.mean, "max": np.max, "min": np.min}


def attention_maps(
    model: keras.Model, images, blocks: int | Sequence[int] | None = -1, batch_size: int = 8
) -> np.ndarray | list[np.ndarray]:
    """Returns the attention weights of a model's blocks, of all heads, for images.

    Args:
        model: Any model that holds one ViT of this package: as built, fine-tuned, in mixed precision, or nested in a
            larger model.
        images: The model's input, (batch, height, width, channels), preprocessed as for `model.predict`. For a model
            with several inputs, the structure that it takes.
        blocks: Int, the index of a block in the order in which they run, negative from the last; a list of them; or
            None for all, which takes much memory for long sequences.
        batch_size: Int, the number of images that run at a time.

    Returns:
        (batch, num_heads, num_tokens (queries), num_tokens (keys)), float32, rows summing to 1. The tokens are those of
        `patch_layout`, prefix first. A list of such arrays unless `blocks` is an int.

    Raises:
        ValueError: If the model holds no ViT or several, runs it more than once or merges tokens, or has no such block.

    Example:

    >>> attention_maps(keras_vit.ViTTi16(image_size=32), np.zeros((2, 32, 32, 3)), blocks=0).shape
    (2, 3, 5, 5)

    Reference: [arXiv 2010.11929](https://arxiv.org/abs/2010.11929), appendix A, equation 6.
    """
    arguments.positive_int("batch_size", batch_size)
    watch = Watch(model)
    depth = len(watch.blocks)
    single = isinstance(blocks, numbers.Integral)
    chosen = range(depth) if blocks is None else [blocks] if single or not np.iterable(blocks) else list(blocks)
    if not all(isinstance(i, numbers.Integral) and not isinstance(i, bool) for i in chosen):
        raise ValueError(f"Expected `blocks` to be an integer, a list of them or None. Received: blocks={blocks!r}")
    if not all(-depth <= i < depth for i in chosen):
        raise ValueError(f"Expected block indices below {depth}, the model's depth. Received: blocks={blocks!r}")
    maps = {i % depth: [] for i in chosen}

    def keep(i, block, tokens):
        if i in maps:
            maps[i].append(scores_of(block, tokens))

    for batch in batches(images, batch_size):
        watch.run(batch, keep)
    joined = [np.concatenate(maps[i % depth]) for i in chosen]
    return joined[0] if single else joined


def attention_distance(model: keras.Model, images, batch_size: int = 8) -> np.ndarray:
    """Returns the mean distance in pixels between a patch and those it attends to, weighted by attention, by head.

    Class, distillation and register tokens have no place in the image. They are left out as queries and as keys, and
    the remaining rows are normalised. A query that attends to those tokens alone is left out of the mean; a head with
    only such queries gets 0. Only one block's attention is in memory at a time.

    Args:
        model: As in `attention_maps`, with the same number of heads in each block.
        images: As in `attention_maps`. The mean is over all images and patches.
        batch_size: Int, the number of images that run at a time.

    Returns:
        (num_blocks, num_heads), in pixels of the images that reach the ViT.

    Raises:
        ValueError: As in `attention_maps`, or if the numbers of heads differ.

    Example:

    >>> attention_distance(keras_vit.ViTTi16(image_size=32), np.zeros((1, 32, 32, 3))).shape
    (12, 3)

    Reference: [arXiv 2010.11929](https://arxiv.org/abs/2010.11929), section 4.5, figure 7 right, and appendix D.7.
    """
    arguments.positive_int("batch_size", batch_size)
    watch = Watch(model)
    # By block, each (num_heads,).
    sums, counts = {}, {}

    def add(i, block, tokens):
        n = watch.layout.num_prefix_tokens
        scores = scores_of(block, tokens)[:, :, n:, n:]
        weights = scores.sum(axis=-1)
        looks = weights > 0
        per_query = np.einsum("bhqk,qk->bhq", scores, _patch_distances(watch.layout)) / np.where(looks, weights, 1)
        sums[i] = sums.get(i, 0) + per_query.sum(axis=(0, 2), dtype="float64")
        counts[i] = counts.get(i, 0) + looks.sum(axis=(0, 2))

    for batch in batches(images, batch_size):
        watch.run(batch, add)
    heads = [len(of_heads) for of_heads in sums.values()]
    if len(set(heads)) > 1:
        raise ValueError(f"Expected blocks with the same number of heads. Received: {heads} heads")
    return (np.stack(list(sums.values())) / np.maximum(np.stack(list(counts.values())), 1)).astype("float32")


def _patch_distances(layout):
    """The distance in pixels between the corners of each two patches, (patches, patches), float32."""
    sides = (np.arange(number) * size for number, size in zip(layout.grid_size, layout.patch_size, strict=True))
    tops, lefts = (corners.ravel().astype("float32") for corners in np.meshgrid(*sides, indexing="ij"))
    return np.hypot(tops[:, None] - tops, lefts[:, None] - lefts)


def attention_rollout(
    model: keras.Model,
    images,
    head_fusion: str = "mean",
    discard_ratio: float = 0.0,
    batch_size: int = 8,
    readout: str | None = None,
) -> np.ndarray:
    """Follows the attention through all blocks: how much of each patch arrives where the model's head reads.

    In each block the heads' weights are fused, an identity matrix is added for the residual branch, and the rows are
    normalised. The product over the blocks is what goes from each patch to each token. The class token's row of it is
    returned, or the mean of the patches' rows if the head reads the patches (`pooling="gap"`, or no class token). With
    `pooling="map"` that mean is weighted by the pooling's own attention. Only one block's attention is in memory at a
    time.

    Args:
        model: As in `attention_maps`.
        images: As in `attention_maps`.
        head_fusion: "mean", "max" or "min", over the heads.
        discard_ratio: Float in [0, 1), the share of each fused matrix, its smallest numbers, that is set to 0 before
            the identity is added.
        batch_size: Int, the number of images that run at a time.
        readout: What the model's head reads: "token", the first token, or "gap", the mean of all patches. None takes it
            from the ViT's config, which is wrong if the user's own head reads something else, for example the mean of
            the tokens of a model with a class token.

    Returns:
        (batch, rows, columns), float32. Together with the share of the prefix tokens it sums to 1.

    Raises:
        ValueError: As in `attention_maps`, or if an argument is out of its range.

    Example:

    >>> attention_rollout(keras_vit.ViTTi16(image_size=(48, 32)), np.zeros((1, 48, 32, 3))).shape
    (1, 3, 2)

    Reference: [arXiv 2005.00928](https://arxiv.org/abs/2005.00928), section 3; for ViT
    [arXiv 2010.11929](https://arxiv.org/abs/2010.11929), appendix D.8, which fuses the heads by their maximum in its
    code and by their mean in its text.
    """
    arguments.one_of("head_fusion", head_fusion, tuple(FUSIONS))
    arguments.rate("discard_ratio", discard_ratio)
    arguments.positive_int("batch_size", batch_size)
    watch, fuse = Watch(model, readout), FUSIONS[head_fusion]
    rollout = None

    def step(i, block, tokens):
        nonlocal rollout
        attention = discard_smallest(fuse(scores_of(block, tokens), axis=1), discard_ratio)
        attention += np.eye(attention.shape[-1], dtype="float32")
        attention /= attention.sum(axis=-1, keepdims=True)
        rollout = attention @ rollout if i else attention

    grids = []
    for batch in batches(images, batch_size):
        watch.run(batch, step)
        grids.append(watch.to_grid(watch.read_out(rollout, fuse)))
    return np.concatenate(grids)


def discard_smallest(matrices, ratio):
    """A copy of (batch, rows, columns) in which this share of each matrix, its smallest numbers, is 0."""
    flat = matrices.reshape(len(matrices), -1).copy()
    count = int(flat.shape[1] * ratio)
    if count:
        np.put_along_axis(flat, np.argpartition(flat, count - 1, axis=1)[:, :count], 0, axis=1)
    return flat.reshape(matrices.shape)
