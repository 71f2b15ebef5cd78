"""How one weight of a model is laid out in a file: reshaped, transposed, fused from several arrays, or part of one.

Shapes are tuples; `heads` is the (num_heads, head_dim) of the attention.
"""

import math

import numpy as np


class Same:
    """One array, the same in file and model. The other layouts are subclasses."""

    # Which part of the file's array this is; save_weights joins the parts in this order.
    part = 0

    def file_shapes(self, shape, heads):
        """The shapes that the file's arrays must have for a model weight of `shape`."""
        return (shape,)

    def model_shape(self, shapes):
        """The shape of the model's weight from file arrays of `shapes`, whose axes of heads may be merged."""
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
    """The same numbers with axes of length 1 more or fewer in the file, such as (1, 1, 1, C) for (C,).

    The file is written with `before` more axes of length 1 in front, and without the first `without` ones.
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


class Heads(Same):
    """One axis of the model's weight, num_heads * head_dim long, that the file splits into (num_heads, head_dim)."""

    def __init__(self, axis):
        self.axis = axis

    def file_shapes(self, shape, heads):
        return ((*shape[: self.axis], *heads, *shape[self.axis + 1 :]),)

    def model_shape(self, shapes):
        (shape,), end = shapes, self.axis + 2
        return (*shape[: self.axis], math.prod(shape[self.axis : end]), *shape[end:])


class Flat(Same):
    """A bias with an axis of heads in the model and without one in the file."""

    def file_shapes(self, shape, heads):
        return ((math.prod(shape),),)


class Transposed(Same):
    """A dense kernel as PyTorch stores it, (outputs, inputs). The first `inputs` axes of the model's are its inputs."""

    def __init__(self, inputs=1):
        self.inputs = inputs

    def file_shapes(self, shape, heads):
        return ((math.prod(shape[self.inputs :]), math.prod(shape[: self.inputs])),)

    def model_shape(self, shapes):
        return shapes[0][::-1]

    def to_model(self, arrays, shape):
        return arrays[0].T.reshape(shape)

    def to_file(self, value, heads):
        ((outputs, inputs),) = self.file_shapes(value.shape, heads)
        return (value.reshape(inputs, outputs).T,)


class TorchConv(Same):
    """A convolution's kernel as PyTorch stores it, (outputs, inputs, height, width)."""

    def file_shapes(self, shape, heads):
        height, width, inputs, outputs = shape
        return ((outputs, inputs, height, width),)

    def model_shape(self, shapes):
        outputs, inputs, height, width = shapes[0]
        return height, width, inputs, outputs

    def to_model(self, arrays, shape):
        return arrays[0].transpose(2, 3, 1, 0)

    def to_file(self, value, heads):
        return (value.transpose(3, 2, 0, 1),)


class Fused(Same):
    """Query, key and value, each an array of layout `codec` in the file, side by side on the model's last axis."""

    def __init__(self, codec):
        self.codec = codec

    def file_shapes(self, shape, heads):
        return self.codec.file_shapes((*shape[:-1], shape[-1] // 3), heads) * 3

    def model_shape(self, shapes):
        parts = [self.codec.model_shape((shape,)) for shape in shapes]
        return (*parts[0][:-1], sum(part[-1] for part in parts))

    def to_model(self, arrays, shape):
        each = (*shape[:-1], shape[-1] // 3)
        return np.concatenate([self.codec.to_model((array,), each) for array in arrays], axis=-1)

    def to_file(self, value, heads):
        return tuple(self.codec.to_file(part, heads)[0] for part in np.split(value, 3, axis=-1))


class Part(Same):
    """One of `count` weights of layout `codec` that the file stacks on the first axis of one array."""

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
