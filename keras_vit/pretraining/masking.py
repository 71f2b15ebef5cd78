"""Random masks of patches. Seeds are ints or `keras.random.SeedGenerator`s, and batch sizes are ints or tensors."""

import math

import keras
from keras import ops

from keras_vit import arguments

# The values of `kind` in `corruption`.
UNTOUCHED, MASKED, SWAPPED, KEPT = range(4)


def random_mask(batch_size, num_patches, num_masked, seed):
    """Returns a mask, True for `num_masked` random patches. `num_masked` is an int, or an array (batch_size, 1)."""
    return _ranks(batch_size, num_patches, seed) < num_masked


def _ranks(batch_size, num_patches, seed):
    """Returns a random permutation per image, (batch_size, num_patches)."""
    noise = keras.random.uniform((batch_size, num_patches), seed=seed)
    return ops.argsort(ops.argsort(noise, axis=1), axis=1)


def unit_mask(batch_size, grid_size, unit, mask_ratio, seed):
    """Returns SimMIM's mask of random rectangles, (batch_size, rows * columns). `unit` is their (rows, columns)."""
    unit_rows, unit_columns = (math.ceil(patches / side) for patches, side in zip(grid_size, unit, strict=True))
    num_units = unit_rows * unit_columns
    # Subtract 1e-9, because a product such as 0.7 * 10 may be slightly above 7 in floating point.
    num_masked = math.ceil(num_units * mask_ratio - 1e-9)
    mask = ops.reshape(random_mask(batch_size, num_units, num_masked, seed), (-1, unit_rows, unit_columns))
    mask = ops.repeat(ops.repeat(mask, unit[0], axis=1), unit[1], axis=2)
    return ops.reshape(mask[:, : grid_size[0], : grid_size[1]], (-1, grid_size[0] * grid_size[1]))


def shuffle(batch_size, num_patches, num_visible, seed):
    """Returns MAE's (indices of visible patches, position of each patch in a random order, mask)."""
    restore = _ranks(batch_size, num_patches, seed)
    return ops.argsort(restore, axis=1)[:, :num_visible], restore, restore >= num_visible


def corruption(batch_size, num_patches, seed, mask_ratio=0.5, masked_share=0.8, swapped_share=0.1):
    """Returns the kind of each patch, and the index of the patch that replaces it if its kind is `SWAPPED`."""
    # Use a different seed for each random tensor, because the same seed would make the tensors correlated.
    streams = arguments.seeds(seed, 4) if isinstance(seed, int) else [seed] * 4
    count_seed, mask_seed, kind_seed, source_seed = streams
    num_corrupted = ops.floor(num_patches * mask_ratio + keras.random.uniform((batch_size, 1), seed=count_seed))
    corrupted = random_mask(batch_size, num_patches, ops.cast(num_corrupted, "int32"), mask_seed)
    draw = keras.random.uniform((batch_size, num_patches), seed=kind_seed)
    kind = ops.where(draw < masked_share, MASKED, ops.where(draw < masked_share + swapped_share, SWAPPED, KEPT))
    # The source is 1 to num_patches - 1 steps away, modulo num_patches, so it is never the patch itself.
    step = keras.random.randint((batch_size, num_patches), 1, num_patches, dtype="int32", seed=source_seed)
    source = (ops.arange(num_patches, dtype="int32") + step) % num_patches
    return ops.where(corrupted, kind, UNTOUCHED), source
