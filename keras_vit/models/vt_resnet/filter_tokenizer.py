import keras
from keras import ops

from keras_vit import arguments
from keras_vit.models.vt_resnet.tokenizer import Tokenizer, flat, projection


@keras.saving.register_keras_serializable(package="keras_vit")
class FilterTokenizer(Tokenizer):
    """Pools the pixels X of a feature map into visual tokens by learned filters: `T = softmax_HW(X W_A)^T X`.

    Args:
        num_tokens: Int, the number of tokens.
        token_dim: Int, the width of a token. None: that of the feature map. Another width adds a projection, `T W_V`.

    Call arguments:
        feature_map: (batch, height, width, channels), of any height and width.
        return_attention_scores: Bool, whether to return the weights too, which sum to 1 over the pixels.

    Returns:
        (batch, num_tokens, token_dim); then the weights, (batch, num_tokens, height, width), if requested.

    Raises:
        ValueError: If an argument is not a positive integer.

    Example:

    >>> FilterTokenizer(16)(np.zeros((1, 14, 14, 256))).shape
    (1, 16, 256)

    Reference: [arXiv 2006.03677](https://arxiv.org/abs/2006.03677), section 3.1.1. Its equation has no `W_V`, which its
    appendix needs, where tokens are wider than the feature map. The paper says nothing of
    initial weights: here they are those of PyTorch's linear layers.
    """

    def __init__(self, num_tokens, token_dim=None, **kwargs):
        super().__init__(token_dim, **kwargs)
        self.num_tokens = arguments.positive_int("num_tokens", num_tokens)
        self.input_spec = keras.layers.InputSpec(ndim=4)

    def build(self, feature_map_shape):
        channels = feature_map_shape[-1]
        self.filters = projection("filters", channels, self.num_tokens, **self.inherited)
        self.build_value(channels)
        self.restore_changes()

    def dense_layers(self):
        return self.filters, *super().dense_layers()

    def call(self, feature_map, return_attention_scores=False):
        scores = ops.transpose(self.filters(flat(feature_map)), (0, 2, 1))
        return self.pool(feature_map, scores, return_attention_scores)

    def compute_output_shape(self, feature_map_shape):
        return feature_map_shape[0], self.num_tokens, self.token_dim or feature_map_shape[-1]
