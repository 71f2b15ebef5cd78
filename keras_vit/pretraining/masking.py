"""Random choices of hidden patches: functions of sizes and a seed, an int or a `keras.random.SeedGenerator`.

A batch size may be a scalar tensor. Grids and units are (rows, columns) of patches.
"""

import math

import keras
from keras import ops

from keras_vit import arguments

# The kinds of a patch under `corruption`.
UNTOUCHED, MASKED, SWAPPED, KEPT = range(4)


def random_mask(batch_size, num_patches, num_masked, seed):
    """Booleans, (batch_size, num_patches), with `num_masked`, an int or (batch_size, 1), random patches True."""
    return _ranks(batch_size, num_patches, seed) < num_masked


def _ranks(batch_size, num_patches, seed):
    """A random permutation for each image, (batch_size, num_patches)."""
    noise = keras.random.uniform((batch_size, num_patches), seed=seed)
    return ops.argsort(ops.argsort(noise, axis=1), axis=1)


def unit_mask(batch_size, grid_size, unit, mask_ratio, seed):
    """Booleans, (batch_size, rows * columns), with a share of the units of several patches True: SimMIM's mask.

    The number of units is rounded up. Units at the right and bottom that do not fit are cut off, so the share of
    patches may differ from that of units. The official code takes only sizes that units fill.
    """
    unit_rows, unit_columns = (math.ceil(patches / side) for patches, side in zip(grid_size, unit, strict=True))
    num_units = unit_rows * unit_columns
    # 0.7 * 10 is a little more than 7 in binary.
    num_masked = math.ceil(num_units * mask_ratio - 1e-9)
    mask = ops.reshape(random_mask(batch_size, num_units, num_masked, seed), (-1, unit_rows, unit_columns))
    mask = ops.repeat(ops.repeat(mask, unit[0], axis=1), unit[1], axis=2)
    return ops.reshape(mask[:, : grid_size[0], : grid_size[1]], (-1, grid_size[0] * grid_size[1]))


def shuffle(batch_size, num_patches, num_visible, seed):
    """Shuffles the patches of each image, the first of which stay visible: MAE's "simple implementation".

    Returns:
        kept: Ints, (batch_size, num_visible), the indices of the visible patches in shuffled order.
        restore: Ints, (batch_size, num_patches), each patch's place in the shuffled order, to gather patches back.
        mask: Booleans, (batch_size, num_patches), True for hidden patches.
    """
    restore = _ranks(batch_size, num_patches, seed)
    # argsort inverts a permutation.
    return ops.argsort(restore, axis=1)[:, :num_visible], restore, restore >= num_visible


def corruption(batch_size, num_patches, seed, mask_ratio=0.5, masked_share=0.8, swapped_share=0.1):
    """Chooses which patches are corrupted and how, as in masked patch prediction.

    The number of corrupted patches is exact in each image, rounded up or down at random so that its mean is right;
    their kinds are drawn one by one. The paper does not say so; the code of BERT (arXiv 1810.04805), which it follows,
    does the same.

    Returns:
        kind: Ints, (batch_size, num_patches): UNTOUCHED, MASKED, SWAPPED or KEPT.
        source: Ints, (batch_size, num_patches): a random other patch of the image, for patches that are SWAPPED.
    """
    # An int would give all draws the same numbers.
    streams = arguments.seeds(seed, 4) if isinstance(seed, int) else [seed] * 4
    count_seed, mask_seed, kind_seed, source_seed = streams
    num_corrupted = ops.floor(num_patches * mask_ratio + keras.random.uniform((batch_size, 1), seed=count_seed))
    corrupted = random_mask(batch_size, num_patches, ops.cast(num_corrupted, "int32"), mask_seed)
    draw = keras.random.uniform((batch_size, num_patches), seed=kind_seed)
    kind = ops.where(draw < masked_share, MASKED, ops.where(draw < masked_share + swapped_share, SWAPPED, KEPT))
    # 1 to num_patches - 1 steps around the ring of patches never lead back to the patch itself.
    step = keras.random.randint((batch_size, num_patches), 1, num_patches, dtype="int32", seed=source_seed)
    source = (ops.arange(num_patches, dtype="int32") + step) % num_patches
    return ops.where(corrupted, kind, UNTOUCHED), source
