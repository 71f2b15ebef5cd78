import math

import keras
from keras import ops

from keras_vit import arguments
from keras_vit.images.interpolation import TABLE_METHODS, resize_matrix
from keras_vit.layers import initializers
from keras_vit.layers.base import CompositeLayer
from keras_vit.layers.dense import Dense
from keras_vit.layers.kernels import attend, attend_unfused


@keras.saving.register_keras_serializable(package="keras_vit")
class RelativeAttention(CompositeLayer):
    """Self-attention over a feature map, `softmax(Q K^T / sqrt(head_dim) + bias) V`, with a bias per 2-D offset.

    Each head has a bias for each offset. An offset is the number of rows and columns from a key to a query. A learned
    table contains the biases for feature maps of `grid_size`. The table is resized for other feature maps. If
    `position_mlp_dim` is set, an MLP of this hidden width computes the biases instead. The MLP receives each offset x
    as `sign(x) * log(1 + |x|)`. Input shape: (batch, rows, columns, channels).

    Reference: [arXiv 2106.04803](https://arxiv.org/abs/2106.04803), sections 2.1 and A.1. The MLP is timm's
    version of [arXiv 2111.09883](https://arxiv.org/abs/2111.09883), section 3.3. Initialized as in timm: The query,
    key, value and output kernels are Xavier uniform, and the table is truncated normal with standard deviation 0.02.
    """

    def __init__(
        self, num_heads, head_dim, units, grid_size, position_mlp_dim=None, interpolation="bilinear", **kwargs
    ):
        super().__init__(**kwargs)
        self.num_heads = arguments.positive_int("num_heads", num_heads)
        self.head_dim = arguments.positive_int("head_dim", head_dim)
        self.units = arguments.positive_int("units", units)
        self.grid_size = arguments.pair("grid_size", grid_size)
        self.position_mlp_dim = arguments.optional(arguments.positive_int, "position_mlp_dim", position_mlp_dim)
        self.interpolation = arguments.choice("interpolation", interpolation, TABLE_METHODS)
        self.input_spec = keras.layers.InputSpec(ndim=4)

    def build(self, images_shape):
        channels, width = images_shape[-1], self.num_heads * self.head_dim
        qkv_init = initializers.xavier_uniform(channels, width)
        self.qkv = Dense(3 * width, kernel_initializer=qkv_init, name="qkv", **self.inherited)
        self.qkv.build(images_shape)
        self.out = Dense(self.units, kernel_initializer=initializers.GlorotUniform(), name="out", **self.inherited)
        self.out.build((*images_shape[:-1], width))
        if self.position_mlp_dim is None:
            rows, columns = (2 * side - 1 for side in self.grid_size)
            self.position_table = self.add_weight(
                name="position_table",
                shape=(rows * columns, self.num_heads),
                initializer=initializers.TruncatedNormal(stddev=0.02),
            )
        else:
            # Do not use dense layers, because LoRA and quantization have no benefit for so few weights.
            shapes = {"kernel_1": (2, self.position_mlp_dim), "bias_1": (self.position_mlp_dim,)}
            shapes |= {"kernel_2": (self.position_mlp_dim, self.num_heads), "bias_2": (self.num_heads,)}
            self.position_mlp = [
                self.add_weight(
                    name=f"position_{name}",
                    shape=shape,
                    initializer=initializers.GlorotUniform() if len(shape) > 1 else "zeros",
                )
                for name, shape in shapes.items()
            ]
        self.restore_changes()

    def dense_layers(self):
        return self.qkv, self.out

    def call(self, images, return_attention_scores=False):
        rows, columns, channels = ops.shape(images)[1:]
        tokens = ops.reshape(images, (-1, rows * columns, channels))
        # The channels of a head's query, key and value follow each other, as in timm.
        qkv = ops.reshape(self.qkv(tokens), (-1, rows * columns, self.num_heads, 3, self.head_dim))
        query, key, value = ops.unstack(qkv, 3, axis=3)
        bias = ops.cast(self.position_bias((rows, columns)), query.dtype)
        if return_attention_scores:
            x, weights = attend_unfused(query, key, value, bias)
        else:
            x, weights = attend(query, key, value, bias), None
        x = ops.reshape(x, (-1, rows, columns, self.num_heads * self.head_dim))
        x = self.out(x)
        return (x, weights) if return_attention_scores else x

    def cost_steps(self, images_shape, **call_arguments):
        tokens, width = math.prod(images_shape[:-1]), self.num_heads * self.head_dim
        product = tokens * tokens * width
        return [
            ("qkv", 3 * tokens * images_shape[-1] * width, 3 * tokens * width),
            ("query x key", product, self.num_heads * tokens * tokens),
            ("weights x value", product, tokens * width),
            ("out", tokens * width * self.units, tokens * self.units),
        ]

    def position_bias(self, grid_size):
        """Returns the biases, (1, num_heads, queries, keys), for a feature map of (rows, columns)."""
        rows, columns = grid_size
        table = self._table(grid_size)
        # Look up the row offsets first and the column offsets second, so that each `ops.take` reads from a matrix. On
        # PyTorch, such an `ops.take` is an embedding, which ONNX supports.
        bias = ops.take(ops.reshape(table, (2 * rows - 1, -1)), _offsets(rows), axis=0)
        bias = ops.reshape(bias, (rows * rows, 2 * columns - 1, self.num_heads))
        bias = ops.reshape(ops.transpose(bias, (1, 0, 2)), (2 * columns - 1, -1))
        bias = ops.reshape(ops.take(bias, _offsets(columns), axis=0), (columns, columns, rows, rows, self.num_heads))
        bias = ops.transpose(bias, (4, 2, 0, 3, 1))
        return ops.reshape(bias, (1, self.num_heads, rows * columns, rows * columns))

    def _table(self, grid_size):
        """Returns the biases of all offsets, (2 * rows - 1, 2 * columns - 1, num_heads)."""
        old, new = ([2 * side - 1 for side in sides] for sides in (self.grid_size, grid_size))
        if self.position_mlp_dim is not None:
            kernel_1, bias_1, kernel_2, bias_2 = map(ops.convert_to_tensor, self.position_mlp)
            hidden = ops.relu(ops.matmul(ops.cast(_log_offsets(*new), kernel_1.dtype), kernel_1) + bias_1)
            return ops.matmul(hidden, kernel_2) + bias_2
        table = ops.reshape(ops.convert_to_tensor(self.position_table), (*old, self.num_heads))
        # A side may be a tensor or a symbol of torch.export. Comparing a symbol with a number would make torch.export
        # fix the image size.
        if all(type(side) is int for side in grid_size) and tuple(grid_size) == self.grid_size:
            return table
        rows, columns = (
            ops.cast(resize_matrix(a, b, self.interpolation, ops), table.dtype) for a, b in zip(old, new, strict=True)
        )
        table = ops.matmul(rows, ops.reshape(table, (old[0], -1)))
        return ops.matmul(columns, ops.reshape(table, (-1, old[1], self.num_heads)))

    def compute_output_shape(self, images_shape):
        return *images_shape[:-1], self.units

    def compute_output_spec(self, images, return_attention_scores=False):
        batch, rows, columns, _ = images.shape
        places = None if None in (rows, columns) else rows * columns
        scores = [(batch, self.num_heads, places, places)] if return_attention_scores else []
        return self.spec(self.compute_output_shape(images.shape), *scores)


def _offsets(side):
    """Returns the table indices of the offsets from position j to position i, as a matrix with row i and column j."""
    places = ops.arange(side, dtype="int32")
    return places[:, None] - places[None, :] + (side - 1)


def _log_offsets(rows, columns):
    """Returns `sign(x) * log(1 + |x|)` of `rows` row offsets and `columns` column offsets, (rows, columns, 2)."""
    one_axis = []
    for count in (rows, columns):
        x = ops.arange(count, dtype="float32")
        x = x - (x[-1] / 2)
        one_axis.append(ops.sign(x) * ops.log1p(ops.abs(x)))
    shape = (rows, columns)
    down = ops.broadcast_to(one_axis[0][:, None], shape)
    across = ops.broadcast_to(one_axis[1][None, :], shape)
    return ops.stack([down, across], axis=-1)
