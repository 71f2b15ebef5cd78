"""Rotary positions that a checkpoint states: in its config, or as tables of DINOv3's and EVA-02's original code."""

import math

import numpy as np

# bfloat16 has 8 significant bits.
_BFLOAT16 = 2.0**-8
# The grid to whose positions EVA-02 scales those of others.
_EVA02_GRID = (16, 16)


def _table(checkpoint, suffix):
    """Returns the first key with this ending of those that hold no weights, or None."""
    return next((key for key in checkpoint.ignored if key.endswith(suffix)), None)


def head_dim(checkpoint):
    """Returns the width of a head that the tables are for, or None."""
    periods, cosines = (_table(checkpoint, suffix) for suffix in ("rope_embed.periods", "rope.freqs_cos"))
    shape = checkpoint.file.entries[periods or cosines].shape if periods or cosines else ()
    return None if not shape else 4 * shape[0] if periods else shape[-1]


def of_checkpoint(checkpoint):
    """Returns (fields of the rotary positions, {unknown field: reason}); raises if they are others than here."""
    source, found = checkpoint.source.name, {"rotary_embedding": None, "rotary_grid": None}
    if source in ("dinov3", "dinov3_original"):
        theta = (checkpoint.config.get("rope_parameters") or {}).get("rope_theta", 100)
        theta = checkpoint.config.get("rope_theta", theta)
        periods = _table(checkpoint, "rope_embed.periods")
        if theta != 100 or not (periods is None or _of_theta_100(checkpoint, periods)):
            stated = f"its config says rope_theta={theta!r}" if theta != 100 else f"{periods!r} holds other periods"
            raise ValueError(f"Cannot load {checkpoint.path!r}: {stated}, which is not supported. Expected 100.")
        return {**found, "rotary_embedding": "dinov3"}, {}
    if source == "eva02":
        if _table(checkpoint, "rope.freqs_cos") is None:
            return {"rotary_embedding": "eva02"}, {"rotary_grid": "the file has no table of rotary positions"}
        return {"rotary_embedding": "eva02", "rotary_grid": _grid_of_eva02(checkpoint)}, {}
    if checkpoint.facts.get("rotary"):
        return {}, dict.fromkeys(found, f"{source} files do not contain it")
    known, unknown = checkpoint.of_timm, checkpoint.unknown_of_timm
    return {name: known.get(name) for name in found if name not in unknown}, {}


def _read(checkpoint, key):
    ((_, array),) = checkpoint.file.read([key])
    return array


def _of_theta_100(checkpoint, key):
    """Returns whether the periods are those of theta 100, as rounded to bfloat16 in the published files."""
    periods = _read(checkpoint, key)
    return np.allclose(periods, 100.0 ** (np.arange(len(periods)) / len(periods)), rtol=_BFLOAT16, atol=0)


def _grid_of_eva02(checkpoint):
    """Returns the rotary_grid with which the cosines and sines of the file come out."""
    tables = [_read(checkpoint, _table(checkpoint, f"rope.freqs_{name}")) for name in ("cos", "sin")]
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
        f"Cannot load {checkpoint.path!r}: its rotary positions are neither EVA-02's, scaled to a grid of 16 x 16, nor "
        "those of row and column numbers, which are not supported."
    )
