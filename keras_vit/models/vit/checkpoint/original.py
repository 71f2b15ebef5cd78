"""Reads config fields that arrays do not show, for original files of DINOv3 and EVA-02, and for .weights.h5 files."""

import math

import numpy as np

from keras_vit.weights.found import DEFAULT, STATED

# The relative precision of bfloat16, which has 8 significant bits.
_BFLOAT16 = 2.0**-8
# EVA-02 rescales the positions of other grids to this grid.
_EVA02_GRID = (16, 16)


def read_config(file, found):
    """Adds to `found` the rotary embedding of a state dict of DINOv3 or EVA-02."""
    source, origin = file.source, f"{DEFAULT} {file.source.name}"
    if source.name == "dinov3_original":
        _check_periods(file)
        found.put(origin, rotary_embedding="dinov3")
    elif source.name == "eva02":
        found.put(origin, rotary_embedding="eva02")
        if _table(file, "rope.freqs_cos") is None:
            found.leave("the file has no table of rotary positions", "rotary_grid")
        else:
            found.put(STATED, rotary_grid=_grid_of_eva02(file))


def head_dim(file):
    """Returns the width of a head, which follows from a file's tables of rotary positions; None without tables."""
    periods, cosines = (_table(file, suffix) for suffix in ("rope_embed.periods", "rope.freqs_cos"))
    shape = file.file.entries[periods or cosines].shape if periods or cosines else ()
    return None if not shape else 4 * shape[0] if periods else shape[-1]


def read_keras(file, found):
    """Marks fields as unknown in `found` if a Keras .weights.h5 file does not contain them."""
    if "num_heads" not in found.values:
        found.leave("keras files do not contain it", "num_heads")
    if file.facts.get("rotary"):
        found.leave("keras files do not contain it", "rotary_embedding", "rotary_grid")


def _table(file, suffix):
    """Returns the first key of the file that ends in `suffix` and is not a weight, or None."""
    return next((key for key in file.ignored if key.endswith(suffix)), None)


def _read(file, key):
    ((_, array),) = file.file.read([key])
    return array


def _check_periods(file):
    """Raises ValueError if the file's rotary periods do not follow from base theta = 100, up to bfloat16 rounding."""
    key = _table(file, "rope_embed.periods")
    if key is None:
        return
    periods = _read(file, key)
    expected = 100.0 ** (np.arange(len(periods)) / len(periods))
    if not np.allclose(periods, expected, rtol=_BFLOAT16, atol=0):
        raise ValueError(
            f"Cannot load {file.path!r}. Expected rotary-embedding periods of base theta = 100 in {key!r}. Received: "
            "other periods, which are not supported."
        )


def _grid_of_eva02(file):
    """Returns the `rotary_grid` that reproduces the cosines and sines in the file; None for unscaled positions."""
    tables = [_read(file, _table(file, f"rope.freqs_{name}")) for name in ("cos", "sin")]
    side, quarter = math.isqrt(len(tables[0])), tables[0].shape[-1] // 4
    for grid in (_EVA02_GRID, None):
        positions = np.arange(side) * (1 if grid is None else grid[0] / side)
        angles = np.repeat(positions[:, None] * 10_000.0 ** -(np.arange(quarter) / quarter), 2, axis=1)
        rows, columns = (np.broadcast_to(a, (side, side, 2 * quarter)) for a in (angles[:, None], angles[None]))
        angles = np.concatenate([rows, columns], axis=-1).reshape(side * side, -1)
        expected = np.cos(angles), np.sin(angles)
        if all(a.shape == b.shape and np.allclose(a, b, atol=2e-3) for a, b in zip(tables, expected, strict=True)):
            return grid
    raise ValueError(
        f"Cannot load {file.path!r}. Expected rotary positions of EVA-02, scaled to a 16 x 16 grid or not scaled. "
        "Received: other positions, which are not supported."
    )
