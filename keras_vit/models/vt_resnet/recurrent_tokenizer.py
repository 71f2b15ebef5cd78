import keras

from keras_vit.models.vt_resnet.tokenizer import Tokenizer, flat, products, projection


@keras.saving.register_keras_serializable(package="keras_vit")
class RecurrentTokenizer(Tokenizer):
    """Pools the pixels X of a feature map into visual tokens, by filters made of the previous module's tokens.

    `W_R = T_in W_TR`, then `T = softmax_HW(X W_R^T)^T X`.

    Args:
        token_dim: Int, the width of an output token. None: that of the feature map. Another width adds a projection,
            `T W_V`.

    Call arguments:
        feature_map: (batch, height, width, channels), of any height and width.
        tokens: (batch, num_tokens, any width), those of the previous module.
        return_attention_scores: As in `FilterTokenizer`, with the same outputs.

    Raises:
        ValueError: If `token_dim` is not a positive integer.

    Example:

    >>> RecurrentTokenizer()(np.zeros((1, 14, 14, 256)), np.zeros((1, 16, 256))).shape
    (1, 16, 256)

    Reference: [arXiv 2006.03677](https://arxiv.org/abs/2006.03677), section 3.1.2; `W_V` as in `FilterTokenizer`.
    Initialized as PyTorch's linear layers; `W_TR` is divided by the root of the channels, so that the first softmax is
    not saturated.
    """

    def build(self, feature_map_shape, tokens_shape):
        channels = feature_map_shape[-1]
        self.to_filters = projection("to_filters", tokens_shape[-1], channels, channels**-0.5, **self.inherited)
        self.build_value(channels)
        self.restore_changes()

    def dense_layers(self):
        return self.to_filters, *super().dense_layers()

    def call(self, feature_map, tokens, return_attention_scores=False):
        scores = products(self.to_filters(tokens), flat(feature_map))
        return self.pool(feature_map, scores, return_attention_scores)

    def compute_output_shape(self, feature_map_shape, tokens_shape):
        return feature_map_shape[0], tokens_shape[1], self.token_dim or feature_map_shape[-1]
