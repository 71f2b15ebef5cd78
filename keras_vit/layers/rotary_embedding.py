import math
from typing import NamedTuple

import keras
from keras import ops

from keras_vit import arguments
from keras_vit.layers.base import Layer

# The channels of a head that are rotated together: i and i + head_dim / 2 for "halves", 2i and 2i + 1 for "pairs".
LAYOUTS = ("halves", "pairs")


class Rotary(NamedTuple):
    """A kind of 2-D rotary position embedding."""

    layout: str
    theta: float
    # True: positions go from -1 to 1 on each axis, and are multiplied by 2 pi. False: positions are the row and column
    # numbers.
    normalized: bool = False
    columns_first: bool = False  # True: the first half of the channels encodes the column, not the row.


# DINOv3: arXiv 2508.10104, section 3. EVA-02: arXiv 2303.11331, section 2. RoPE-ViT's axial kind: arXiv 2403.13298,
# section 3.2.
KINDS = {
    "dinov3": Rotary("halves", 100.0, normalized=True),
    "eva02": Rotary("pairs", 10_000.0),
    "axial": Rotary("pairs", 100.0, columns_first=True),
}


@keras.saving.register_keras_serializable(package="keras_vit")
class RotaryEmbedding(Layer):
    """Computes 2-D rotary position embeddings for images of any size. Blocks use them to rotate queries and keys.

    Args:
        kind: "dinov3", "eva02" or "axial" (RoPE-ViT). With "dinov3", positions go from -1 to 1 and are multiplied by
            2 pi, theta (the base of the frequencies) is 100, and the rotary layout is "halves". With "eva02", positions
            are row and column numbers, theta is 10,000, and the rotary layout is "pairs". "axial" differs from "eva02"
            in two points: theta is 100, and the first half of the channels encodes the column instead of the row.
        head_dim: Int, the width of a head, a multiple of 4.
        patch_size: Int or (height, width), in pixels.
        grid_size: (rows, columns) or None. If a grid is given, row and column numbers are scaled to the range that they
            have in this grid, as in EVA-02. "dinov3" ignores `grid_size`.

    Input shape: images, (batch, height, width, channels). Only their size is read.
    Output shape: (rows * columns, 2, head_dim), the cosines and sines for each patch, float32.

    Raises:
        ValueError: If an argument is out of range.

    Example:
    >>> keras_vit.layers.RotaryEmbedding("dinov3", head_dim=64, patch_size=16)(np.zeros((1, 224, 224, 3))).shape
    (196, 2, 64)

    Reference: [arXiv 2104.09864](https://arxiv.org/abs/2104.09864), section 3.4.2, applied to rows and columns.
    """

    def __init__(self, kind, head_dim, patch_size, grid_size=None, **kwargs):
        # Compute the angles in float32, because half precision is too inexact.
        super().__init__(**{**kwargs, "dtype": "float32"})
        self.kind = arguments.choice("kind", kind, tuple(KINDS))
        self.head_dim = arguments.positive_int("head_dim", head_dim)
        # Half of the channels encode the row and half the column, and channels are rotated in pairs.
        if head_dim % 4:
            raise arguments.invalid("head_dim", "a multiple of 4 for rotary positions", head_dim)
        self.patch_size = arguments.pair("patch_size", patch_size)
        self.grid_size = arguments.optional(arguments.pair, "grid_size", grid_size)
        self.input_spec = keras.layers.InputSpec(ndim=4)

    def call(self, images):
        return self.angles(arguments.grid_size(ops.shape(images)[1:3], self.patch_size))

    def angles(self, grid_size):
        """Returns the cosines and sines for a grid of (rows, columns), as (rows * columns, 2, head_dim)."""
        kind, (rows, columns) = KINDS[self.kind], grid_size
        own = self.grid_size or (None, None)
        by_row, by_column = (
            self._axis_angles(kind, length, scaled) for length, scaled in zip(grid_size, own, strict=True)
        )
        quarter = self.head_dim // 4
        by_row = ops.broadcast_to(by_row[:, None], (rows, columns, quarter))
        by_column = ops.broadcast_to(by_column[None], (rows, columns, quarter))
        both = (by_column, by_row) if kind.columns_first else (by_row, by_column)
        angles = ops.reshape(ops.concatenate(both, axis=-1), (-1, self.head_dim // 2))
        if kind.layout == "halves":
            angles = ops.concatenate([angles, angles], axis=-1)
        else:
            angles = ops.repeat(angles, 2, axis=-1)
        return ops.stack([ops.cos(angles), ops.sin(angles)], axis=1)

    def _axis_angles(self, kind, length, scaled):
        """Returns the rotation angles of each position along one axis, (length, head_dim / 4)."""
        quarter = self.head_dim // 4
        # Compute this with `ops`, because PyTorch cannot compile NumPy arrays.
        frequencies = kind.theta ** -(ops.arange(quarter, dtype="float32") / quarter)
        positions = ops.arange(length, dtype="float32")
        if kind.normalized:
            positions = 2 * math.pi * (2 * (positions + 0.5) / ops.cast(length, "float32") - 1)
        elif scaled is not None:
            positions = positions / ops.cast(length, "float32") * scaled
        return positions[:, None] * frequencies

    def compute_output_shape(self, images_shape):
        grid = arguments.grid_size(images_shape[1:3], self.patch_size)
        return arguments.num_patches(grid), 2, self.head_dim


def rotate(x, angles, layout):
    """Rotates the patches in the queries or keys `x`, (batch, num_tokens, num_heads, head_dim).

    `angles` is the output of `RotaryEmbedding`. The patches are the last tokens; the tokens before them do not change.
    """
    dtype = x.dtype
    # The layer that calls `rotate` has cast the cosines and sines to its compute dtype. Compute in float32 again.
    x, angles = ops.cast(x, "float32"), ops.cast(angles, "float32")
    num_prefix = ops.shape(x)[1] - ops.shape(angles)[0]
    prefix, patches = x[:, :num_prefix], x[:, num_prefix:]
    if layout == "halves":
        first, second = ops.split(patches, 2, axis=-1)
        turned = ops.concatenate([-second, first], axis=-1)
    else:
        turned = ops.stack([-patches[..., 1::2], patches[..., ::2]], axis=-1)
        turned = ops.reshape(turned, ops.shape(patches))
    cosines, sines = angles[:, None, 0], angles[:, None, 1]
    return ops.cast(ops.concatenate([prefix, patches * cosines + turned * sines], axis=1), dtype)
