"""How one weight of a model is laid out in a file: as it is, or fused from, split over, resized from other arrays."""

import numpy as np


class Same:
    """One array, the same in file and model."""

    @staticmethod
    def shapes(shape, architecture):
        """The shapes that the file's arrays must have for a model weight of `shape`."""
        return (shape,)

    @staticmethod
    def to_model(arrays, shape):
        """The model's weight, of `shape`, from the file's arrays."""
        return arrays[0].reshape(shape)

    @staticmethod
    def to_file(value, architecture):
        """The file's arrays from the model's weight."""
        return (value,)


class FusedKernel(Same):
    """Query, key and value kernels, each (hidden_dim, num_heads, head_dim), fused to one matrix side by side."""

    @staticmethod
    def shapes(shape, architecture):
        return ((shape[0], architecture.num_heads, architecture.head_dim),) * 3

    @staticmethod
    def to_model(arrays, shape):
        return np.concatenate([a.reshape(a.shape[0], -1) for a in arrays], axis=-1)

    @staticmethod
    def to_file(value, architecture):
        heads = (value.shape[0], architecture.num_heads, architecture.head_dim)
        return tuple(part.reshape(heads) for part in np.split(value, 3, axis=-1))


class FusedBias(Same):
    """Query, key and value biases, each (num_heads, head_dim), fused to (3 * num_heads * head_dim,)."""

    @staticmethod
    def shapes(shape, architecture):
        return ((architecture.num_heads, architecture.head_dim),) * 3

    @staticmethod
    def to_model(arrays, shape):
        return np.concatenate([a.reshape(-1) for a in arrays])

    @staticmethod
    def to_file(value, architecture):
        heads = (architecture.num_heads, architecture.head_dim)
        return tuple(part.reshape(heads) for part in np.split(value, 3))


class OutKernel(Same):
    """The attention's output kernel, (num_heads, head_dim, hidden_dim) in the file, a matrix in the model."""

    @staticmethod
    def shapes(shape, architecture):
        return ((architecture.num_heads, architecture.head_dim, shape[-1]),)

    @staticmethod
    def to_file(value, architecture):
        return (value.reshape(architecture.num_heads, architecture.head_dim, -1),)
