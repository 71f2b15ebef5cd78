import keras
from keras import ops

from keras_vit import arguments
from keras_vit.layers.base import CompositeLayer
from keras_vit.layers.transformer_block import TransformerBlock


@keras.saving.register_keras_serializable(package="keras_vit")
class AxialBlock(CompositeLayer):
    """Two transformer blocks on a grid of tokens: the first attends along each row, the second along each column.

    Args:
        num_heads: Int, the number of attention heads of each block.
        mlp_dim: Int, the hidden width of the MLP of each block.
        dropout_rate: Float in [0, 1), the dropout after the attention and in the MLP.
        seed: Int or None, the random seed of the dropout.

    Input and output shape: (batch, rows, columns, hidden_dim), of any number of rows and columns.

    Raises:
        ValueError: If an argument is out of range.

    Example:

    >>> keras_vit.layers.AxialBlock(num_heads=12, mlp_dim=3072)(np.zeros((1, 14, 14, 768))).shape
    (1, 14, 14, 768)

    Reference: [arXiv 2010.11929](https://arxiv.org/abs/2010.11929), appendix D.6, after [arXiv
    1912.12180](https://arxiv.org/abs/1912.12180).
    """

    def __init__(self, num_heads, mlp_dim, dropout_rate=0.0, seed=None, **kwargs):
        super().__init__(**kwargs)
        self.num_heads = arguments.positive_int("num_heads", num_heads)
        self.mlp_dim = arguments.positive_int("mlp_dim", mlp_dim)
        self.dropout_rate = arguments.rate("dropout_rate", dropout_rate)
        self.seed = seed
        self.row_block, self.column_block = (
            TransformerBlock(num_heads, mlp_dim, dropout_rate, seed=s, name=name, **self.inherited)
            for name, s in zip(("row_block", "column_block"), arguments.seeds(seed, 2), strict=True)
        )
        self.input_spec = keras.layers.InputSpec(ndim=4)

    def build(self, tokens_shape):
        for block in (self.row_block, self.column_block):
            block.build((None, None, tokens_shape[-1]))
        self.restore_changes()

    def dense_layers(self):
        return *self.row_block.dense_layers(), *self.column_block.dense_layers()

    def call(self, tokens, training=None):
        for block in (self.row_block, self.column_block):
            batch, rows, columns, hidden_dim = ops.shape(tokens)
            lines = block(ops.reshape(tokens, (-1, columns, hidden_dim)), training=training)
            # The second swap restores the grid.
            tokens = ops.swapaxes(ops.reshape(lines, (batch, rows, columns, hidden_dim)), 1, 2)
        return tokens
