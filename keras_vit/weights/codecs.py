"""Codecs convert weights between the layouts of a file and of the model. `heads` is always (num_heads, head_dim)."""

import math

import numpy as np


class Identity:
    """The file has one array, equal to the model's weight. This is the base class of all codecs."""

    # The position of the weight in an array that contains several weights. `save_weights` joins them in this order.
    part = 0
    # True for a fused bias of queries, keys and values in which the bias of the keys is always 0.
    without_keys = False

    def file_shapes(self, shape, heads):
        """Returns the required shapes of the file's arrays for a model weight of `shape`."""
        return tuple(array.shape for array in self.to_file(np.empty(shape), heads))

    def model_shape(self, shapes):
        """Returns the shape of the model's weight, or this shape with num_heads and head_dim joined into one axis.

        `shapes` are the shapes of the file's arrays.
        """
        return shapes[0]

    def fits(self, shapes, shape, heads):
        """Returns True if file arrays of `shapes` fit a model weight of `shape`."""
        return shapes == self.file_shapes(shape, heads)

    def to_model(self, arrays, shape):
        """Converts the file's arrays to the model's weight of `shape`."""
        return arrays[0].reshape(shape)

    def to_file(self, value, heads):
        """Converts the model's weight to the file's arrays."""
        return (value,)


class Squeeze(Identity):
    """The file's array begins with `before` extra axes of length 1, and lacks the weight's first `without` axes."""

    def __init__(self, before=0, without=0):
        self.before, self.without = before, without

    def to_file(self, value, heads):
        return (value.reshape((1,) * self.before + value.shape[self.without :]),)

    def model_shape(self, shapes):
        lead = next((i for i, size in enumerate(shapes[0]) if size != 1), len(shapes[0]))
        return (1,) * self.without + shapes[0][lead:]

    def fits(self, shapes, shape, heads):
        return self.model_shape(shapes) == shape


class Heads(Identity):
    """The file splits an axis of the model's weight, num_heads * head_dim, into the axes (num_heads, head_dim)."""

    def __init__(self, axis):
        self.axis = axis

    def to_file(self, value, heads):
        return (value.reshape(*value.shape[: self.axis], *heads, *value.shape[self.axis + 1 :]),)

    def model_shape(self, shapes):
        (shape,), end = shapes, self.axis + 2
        return (*shape[: self.axis], math.prod(shape[self.axis : end]), *shape[end:])


class Flat(Identity):
    """The model's bias has the axes (num_heads, head_dim). The file's bias has one axis, num_heads * head_dim."""

    def to_file(self, value, heads):
        return (value.reshape(-1),)


class Transposed(Identity):
    """The file has a dense kernel in PyTorch's layout: the outputs, the inputs, then `ones` axes of length 1.

    In the model's weight, the first `inputs` axes are the inputs of the layer. The other axes are its outputs.
    """

    def __init__(self, inputs=1, ones=0):
        self.inputs, self.ones = inputs, ones

    def model_shape(self, shapes):
        return shapes[0][: len(shapes[0]) - self.ones][::-1]

    def to_model(self, arrays, shape):
        return arrays[0].T.reshape(shape)

    def to_file(self, value, heads):
        kernel = value.reshape(math.prod(value.shape[: self.inputs]), -1).T
        return (kernel.reshape(*kernel.shape, *[1] * self.ones),)


class Permuted(Identity):
    """A codec that transposes: weight = array.transpose(axes), where `array` is from the file."""

    def __init__(self, *axes):
        self.axes = axes

    def model_shape(self, shapes):
        return np.broadcast_to(0, shapes[0]).transpose(self.axes).shape

    def to_model(self, arrays, shape):
        return arrays[0].transpose(self.axes)

    def to_file(self, value, heads):
        return (value.transpose(np.argsort(self.axes)),)


# PyTorch's convolution kernels have the axes (outputs, inputs, height, width). Its depthwise kernels have the axes
# (channels, 1, height, width).
TORCH_CONV, TORCH_DEPTHWISE = Permuted(2, 3, 1, 0), Permuted(2, 3, 0, 1)


class Pointwise(Identity):
    """The file stores a dense kernel as the kernel of a 1 x 1 convolution, (1, 1, inputs, outputs)."""

    def model_shape(self, shapes):
        return shapes[0][2:]

    def to_file(self, value, heads):
        return (value.reshape(1, 1, *value.shape),)


class Fused(Identity):
    """The model's weight joins `count` arrays of the file, such as query, key and value, on the last axis."""

    def __init__(self, codec, count=3):
        self.codec, self.count = codec, count

    def model_shape(self, shapes):
        parts = [self.codec.model_shape((shape,)) for shape in shapes]
        return (*parts[0][:-1], sum(part[-1] for part in parts))

    def to_model(self, arrays, shape):
        each = (*shape[:-1], shape[-1] // self.count)
        return np.concatenate([self.codec.to_model((array,), each) for array in arrays], axis=-1)

    def to_file(self, value, heads):
        return tuple(self.codec.to_file(part, heads)[0] for part in np.split(value, self.count, axis=-1))


class QueryValue(Identity):
    """The file has two arrays, the biases of queries and values. The bias of the keys is 0 in the model."""

    without_keys = True

    def model_shape(self, shapes):
        return (3 * shapes[0][0],)

    def to_model(self, arrays, shape):
        query, value = arrays
        return np.concatenate([query, np.zeros_like(query), value])

    def to_file(self, value, heads):
        return tuple(np.split(value, 3)[::2])


class Masked(Identity):
    """The file has two arrays: the bias of queries, keys and values, and a mask, which is 0 for the keys.

    DINOv3 multiplies the bias by the mask.
    """

    without_keys = True

    def to_model(self, arrays, shape):
        bias, mask = arrays
        if not np.array_equal(mask, np.repeat([1, 0, 1], len(mask) // 3)):
            raise ValueError("Expected a bias_mask of 0 for the keys, and 1 for the rest. Received other numbers.")
        return bias * mask

    def to_file(self, value, heads):
        return value, np.repeat(np.array([1, 0, 1], "float32"), len(value) // 3)


class Part(Identity):
    """The file joins `count` weights on the first axis of one array. `part` is the position of the model's weight."""

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
