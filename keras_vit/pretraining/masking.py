"""Which patches are hidden, drawn at random: pure functions of sizes and a seed."""

import math

import keras
from keras import ops

from keras_vit import arguments

# What becomes of a patch under `corruption`.
UNTOUCHED, MASKED, SWAPPED, KEPT = range(4)


def random_mask(batch_size, num_patches, num_masked, seed):
    """Chooses the same number of patches of each image, all sets of them being equally likely.

    Args:
        batch_size: Int, or a scalar tensor.
        num_patches: Int.
        num_masked: Int, or one a row as a tensor, (batch_size, 1): how many are chosen.
        seed: Int, or a `keras.random.SeedGenerator`.

    Returns:
        Booleans, (batch_size, num_patches), True where a patch is chosen.

    Example:

    >>> mask = random_mask(2, 10, 3, seed=0)
    >>> keras.ops.convert_to_numpy(mask).sum(axis=1).tolist()
    [3, 3]
    """
    return _ranks(batch_size, num_patches, seed) < num_masked


def _ranks(batch_size, num_patches, seed):
    """A random permutation for each image, (batch_size, num_patches)."""
    noise = keras.random.uniform((batch_size, num_patches), seed=seed)
    return ops.argsort(ops.argsort(noise, axis=1), axis=1)


def unit_mask(batch_size, grid, unit, mask_ratio, seed):
    """Chooses square units of several patches each, SimMIM's way.

    Of the units of an image, `mask_ratio` of them, rounded up, are chosen. Units at the right and bottom that the grid
    does not fill are cut off, so there the share of patches may differ from that of units.

    Args:
        batch_size: Int, or a scalar tensor.
        grid: (rows, columns) of patches in an image.
        unit: (rows, columns) of patches in a unit.
        mask_ratio: Float in (0, 1), the share of the units that is chosen.
        seed: Int, or a `keras.random.SeedGenerator`.

    Returns:
        Booleans, (batch_size, rows * columns), True where a patch is chosen.

    Example:

    >>> mask = keras.ops.convert_to_numpy(unit_mask(1, (4, 4), (2, 2), 0.5, seed=0)).reshape(4, 4)
    >>> bool((mask[::2, ::2] == mask[1::2, 1::2]).all()), int(mask.sum())
    (True, 8)

    Reference: [arXiv 2111.09886](https://arxiv.org/abs/2111.09886), section 3.2, and its official code, which rounds up
    and takes sizes that units fill.
    """
    unit_rows, unit_columns = (math.ceil(patches / side) for patches, side in zip(grid, unit, strict=True))
    num_units = unit_rows * unit_columns
    # Not above what the ratio says for its binary rounding alone: 10 units at 0.7 are 7.
    num_masked = math.ceil(num_units * mask_ratio - 1e-9)
    mask = ops.reshape(random_mask(batch_size, num_units, num_masked, seed), (-1, unit_rows, unit_columns))
    mask = ops.repeat(ops.repeat(mask, unit[0], axis=1), unit[1], axis=2)
    return ops.reshape(mask[:, : grid[0], : grid[1]], (-1, grid[0] * grid[1]))


def shuffle(batch_size, num_patches, num_visible, seed):
    """Shuffles the patches of each image, of which the first ones stay visible, MAE's way.

    Args:
        batch_size: Int, or a scalar tensor.
        num_patches: Int.
        num_visible: Int, how many stay visible.
        seed: Int, or a `keras.random.SeedGenerator`.

    Returns:
        kept: Ints, (batch_size, num_visible), the indices of the visible patches in shuffled order.
        restore: Ints, (batch_size, num_patches), each patch's place in the shuffled order. Gathering the visible
            patches, followed by anything, by it puts them back.
        mask: Booleans, (batch_size, num_patches), True where a patch is hidden.

    Example:

    >>> kept, restore, mask = shuffle(1, 4, 1, seed=0)
    >>> bool(restore[0, int(kept[0, 0])] == 0), keras.ops.convert_to_numpy(mask).sum().tolist()
    (True, 3)

    Reference: [arXiv 2111.06377](https://arxiv.org/abs/2111.06377), section 3, "Simple implementation".
    """
    restore = _ranks(batch_size, num_patches, seed)
    # The inverse of a permutation sorts it.
    return ops.argsort(restore, axis=1)[:, :num_visible], restore, restore >= num_visible


def corruption(batch_size, num_patches, seed, mask_ratio=0.5, masked_share=0.8, swapped_share=0.1):
    """Chooses which patches are corrupted and how, as in masked patch prediction.

    Args:
        batch_size: Int, or a scalar tensor.
        num_patches: Int, at least 2.
        seed: Int, or a `keras.random.SeedGenerator`.
        mask_ratio: Float in (0, 1), the share of an image's patches that is corrupted. It is an exact count in each
            image, and where it is no whole number, chance rounds it up or down so that the mean is right.
        masked_share: Float in [0, 1], the probability that a corrupted patch becomes the mask embedding.
        swapped_share: Float in [0, 1], the probability that it becomes another patch of its image. The rest is kept.

    Returns:
        kind: Ints, (batch_size, num_patches): UNTOUCHED, MASKED, SWAPPED or KEPT.
        source: Ints, (batch_size, num_patches): a random other patch of the image, for patches that are SWAPPED.

    Example:

    >>> kind, source = corruption(1, 100, seed=0)
    >>> int((keras.ops.convert_to_numpy(kind) != UNTOUCHED).sum())
    50

    Reference: [arXiv 2010.11929](https://arxiv.org/abs/2010.11929), appendix B.1.2. It does not say whether 50% is a
    count or a probability. It follows BERT (arXiv 1810.04805), whose code masks an exact count of each sequence and
    draws the kind of each token by itself; so does this.
    """
    count_seed, mask_seed, kind_seed, source_seed = _streams(seed, 4)
    num_corrupted = ops.floor(num_patches * mask_ratio + keras.random.uniform((batch_size, 1), seed=count_seed))
    corrupted = random_mask(batch_size, num_patches, ops.cast(num_corrupted, "int32"), mask_seed)
    draw = keras.random.uniform((batch_size, num_patches), seed=kind_seed)
    kind = ops.where(draw < masked_share, MASKED, ops.where(draw < masked_share + swapped_share, SWAPPED, KEPT))
    # A step of 1 to num_patches - 1 around the ring of patches leads to any other one, never to the patch itself.
    step = keras.random.randint((batch_size, num_patches), 1, num_patches, dtype="int32", seed=source_seed)
    source = (ops.arange(num_patches, dtype="int32") + step) % num_patches
    return ops.where(corrupted, kind, UNTOUCHED), source


def _streams(seed, count):
    """As many sources of random numbers: an int would give all draws the same ones."""
    return arguments.seeds(seed, count) if isinstance(seed, int) else [seed] * count
