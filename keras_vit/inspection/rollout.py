import keras
import numpy as np

from keras_vit import arguments
from keras_vit.inspection.watch import Watch, batches

FUSIONS = {"mean": np.mean, "max": np.max, "min": np.min}


def attention_rollout(
    model: keras.Model,
    images,
    head_fusion: str = "mean",
    discard_ratio: float = 0.0,
    batch_size: int = 8,
    readout: str | None = None,
) -> np.ndarray:
    """Follows the attention through all blocks: how much of each patch arrives where the model's head reads.

    In each block the heads' weights are fused, the residual branch is added as an identity matrix, and the rows are
    normalised; the product over the blocks is what goes from each patch to each token. What is returned is the class
    token's row of it. Where the head reads the patches' mean (`pooling="gap"`, or no class token), it is the mean of
    the patches' rows; under attention pooling (`pooling="map"`) their mean weighted as the pooling weighs them, heads
    fused likewise. One block's attention is held at a time.

    Args:
        model: Any model that holds one ViT of this package, as in `attention_maps`.
        images: The model's input, as in `attention_maps`.
        head_fusion: "mean", "max" or "min", over the heads.
        discard_ratio: Float in [0, 1), the share of each fused matrix, its smallest numbers, that is set to 0 before
            the residual is added.
        batch_size: Int, how many images run at a time.
        readout: What the model's head reads: "token", the first token, or "gap", the mean of all patches. None tells it
            from this package's layers, which is wrong where a head of one's own reads something else, as one that
            averages the tokens of a model with a class token.

    Returns:
        (batch, rows, columns), float32. With what stays on the class token and other prefix tokens it sums to 1.

    Raises:
        ValueError: If the model holds no ViT, or several, or runs it more than once, or an argument is out of its
            range.

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
    rollout = pooling = None

    def step(i, scores):
        nonlocal rollout
        attention = discard_smallest(fuse(scores, axis=1), discard_ratio)
        attention += np.eye(attention.shape[-1], dtype="float32")
        attention /= attention.sum(axis=-1, keepdims=True)
        rollout = attention if rollout is None else attention @ rollout

    def pool(scores):
        nonlocal pooling
        weights = fuse(scores, axis=1)[:, 0]
        pooling = weights / weights.sum(axis=-1, keepdims=True)

    grids = []
    for batch in batches(images, batch_size):
        rollout = pooling = None
        watch.run(batch, step, pool)
        grids.append(watch.to_grid(watch.read_out(rollout, pooling)))
    return np.concatenate(grids)


def discard_smallest(matrices, ratio):
    """Sets the smallest numbers of each matrix to 0.

    Args:
        matrices: (batch, rows, columns).
        ratio: Float in [0, 1), how many of them, rounded down.

    Returns:
        A new array of the same shape.
    """
    flat = matrices.reshape(len(matrices), -1).copy()
    count = int(flat.shape[1] * ratio)
    if count:
        np.put_along_axis(flat, np.argpartition(flat, count - 1, axis=1)[:, :count], 0, axis=1)
    return flat.reshape(matrices.shape)
