"""Attention weights, attention distances and attention rollout."""

from collections.abc import Sequence

import keras
import numpy as np
from keras import ops

from keras_vit import arguments
from keras_vit.inspection.inputs import batches, collect
from keras_vit.models.vt_resnet.layers import VTModule
from keras_vit.prediction.taps import AttentionTaps, attention_weights, sublayers, taps, to_numpy

FUSIONS = {"mean": ops.mean, "max": ops.max, "min": ops.min}


def attention_maps(
    model: keras.Model, images, blocks: int | Sequence[int] | None = -1, batch_size: int = 8
) -> np.ndarray | list[np.ndarray]:
    """Returns the attention weights of all heads in one or several blocks, float32.

    Args:
        model: A ViT of this package, or a model that contains exactly one. It may be fine-tuned or in mixed precision.
        images: The model's input, (batch, height, width, channels), preprocessed as for `model.predict`. If the model
            has several inputs, pass a list or dict of arrays.
        blocks: Int, the index of a block (negative indices count from the end); a list of indices; or None for all
            blocks, which needs much memory for long sequences.
        batch_size: Int, the number of images per batch.

    Returns:
        An array (batch, num_heads, num_tokens (queries), num_tokens (keys)) if `blocks` is an int, else a list with one
        such array per block. The weights of each query sum to 1. Prefix tokens (class, distillation and register
        tokens) come before the patches.

    Raises:
        ValueError: If the model does not contain exactly one ViT, runs the ViT several times, merges tokens, or does
            not have one of the `blocks`.

    Example:
    >>> attention_maps(keras_vit.ViTTi16(image_size=32), np.zeros((2, 32, 32, 3)), blocks=0).shape
    (2, 3, 5, 5)

    Reference: [arXiv 2010.11929](https://arxiv.org/abs/2010.11929), appendix A, equation 6.
    """
    taps = AttentionTaps(model)

    def weights(batch, chosen):
        _, calls = taps.run(batch)
        return [to_numpy(attention_weights(*calls[i])) for i in chosen]

    return collect("blocks", blocks, len(taps.blocks), batches(model, images, batch_size), weights)


def attention_distance(model: keras.Model, images, batch_size: int = 8) -> np.ndarray:
    """Returns the mean attention distance of each head, float32 (num_blocks, num_heads), in pixels.

    The attention distance of a query patch is the mean distance to all patches, weighted by the attention weights.
    Prefix tokens have no position, so they are left out, and the remaining weights are normalised to a sum of 1.
    Queries that attend only to prefix tokens are skipped. If a head has only such queries, its distance is 0. All
    blocks need the same number of heads. Arguments and errors are as in `attention_maps`.

    Example:
    >>> attention_distance(keras_vit.ViTTi16(image_size=32), np.zeros((1, 32, 32, 3))).shape
    (12, 3)

    Reference: [arXiv 2010.11929](https://arxiv.org/abs/2010.11929), section 4.5, figure 7 right, and appendix D.7.
    """
    taps, totals = AttentionTaps(model), 0

    for batch in batches(model, images, batch_size):
        _, calls = taps.run(batch)
        totals = totals + np.array([_distances_and_counts(call, taps.layout) for call in calls])
    return (totals[:, 0] / np.maximum(totals[:, 1], 1)).astype("float32")


def _distances_and_counts(call, layout):
    """Returns, per head, the sum of the queries' mean distances in pixels, and the number of queries with attention."""
    tops, lefts = (np.indices(layout.grid_size).reshape(2, -1).T * layout.patch_size).T.astype("float32")
    distances = np.hypot(tops[:, None] - tops, lefts[:, None] - lefts)
    scores = to_numpy(attention_weights(*call))[:, :, layout.num_prefix_tokens :, layout.num_prefix_tokens :]
    weights = scores.sum(axis=-1)
    looks = weights > 0
    per_query = np.einsum("bhqk,qk->bhq", scores, distances) / np.where(looks, weights, 1)
    return per_query.sum(axis=(0, 2), dtype="float64"), looks.sum(axis=(0, 2))


def attention_rollout(
    model: keras.Model,
    images,
    head_fusion: str = "mean",
    discard_ratio: float = 0.0,
    batch_size: int = 8,
    readout: str | None = None,
) -> np.ndarray:
    """Returns attention rollout, float32 (batch, rows, columns), for the input of the model's classification head.

    The rollout shows how much each patch contributes to this input. In each block, the matrices of all attention heads
    are fused into one matrix. The identity matrix, which stands for the skip connection, is added, and each row of the
    result is normalised to a sum of 1. Then the matrices of all blocks are multiplied. The product has a row for each
    token. If the classification head reads the class token, the row of this token is returned. If it reads the mean of
    the patches, the mean of the patches' rows is returned. With `pooling="map"`, this mean is weighted by the attention
    of the pooling layer. Columns of prefix tokens are left out, so a map may sum to less than 1.

    Args:
        model, images, batch_size: As in `attention_maps`; the same errors are raised.
        head_fusion: "mean", "max" or "min", the function that fuses the attention heads.
        discard_ratio: Float in [0, 1), the fraction of weights to set to 0 in each fused matrix. The smallest weights
            are set to 0.
        readout: "token" if the classification head reads the first token, "gap" if it reads the mean of all patches.
            None finds the pooling in the model. Set `readout` if you replaced the pooling or the head.

    Example:
    >>> attention_rollout(keras_vit.ViTTi16(image_size=(48, 32)), np.zeros((1, 48, 32, 3))).shape
    (1, 3, 2)

    Reference: [arXiv 2005.00928](https://arxiv.org/abs/2005.00928), section 3; for ViT [arXiv
    2010.11929](https://arxiv.org/abs/2010.11929), appendix D.8. The ViT paper describes a mean of the heads, and
    the code of its authors computes the maximum.
    """
    arguments.choice("head_fusion", head_fusion, tuple(FUSIONS))
    arguments.rate("discard_ratio", discard_ratio)
    taps, fuse = AttentionTaps(model, readout), FUSIONS[head_fusion]

    def discard(matrices):
        return ops.convert_to_tensor(discard_smallest(to_numpy(matrices), discard_ratio))

    discard = discard if discard_ratio else None
    parts = batches(model, images, batch_size)
    return np.concatenate([to_numpy(taps.rollout(batch, fuse, discard)[1]) for batch in parts])


def discard_smallest(matrices, ratio):
    """Returns a copy of `matrices`, (batch, rows, columns), with the smallest `ratio` of each matrix set to 0."""
    flat = matrices.reshape(len(matrices), -1).copy()
    count = int(flat.shape[1] * ratio)
    if count:
        np.put_along_axis(flat, np.argpartition(flat, count - 1, axis=1)[:, :count], 0, axis=1)
    return flat.reshape(matrices.shape)


def token_attention_maps(
    model: keras.Model, images, modules: int | Sequence[int] | None = -1, batch_size: int = 8
) -> np.ndarray | list[np.ndarray]:
    """Returns how much each visual token attends to each pixel, float32, in one or several VT modules of a VT-ResNet.

    A VT module (visual transformer module) summarizes a feature map in a few visual tokens.

    Args:
        model: A VT-ResNet of this package, or a model that contains one. Errors are as in `attention_maps`.
        modules: The indices of VT modules: an int, a list of ints, or None for all modules. Negative indices count from
            the end.
        images, batch_size: As in `attention_maps`.

    Returns:
        An array (batch, num_tokens, rows, columns), or a list of arrays if `modules` is a list or None. The rows and
        columns are pixels of the module's feature map. The map of each token sums to 1.

    Example:
    >>> model = keras_vit.VTResNet18(image_size=64)
    >>> maps = token_attention_maps(model, np.zeros((2, 64, 64, 3)), modules=0)
    >>> maps.shape
    (2, 16, 4, 4)

    Reference: [arXiv 2006.03677](https://arxiv.org/abs/2006.03677), section 3.1.
    """
    found = sublayers(model, VTModule)
    if not found:
        expected = "a model that contains a VT-ResNet of this package, with layers of type VTModule"
        raise ValueError(f"Expected {expected}. Received: model {model.name!r}")

    def weights(batch, chosen):
        _, entering = taps(model, (batch,), found)
        calls = [(found[i].tokenizer, entering[found[i]]) for i in chosen]
        maps = [to_numpy(tokenizer(*args, return_attention_scores=True)[1]) for tokenizer, args in calls]
        # Normalise again, because weights that are rounded to half precision do not sum to exactly 1.
        return [each / each.sum(axis=(2, 3), keepdims=True) for each in maps]

    return collect("modules", modules, len(found), batches(model, images, batch_size), weights)
