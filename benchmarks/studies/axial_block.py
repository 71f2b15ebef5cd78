"""The axial block of the ViT paper's ablations, which no published model has."""

import keras
from keras import ops

import keras_vit


class AxialBlock(keras.layers.Layer):
    """Two transformer blocks on a grid of tokens: the first attends along each row, the second along each column.

    Args:
        num_heads: Int, the number of attention heads of each block.
        mlp_dim: Int, the hidden width of the MLP of each block.

    Input and output shape: (batch, rows, columns, hidden_dim).

    Reference: [arXiv 2010.11929](https://arxiv.org/abs/2010.11929), appendix D.6, after [arXiv
    1912.12180](https://arxiv.org/abs/1912.12180).
    """

    def __init__(self, num_heads, mlp_dim, **kwargs):
        super().__init__(**kwargs)
        self.row_block = keras_vit.layers.TransformerBlock(num_heads, mlp_dim, name="row_block")
        self.column_block = keras_vit.layers.TransformerBlock(num_heads, mlp_dim, name="column_block")

    def build(self, tokens_shape):
        for block in (self.row_block, self.column_block):
            block.build((None, None, tokens_shape[-1]))

    def call(self, tokens, training=None):
        for block in (self.row_block, self.column_block):
            batch, rows, columns, hidden_dim = ops.shape(tokens)
            lines = block(ops.reshape(tokens, (-1, columns, hidden_dim)), training=training)
            # The second swap restores the grid.
            tokens = ops.swapaxes(ops.reshape(lines, (batch, rows, columns, hidden_dim)), 1, 2)
        return tokens

    def compute_output_shape(self, tokens_shape):
        return tokens_shape

    def multiply_adds(self):
        """Returns the multiply-adds of one image: those of a line, times the number of rows and of columns."""
        _, rows, columns, hidden_dim = self.input.shape
        total = 0
        for block, lines, length in ((self.row_block, rows, columns), (self.column_block, columns, rows)):
            line = keras.Input((length, hidden_dim))
            total += lines * keras_vit.profile(keras.Model(line, block(line))).multiply_adds
        return total
