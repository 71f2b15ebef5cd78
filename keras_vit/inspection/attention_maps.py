import numbers
from collections.abc import Sequence

import keras
import numpy as np

from keras_vit import arguments
from keras_vit.inspection.watch import Watch, batches


def attention_maps(
    model: keras.Model, images, blocks: int | Sequence[int] | None = -1, batch_size: int = 8
) -> np.ndarray | list[np.ndarray]:
    """Returns the attention weights of a model's blocks, of all heads, for images.

    Args:
        model: Any model that holds one ViT of this package: as it is built, fine-tuned, in mixed precision, or nested
            in a larger model.
        images: The model's input, (batch, height, width, channels), preprocessed as for `model.predict`. Of a model
            with several inputs the structure that it takes.
        blocks: Int, the index of a block in the order in which they run, negative from the last; a list of them; or
            None for all, which a long sequence may have no memory for.
        batch_size: Int, how many images run at a time.

    Returns:
        (batch, num_heads, num_tokens (queries), num_tokens (keys)), float32, whose rows sum to 1; the tokens are those
        of `patch_layout`, prefix first. A list of such arrays unless `blocks` is an int.

    Raises:
        ValueError: If the model holds no ViT, or several, or runs it more than once, or has no such block.

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
    chosen = [i % depth for i in chosen]
    maps = {i: [] for i in chosen}

    def keep(i, scores):
        if i in maps:
            maps[i].append(scores)

    for batch in batches(images, batch_size):
        watch.run(batch, keep)
    maps = [np.concatenate(maps[i]) for i in chosen]
    return maps[0] if single else maps
