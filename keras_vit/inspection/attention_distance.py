import keras
import numpy as np

from keras_vit import arguments
from keras_vit.inspection.watch import Watch, batches


def attention_distance(model: keras.Model, images, batch_size: int = 8) -> np.ndarray:
    """Returns how far each head of each block looks: the mean distance in pixels, weighted by attention.

    Class, distillation and register tokens have no place in the image: they are left out, as queries and as keys, and
    the rows of what remains are normalised. A query whose attention is all on those tokens looks at no patch, and is
    left out of the mean; a head that has only such queries gets 0. The distance of two patches is that of their
    corners. One block's attention is held at a time.

    Args:
        model: Any model that holds one ViT of this package, as in `attention_maps`.
        images: The model's input, as in `attention_maps`. The mean is over all of them and all patches.
        batch_size: Int, how many images run at a time.

    Returns:
        (num_blocks, num_heads), in pixels of the images that the ViT itself gets.

    Raises:
        ValueError: If the model holds no ViT, or several, or runs it more than once, or its blocks differ in their
            number of heads.

    Example:

    >>> attention_distance(keras_vit.ViTTi16(image_size=32), np.zeros((1, 32, 32, 3))).shape
    (12, 3)

    Reference: [arXiv 2010.11929](https://arxiv.org/abs/2010.11929), section 4.5, figure 7 right, and appendix D.7.
    """
    arguments.positive_int("batch_size", batch_size)
    watch, sums, numbers = Watch(model), [], []

    def add(i, scores):
        n = watch.layout.num_prefix_tokens
        # (batch, num_heads, patches, patches).
        scores = scores[:, :, n:, n:]
        distances = patch_distances(watch.layout.grid, watch.layout.patch_size)
        weights = scores.sum(axis=-1)
        looks = weights > 0
        per_query = np.einsum("bhqk,qk->bhq", scores, distances) / np.where(looks, weights, 1)
        if i == len(sums):
            sums.append(0)
            numbers.append(0)
        sums[i] = sums[i] + per_query.sum(axis=(0, 2), dtype="float64")
        numbers[i] = numbers[i] + looks.sum(axis=(0, 2))

    for batch in batches(images, batch_size):
        watch.run(batch, add)
    if len({len(of_heads) for of_heads in sums}) > 1:
        raise ValueError(
            f"Expected blocks of as many heads. Received: {', '.join(str(len(of_heads)) for of_heads in sums)} heads"
        )
    return (np.stack(sums) / np.maximum(np.stack(numbers), 1)).astype("float32")


def patch_distances(grid, patch_size):
    """The distance in pixels of each patch's corner to each other's, (patches, patches), float32.

    Args:
        grid: (rows, columns).
        patch_size: (height, width) of a patch in pixels.

    Example:

    >>> patch_distances((2, 2), (3, 4)).tolist()[0]
    [0.0, 4.0, 3.0, 5.0]
    """
    sides = (np.arange(number) * size for number, size in zip(grid, patch_size, strict=True))
    tops, lefts = (corners.ravel().astype("float32") for corners in np.meshgrid(*sides, indexing="ij"))
    return np.hypot(tops[:, None] - tops, lefts[:, None] - lefts)
