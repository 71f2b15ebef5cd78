import math

import keras
from keras import ops

from keras_vit import arguments
from keras_vit.images.interpolation import POSITION_METHODS, resize_matrix
from keras_vit.layers import initializers
from keras_vit.layers.base import Layer

# {method: the number that must divide `hidden_dim`}.
METHODS = {"learned": 1, "learned2d": 2, "sincos2d": 4}


@keras.saving.register_keras_serializable(package="keras_vit")
class PositionEmbedding(Layer):
    """Adds position embeddings to the tokens, for any number of patch rows and columns.

    Args:
        grid_size: (rows, columns) of the patch grid that the embeddings are stored for. If an input has another grid,
            the layer resizes the embeddings. None: the grid of the first input, computed from the size of its `images`.
            If no `images` are passed, the patches of the first input must form a square grid.
        method: "learned" (one vector per patch), "learned2d" (one vector per column for the first half of the channels,
            one per row for the second half) or "sincos2d" (fixed sines and cosines of column and row).
        patch_size: Int or (height, width), in pixels. Required if `images` is passed.
        num_prefix_tokens: Int, the number of tokens (class, distillation, registers) before the patches.
        num_prefix_positions: Int, the number of leading prefix tokens that get a learned embedding. None means all.
            With "sincos2d", prefix tokens get no embedding.
        interpolation: The method of resizing: "linear" with aligned end points (official code), "bicubic"
            (DeiT, Hugging Face), "bicubic_antialias" (timm) or "bicubic_offset" (DINO).

    Call arguments:
        tokens: (batch, num_prefix_tokens + rows * columns, hidden_dim); the output has the same shape.
        images: (batch, height, width, channels) or None, the images that the patches are from. Only their size is read.
            The size determines the grid. If no images are passed, the grid is `grid_size`, and the number of tokens
            must match it.

    Example:
    >>> layer = keras_vit.layers.PositionEmbedding((14, 14), num_prefix_tokens=1)
    >>> layer(np.zeros((1, 197, 768))).shape
    (1, 197, 768)
    >>> keras_vit.layers.PositionEmbedding()(np.zeros((1, 196, 768))).shape
    (1, 196, 768)

    Reference: [arXiv 2010.11929](https://arxiv.org/abs/2010.11929), section 3.1, equation 1, and appendix D.4;
    "sincos2d": [arXiv 2205.01580](https://arxiv.org/abs/2205.01580). Initialized as in the official Flax code: normal,
    standard deviation 0.02.
    """

    def __init__(
        self,
        grid_size=None,
        method="learned",
        patch_size=None,
        num_prefix_tokens=0,
        num_prefix_positions=None,
        interpolation="linear",
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.grid_size = arguments.optional(arguments.pair, "grid_size", grid_size)
        self.method = arguments.choice("method", method, tuple(METHODS))
        self.interpolation = arguments.choice("interpolation", interpolation, POSITION_METHODS)
        self.patch_size = arguments.optional(arguments.pair, "patch_size", patch_size)
        self.num_prefix_tokens = arguments.non_negative_int("num_prefix_tokens", num_prefix_tokens)
        if num_prefix_positions is None:
            num_prefix_positions = self.num_prefix_tokens
        self.num_prefix_positions = arguments.non_negative_int("num_prefix_positions", num_prefix_positions)
        if self.num_prefix_positions > self.num_prefix_tokens:
            expected = f"at most `num_prefix_tokens`, {self.num_prefix_tokens}"
            raise arguments.invalid("num_prefix_positions", expected, num_prefix_positions)

    def build(self, tokens_shape, images_shape=None):
        _, length, hidden_dim = tokens_shape
        if images_shape is not None and self.patch_size is None:
            raise ValueError("Expected `patch_size` if `images` are passed. Received: patch_size=None")
        if self.grid_size is None:
            self.grid_size = self._found_grid(length, images_shape)
        rows, columns = self.grid_size
        if hidden_dim % METHODS[self.method]:
            expected = f'Expected a multiple of {METHODS[self.method]} channels with method="{self.method}"'
            raise ValueError(f"{expected}. Received: {hidden_dim} channels")
        num_prefix = self.num_prefix_positions
        self.embeddings = self.row_embeddings = self.column_embeddings = self.prefix_embeddings = None
        if self.method == "learned":
            # As in the official checkpoints, prefix and patch embeddings are one table.
            self.embeddings = self._embeddings("embeddings", (1, num_prefix + rows * columns, hidden_dim))
        elif self.method == "learned2d":
            self.column_embeddings = self._embeddings("column_embeddings", (columns, hidden_dim // 2))
            self.row_embeddings = self._embeddings("row_embeddings", (rows, hidden_dim // 2))
            if num_prefix:
                self.prefix_embeddings = self._embeddings("prefix_embeddings", (1, num_prefix, hidden_dim))

    def _found_grid(self, length, images_shape):
        """Returns (rows, columns) of the patches: the grid of the images or, without images, a square grid."""
        if images_shape is not None and None not in images_shape[1:3]:
            return arguments.grid_size(images_shape[1:3], self.patch_size)
        patches = None if length is None else length - self.num_prefix_tokens
        side = math.isqrt(max(patches or 0, 0))
        if images_shape is None and side and side * side == patches:
            return side, side
        raise ValueError(
            "Expected `grid_size`, the (rows, columns) of the patches, or an input with a square number of patches. "
            f"Received: grid_size=None and {length} tokens, {self.num_prefix_tokens} of them before the patches. "
            "Write PositionEmbedding((rows, columns), num_prefix_tokens=...)."
        )

    def _embeddings(self, name, shape):
        return self.add_weight(shape, initializers.RandomNormal(stddev=0.02), name=name)

    def call(self, tokens, images=None):
        grid_size = self.grid_size
        if images is not None:
            grid_size = arguments.grid_size(ops.shape(images)[1:3], self.patch_size)
        (rows, columns), length = grid_size, tokens.shape[1]
        if all(type(n) is int for n in (rows, columns, length)) and length != self.num_prefix_tokens + rows * columns:
            expected = f"Expected {self.num_prefix_tokens} prefix tokens and {rows} x {columns} patches"
            raise ValueError(f"{expected}. Received: {length} tokens, shape {tuple(tokens.shape)}")
        return tokens + ops.cast(self._positions(grid_size, tokens.shape[-1]), tokens.dtype)

    def _positions(self, grid_size, hidden_dim):
        """Returns the position embeddings of all tokens, (1, num_prefix_tokens + rows * columns, hidden_dim)."""
        prefix = None
        if self.method == "learned":
            if self._is_own(grid_size) and self.num_prefix_positions == self.num_prefix_tokens:
                return self.embeddings
            embeddings = ops.convert_to_tensor(self.embeddings)
            prefix = embeddings[:, : self.num_prefix_positions]
            patches = self._resize(embeddings[0, self.num_prefix_positions :], grid_size, hidden_dim)
        elif self.method == "learned2d":
            if self.prefix_embeddings is not None:
                prefix = ops.convert_to_tensor(self.prefix_embeddings)
            row_matrix, column_matrix = self._resize_matrices(grid_size)
            rows = ops.matmul(row_matrix, self.row_embeddings)
            columns = ops.matmul(column_matrix, self.column_embeddings)
            patches = _join_axes(columns, rows)
        else:
            patches = _join_axes(_sincos(grid_size[1], hidden_dim // 2), _sincos(grid_size[0], hidden_dim // 2))
        patches = ops.reshape(patches, (1, -1, hidden_dim))
        parts = [] if prefix is None else [prefix]
        num_without = self.num_prefix_tokens - (0 if prefix is None else self.num_prefix_positions)
        if num_without:
            parts.append(ops.zeros((1, num_without, hidden_dim), dtype=patches.dtype))
        return ops.concatenate([*parts, patches], axis=1) if parts else patches

    def _is_own(self, grid_size):
        """Returns True if `grid_size` is known and equals the grid of the stored embeddings."""
        # A side may be a tensor or a symbol of torch.export. Comparing a symbol with a number would make torch.export
        # fix the image size.
        return all(type(side) is int for side in grid_size) and grid_size == self.grid_size

    def _resize(self, embeddings, grid_size, hidden_dim):
        if self._is_own(grid_size):
            return embeddings
        rows, columns = self._resize_matrices(grid_size)
        # Use two matrix products, because an einsum of three tensors would fix the image size in torch.export.
        resized = ops.matmul(rows, ops.reshape(embeddings, (self.grid_size[0], -1)))
        return ops.matmul(columns, ops.reshape(resized, (-1, self.grid_size[1], hidden_dim)))

    def _resize_matrices(self, grid_size):
        pairs = list(zip(self.grid_size, grid_size, strict=True))
        matrices = [resize_matrix(old, new, self.interpolation, ops) for old, new in pairs]
        if self.interpolation == "bicubic_offset":
            # The offset would also change embeddings of the stored grid, which DINO's code does not resize.
            is_own = ops.logical_and(*(ops.equal(ops.arange(new, dtype="float32")[-1], old - 1) for old, new in pairs))
            unchanged = [resize_matrix(old, new, "bicubic", ops) for old, new in pairs]
            matrices = [ops.where(is_own, *both) for both in zip(unchanged, matrices, strict=True)]
        return [ops.cast(matrix, self.compute_dtype) for matrix in matrices]


def _sincos(length, channels):
    """Returns the sines, then the cosines, of the positions 0 to length - 1, as (length, channels)."""
    # Compute this with `ops`, because PyTorch cannot compile NumPy arrays.
    frequencies = 10_000.0 ** -(ops.arange(channels // 2, dtype="float32") / max(1, channels // 2 - 1))
    angles = ops.arange(length, dtype="float32")[:, None] * frequencies
    return ops.concatenate([ops.sin(angles), ops.cos(angles)], axis=-1)


def _join_axes(columns, rows):
    """Returns the embeddings of the column and the row of each patch, concatenated, as (rows, columns, channels)."""
    num_rows, num_columns, channels = ops.shape(rows)[0], ops.shape(columns)[0], columns.shape[-1]
    columns = ops.broadcast_to(columns[None], (num_rows, num_columns, channels))
    rows = ops.broadcast_to(rows[:, None], (num_rows, num_columns, channels))
    return ops.concatenate([columns, rows], axis=-1)
