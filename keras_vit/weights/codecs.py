"""How one weight of a model is laid out in a file: as it is, transposed, or fused from and split over other arrays.

A codec knows one layout in both directions. Shapes are tuples; `heads` is the (num_heads, head_dim) of the attention.
"""

import math

import numpy as np


class Same:
    """One array, the same in file and model."""

    # Which part of the file's array this is; save_weights joins the parts in this order.
    part = 0

    def file_shapes(self, shape, heads):
        """The shapes that the file's arrays must have for a model weight of `shape`."""
        return (shape,)

    def model_shape(self, shapes):
        """The shape of the model's weight that file arrays of `shapes` make; None if they make none."""
        return shapes[0]

    def fits(self, shapes, shape, heads):
        """Whether file arrays of `shapes` make a model weight of `shape`."""
        return shapes == self.file_shapes(shape, heads)

    def to_model(self, arrays, shape):
        """The model's weight, of `shape`, from the file's arrays."""
        return arrays[0].reshape(shape)

    def to_file(self, value, heads):
        """The file's arrays from the model's weight."""
        return tuple(value.reshape(shape) for shape in self.file_shapes(value.shape, heads))


class Ones(Same):
    """The same numbers in the same order, with axes of length 1 more or fewer: (1, 1, 1, C) for (C,).

    Args:
        before: How many axes of length 1 the file is written with before the others.
        without: How many leading axes of length 1 it is written without.
    """

    def __init__(self, before=0, without=0):
        self.before, self.without = before, without

    def file_shapes(self, shape, heads):
        return ((1,) * self.before + shape[self.without :],)

    def model_shape(self, shapes):
        lead = next((i for i, size in enumerate(shapes[0]) if size != 1), len(shapes[0]))
        return (1,) * self.without + shapes[0][lead:]

    def fits(self, shapes, shape, heads):
        return self.model_shape(shapes) == shape


class Transposed(Same):
    """A dense kernel as PyTorch stores it, (outputs, inputs)."""

    def file_shapes(self, shape, heads):
        return (shape[::-1],)

    def model_shape(self, shapes):
        return shapes[0][::-1]

    def to_model(self, arrays, shape):
        return arrays[0].T

    def to_file(self, value, heads):
        return (value.T,)


class TorchConv(Same):
    """A convolution's kernel as PyTorch stores it, (outputs, inputs, height, width)."""

    def file_shapes(self, shape, heads):
        height, width, inputs, outputs = shape
        return ((outputs, inputs, height, width),)

    def model_shape(self, shapes):
        if len(shapes[0]) != 4:
            return None
        outputs, inputs, height, width = shapes[0]
        return height, width, inputs, outputs

    def to_model(self, arrays, shape):
        return arrays[0].transpose(2, 3, 1, 0)

    def to_file(self, value, heads):
        return (value.transpose(3, 2, 0, 1),)


class FusedKernel(Same):
    """Query, key and value kernels, each (hidden_dim, num_heads, head_dim), fused to one matrix side by side."""

    def file_shapes(self, shape, heads):
        return ((shape[0], *heads),) * 3

    def model_shape(self, shapes):
        return shapes[0][0], sum(math.prod(shape[1:]) for shape in shapes)

    def to_model(self, arrays, shape):
        return np.concatenate([a.reshape(a.shape[0], -1) for a in arrays], axis=-1)

    def to_file(self, value, heads):
        return tuple(part.reshape(-1, *heads) for part in np.split(value, 3, axis=-1))


class FusedBias(Same):
    """Query, key and value biases, each (num_heads, head_dim), fused to (3 * num_heads * head_dim,)."""

    def file_shapes(self, shape, heads):
        return (tuple(heads),) * 3

    def model_shape(self, shapes):
        return (sum(math.prod(shape) for shape in shapes),)

    def to_model(self, arrays, shape):
        return np.concatenate([a.reshape(-1) for a in arrays])

    def to_file(self, value, heads):
        return tuple(part.reshape(heads) for part in np.split(value, 3))


class FusedTransposed(FusedKernel):
    """Query, key and value kernels, each (num_heads * head_dim, hidden_dim) as PyTorch stores them."""

    def file_shapes(self, shape, heads):
        return ((math.prod(heads), shape[0]),) * 3

    def model_shape(self, shapes):
        return shapes[0][-1], sum(shape[0] for shape in shapes)

    def to_model(self, arrays, shape):
        return np.concatenate([a.T for a in arrays], axis=-1)

    def to_file(self, value, heads):
        return tuple(part.T for part in np.split(value, 3, axis=-1))


class FusedVectors(FusedBias):
    """Query, key and value biases, each (num_heads * head_dim,)."""

    def file_shapes(self, shape, heads):
        return ((math.prod(heads),),) * 3

    def to_file(self, value, heads):
        return tuple(np.split(value, 3))


class OutKernel(Same):
    """The attention's output kernel, (num_heads, head_dim, hidden_dim) in the file, a matrix in the model."""

    def file_shapes(self, shape, heads):
        return ((*heads, shape[-1]),)

    def model_shape(self, shapes):
        return math.prod(shapes[0][:-1]), shapes[0][-1]


class HeadsTransposed(Same):
    """A projection to heads, (hidden_dim, num_heads, head_dim) in the model, as PyTorch stores its matrix."""

    def file_shapes(self, shape, heads):
        return ((math.prod(shape[1:]), shape[0]),)

    def model_shape(self, shapes):
        return None

    def to_model(self, arrays, shape):
        return arrays[0].T.reshape(shape)

    def to_file(self, value, heads):
        return (value.reshape(value.shape[0], -1).T,)


class FromHeadsTransposed(HeadsTransposed):
    """A projection from heads, (num_heads, head_dim, hidden_dim) in the model, as PyTorch stores its matrix."""

    def file_shapes(self, shape, heads):
        return ((shape[-1], math.prod(shape[:-1])),)

    def to_file(self, value, heads):
        return (value.reshape(-1, value.shape[-1]).T,)


class Flat(Same):
    """A bias with an axis of heads in the model and without one in the file."""

    def file_shapes(self, shape, heads):
        return ((math.prod(shape),),)

    def model_shape(self, shapes):
        return None


class Part(Same):
    """One of several weights that the file keeps in one array, one behind the other on its first axis.

    Args:
        codec: The codec of the part.
        part: Which part it is, counted from 0.
        count: How many there are.
    """

    def __init__(self, codec, part, count):
        self.codec, self.part, self.count = codec, part, count

    def file_shapes(self, shape, heads):
        (whole,) = self.codec.file_shapes(shape, heads)
        return ((whole[0] * self.count, *whole[1:]),)

    def model_shape(self, shapes):
        return self.codec.model_shape(((shapes[0][0] // self.count, *shapes[0][1:]),))

    def to_model(self, arrays, shape):
        return self.codec.to_model((np.split(arrays[0], self.count)[self.part],), shape)

    def to_file(self, value, heads):
        return self.codec.to_file(value, heads)
