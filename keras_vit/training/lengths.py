"""How long a recipe's run is, and in which parts, on so many images."""

import logging
import math
from typing import NamedTuple

logger = logging.getLogger("keras_vit")
# Where the recipe leaves it open: about so many batches an epoch, of as many images as one GPU holds.
BATCHES_AN_EPOCH, BATCH_SIZES = 20, (16, 64)


class Lengths(NamedTuple):
    """Lengths of a run, in steps.

    Args:
        total: Int, of the whole run.
        warmup: Int, of the warm-up.
        epoch: Int, from a test and a checkpoint to the next.
    """

    total: int
    warmup: int
    epoch: int

    @property
    def epochs(self):
        """Epochs of the run, of which the last may be shorter."""
        return -(-self.total // self.epoch)


def batch_size_for(num_images):
    """The batch where a recipe leaves it open: a power of two from 16 to 64, and some 20 batches an epoch or more.

    Example:

    >>> [batch_size_for(n) for n in (100, 1_000, 100_000)]
    [16, 32, 64]
    """
    low, high = BATCH_SIZES
    return min(high, max(low, 2 ** int(math.log2(max(1, num_images / BATCHES_AN_EPOCH)))))


def lengths(recipe, num_images, num_test_images):
    """How long a recipe's run is.

    A warm-up that would be no shorter than the run, as of a few steps to try something, becomes a tenth of it; the
    logger "keras_vit" says so.

    Args:
        recipe: A `Recipe` with a batch size.
        num_images: Int, to train on.
        num_test_images: Int.

    Returns:
        `Lengths`.

    Example:

    >>> lengths(keras_vit.training.RECIPES["finetune_pets"], 3_680, 3_669)
    Lengths(total=500, warmup=50, epoch=25)
    """
    steps = num_images / recipe.batch_size
    total = recipe.steps or max(1, recipe.min_steps, round(recipe.epochs * steps))
    warmup = recipe.warmup_steps or round(recipe.warmup_epochs * steps + recipe.warmup_percent / 100 * total)
    if warmup >= total:
        logger.warning(
            "Expected a warm-up shorter than the run, %d steps. Received: %d steps. It takes a tenth, %d steps; "
            "`warmup_steps` sets another.",
            *(total, warmup, total // 10),
        )
        warmup = total // 10
    # Short epochs are put together, so that testing and saving after each takes no more time than training.
    epoch = max(math.ceil(steps), num_test_images // recipe.batch_size, min(25, total // 20))
    return Lengths(total, warmup, min(total, epoch))
