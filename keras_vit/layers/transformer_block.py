import keras
from keras import ops

from keras_vit import activations, arguments
from keras_vit.layers.attention import MultiHeadSelfAttention
from keras_vit.layers.base import CompositeLayer
from keras_vit.layers.drop_path import DropPath
from keras_vit.layers.layer_norm import LayerNorm
from keras_vit.layers.layer_scale import LayerScale
from keras_vit.layers.mlp import MLP
from keras_vit.layers.token_merging import match, merge, num_merged

ON_TORCH = keras.backend.backend() == "torch"


def recompute(function, tensor, weights, dropouts):
    """Returns `function(tensor)` without storing intermediate results. The gradient calls `function` again.

    `weights` are all weights that `function` reads. `function` must call each layer in `dropouts` once,
    except those that are None.
    """
    # `keras.remat` calls the function again. Dropout layers would then draw new masks and, on JAX, leak the state of
    # their seed generators. So give both calls the same states. On PyTorch, layers without a seed use PyTorch's own
    # generator, which `keras.remat` restores.
    seeded = [layer for layer in dropouts if layer is not None and not (ON_TORCH and layer.seed is None)]
    states = [(layer.seed_generator.state, layer.seed_generator.next()) for layer in seeded]

    def run(tensor, *values):
        with keras.StatelessScope([*zip(weights, values, strict=True), *states]):
            return function(tensor)

    # Pass the weights as arguments. TensorFlow computes no gradients for captured tensors and, in eager mode, doubles
    # the gradients of captured variables.
    return keras.remat(run)(tensor, *(weight.value for weight in weights))


@keras.saving.register_keras_serializable(package="keras_vit")
class TransformerBlock(CompositeLayer):
    """A pre-norm transformer encoder block: `x += attention(norm(x)); x += mlp(norm(x))`.

    Args:
        num_heads: Int, the number of attention heads.
        mlp_dim: Int, the hidden width of the MLP.
        dropout_rate: Float in [0, 1), the dropout after the attention and in the MLP.
        attention_dropout_rate: Float in [0, 1), the dropout on the attention weights.
        drop_path_rate: Float in [0, 1), the probability that a branch of an image is dropped (stochastic depth).
        layer_scale_init: Float, the initial value of LayerScale on each branch; None for no LayerScale.
        qk_norm, max_relative_distance, rotary_layout: As in `MultiHeadSelfAttention`.
        qkv_bias, key_bias, attention_norm: As `use_bias`, `key_bias` and `output_norm` of `MultiHeadSelfAttention`.
        activation: As in `MLP`.
        gated_mlp, mlp_norm: As `gated` and `inner_norm` of `MLP`.
        layer_norm_epsilon: Float, the epsilon of the norms.
        token_merging: Int, the number of patches to merge between attention and MLP, at most half of the patches.
        num_prefix_tokens: Int, the number of tokens before the patches. These tokens are never merged.
        num_outputs: Int or None, the default of the call argument `num_outputs`.
        remat: Bool. True stores only the block's input in training, and computes the rest again for the gradient.
        seed: Int or None, the random seed of all dropout and stochastic depth.

    Call arguments:
        tokens: (batch, num_tokens, hidden_dim).
        sizes: (batch, num_tokens) or None, the number of patches merged into each token by earlier blocks.
        rotary: The output of `RotaryEmbedding`; required with `rotary_layout`.
        return_attention_scores: Bool, whether to return the attention weights too.
        num_outputs: Int, the number of leading tokens to compute and return. These tokens attend to all tokens. None:
            the constructor's `num_outputs`, or all tokens if it is None too. If `num_outputs` is set in a block with
            `token_merging`, it must be at most `num_prefix_tokens`, and the block merges no tokens.

    Returns:
        The output tokens, (batch, num_tokens, hidden_dim), with fewer tokens if tokens are merged or `num_outputs` is
        set. If there are more outputs, a tuple that begins with the output tokens. If tokens are merged, the second
        output is the size of each output token, (batch, number of output tokens), int32. With
        `return_attention_scores=True`, the last output is the attention weights between all input tokens, (batch,
        num_heads, num_tokens, num_tokens).

    Example:
    >>> keras_vit.layers.TransformerBlock(num_heads=12, mlp_dim=3072)(np.zeros((1, 197, 768))).shape
    (1, 197, 768)

    Reference: [arXiv 2010.11929](https://arxiv.org/abs/2010.11929), equations 2 and 3; token merging: [arXiv
    2210.09461](https://arxiv.org/abs/2210.09461); remat: [arXiv 1604.06174](https://arxiv.org/abs/1604.06174).
    """

    def __init__(
        self,
        num_heads,
        mlp_dim,
        dropout_rate=0.0,
        attention_dropout_rate=0.0,
        drop_path_rate=0.0,
        layer_scale_init=None,
        qk_norm=False,
        activation="gelu_tanh",
        layer_norm_epsilon=1e-6,
        max_relative_distance=None,
        rotary_layout=None,
        qkv_bias=True,
        key_bias=True,
        attention_norm=False,
        gated_mlp=False,
        mlp_norm=False,
        token_merging=0,
        num_prefix_tokens=0,
        num_outputs=None,
        remat=False,
        seed=None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.num_heads = arguments.positive_int("num_heads", num_heads)
        self.mlp_dim = arguments.positive_int("mlp_dim", mlp_dim)
        self.dropout_rate = arguments.rate("dropout_rate", dropout_rate)
        self.attention_dropout_rate = arguments.rate("attention_dropout_rate", attention_dropout_rate)
        self.drop_path_rate = arguments.rate("drop_path_rate", drop_path_rate)
        self.layer_scale_init = arguments.optional(arguments.number, "layer_scale_init", layer_scale_init)
        self.activation = activations.get(activation)
        self.layer_norm_epsilon = arguments.epsilon("layer_norm_epsilon", layer_norm_epsilon)
        self.max_relative_distance = max_relative_distance
        self.rotary_layout = rotary_layout
        self.set_booleans(qk_norm=qk_norm, qkv_bias=qkv_bias, key_bias=key_bias, attention_norm=attention_norm)
        self.set_booleans(gated_mlp=gated_mlp, mlp_norm=mlp_norm, remat=remat)
        self.token_merging = arguments.non_negative_int("token_merging", token_merging)
        self.num_prefix_tokens = arguments.non_negative_int("num_prefix_tokens", num_prefix_tokens)
        self.num_outputs = self._checked(num_outputs)
        self.seed = seed
        attention_seed, dropout_seed, path_1_seed, path_2_seed, mlp_seed = arguments.seeds(seed, 5)
        self.norm_1 = self._norm("norm_1")
        options = {"qk_norm": qk_norm, "layer_norm_epsilon": layer_norm_epsilon, "rotary_layout": rotary_layout}
        options |= {"max_relative_distance": max_relative_distance, "output_norm": attention_norm}
        options |= {"dropout_rate": attention_dropout_rate, "use_bias": qkv_bias, "key_bias": key_bias}
        self.attention = MultiHeadSelfAttention(
            num_heads, seed=attention_seed, name="attention", **options, **self.inherited
        )
        self.dropout = self.dropout_layer(keras.layers.Dropout, dropout_rate, dropout_seed, "dropout")
        self.layer_scale_1 = self._layer_scale("layer_scale_1")
        self.drop_path_1 = self.dropout_layer(DropPath, drop_path_rate, path_1_seed, "drop_path_1")
        self.norm_2 = self._norm("norm_2")
        options = {"gated": gated_mlp, "inner_norm": mlp_norm, "layer_norm_epsilon": layer_norm_epsilon}
        self.mlp = MLP(mlp_dim, activation, dropout_rate, mlp_seed, name="mlp", **options, **self.inherited)
        self.layer_scale_2 = self._layer_scale("layer_scale_2")
        self.drop_path_2 = self.dropout_layer(DropPath, drop_path_rate, path_2_seed, "drop_path_2")
        self.input_spec = keras.layers.InputSpec(ndim=3)

    def _checked(self, num_outputs):
        """Returns `num_outputs`; raises if the first `num_outputs` tokens include patches that are merged."""
        num_outputs = arguments.optional(arguments.positive_int, "num_outputs", num_outputs)
        if num_outputs and self.token_merging and num_outputs > self.num_prefix_tokens:
            expected = f"at most {self.num_prefix_tokens}, the number of prefix tokens, because the block merges tokens"
            raise ValueError(f"Expected `num_outputs` to be {expected}. Received: num_outputs={num_outputs}")
        return num_outputs

    def _norm(self, name):
        return LayerNorm(epsilon=self.layer_norm_epsilon, name=name, **self.inherited)

    def _layer_scale(self, name):
        return None if self.layer_scale_init is None else LayerScale(self.layer_scale_init, name=name, **self.inherited)

    def build(self, tokens_shape, sizes_shape=None, rotary_shape=None):
        layers = [self.norm_1, self.attention, self.layer_scale_1, self.norm_2, self.mlp, self.layer_scale_2]
        for layer in (*layers, self.dropout, self.drop_path_1, self.drop_path_2):
            if layer is not None:
                layer.build(tokens_shape)
        self.restore_changes()

    def dense_layers(self):
        return *self.attention.dense_layers(), *self.mlp.dense_layers()

    def call(self, tokens, sizes=None, training=None, return_attention_scores=False, rotary=None, num_outputs=None):
        num_outputs = self._checked(num_outputs) or self.num_outputs
        merges = self.token_merging > 0 and not num_outputs

        def run(tokens):
            return self._run(tokens, sizes, rotary, training, return_attention_scores, num_outputs, merges)

        if self.remat and training:
            dropouts = [self.attention.dropout, self.dropout, self.drop_path_1, self.drop_path_2]
            outputs = recompute(run, tokens, self.weights, [*dropouts, self.mlp.dropout_1, self.mlp.dropout_2])
        else:
            outputs = run(tokens)
        if merges:
            # Return the sizes as int32, because a compute dtype of half precision would round them.
            return outputs[0], ops.cast(ops.stop_gradient(outputs[1]), "int32"), *outputs[2:]
        return outputs

    def _run(self, tokens, sizes, rotary, training, return_attention_scores, num_outputs, merges):
        options = {"return_attention_scores": return_attention_scores, "return_keys": merges, "training": training}
        options["num_queries"] = None if return_attention_scores else num_outputs
        x = self.run(self.attention, self.run(self.norm_1, tokens), sizes=sizes, rotary=rotary, **options)
        x, *more = x if isinstance(x, tuple) else (x,)
        if num_outputs:
            x, tokens = x[:, :num_outputs], tokens[:, :num_outputs]
        tokens = self.add_attention(tokens, x, training)
        if merges:
            length, keys = ops.shape(tokens)[1], more.pop()
            count = num_merged(length, self.token_merging, self.num_prefix_tokens)
            if isinstance(count, int) and not count:
                sizes = ops.ones(ops.shape(tokens)[:2]) if sizes is None else ops.cast(sizes, "float32")
            else:
                places = match(keys, count, self.num_prefix_tokens)
                tokens, sizes = merge(tokens, sizes, places, length - count)
            more = [sizes, *more]
        tokens = self.add_mlp(tokens, training)
        return (tokens, *more) if more else tokens

    def add_attention(self, tokens, attended, training=None):
        """Adds the output of the attention to the tokens."""
        if self.dropout is not None:
            attended = self.run(self.dropout, attended, training=training)
        return tokens + self._branch(attended, self.layer_scale_1, self.drop_path_1, training)

    def add_mlp(self, tokens, training=None):
        """Adds the output of the MLP to the tokens; returns the block's output."""
        x = self.run(self.mlp, self.run(self.norm_2, tokens), training=training)
        return tokens + self._branch(x, self.layer_scale_2, self.drop_path_2, training)

    def _branch(self, x, layer_scale, drop_path, training):
        if layer_scale is not None:
            x = self.run(layer_scale, x)
        return x if drop_path is None else self.run(drop_path, x, training=training)

    def compute_output_shape(self, tokens_shape, sizes_shape=None, rotary_shape=None, num_outputs=None):
        batch, length, hidden_dim = tokens_shape
        if num_outputs := num_outputs or self.num_outputs:
            return batch, None if length is None else min(num_outputs, length), hidden_dim
        if not self.token_merging:
            return tokens_shape
        if length is not None:
            length -= num_merged(length, self.token_merging, self.num_prefix_tokens)
        return (batch, length, hidden_dim), (batch, length)

    def compute_output_spec(
        self, tokens, sizes=None, training=None, return_attention_scores=False, rotary=None, num_outputs=None
    ):
        # Compute the shapes here, because JAX cannot trace token merging for an unknown number of tokens.
        shapes = self.compute_output_shape(tokens.shape, num_outputs=num_outputs)
        shape, *sizes_shape = shapes if isinstance(shapes[0], tuple) else (shapes,)
        outputs = [keras.KerasTensor(shape, dtype=self.compute_dtype)]
        outputs += [keras.KerasTensor(shape, dtype="int32") for shape in sizes_shape]
        if return_attention_scores:
            outputs.append(self.attention.compute_output_spec(tokens, rotary=rotary, return_attention_scores=True)[1])
        return tuple(outputs) if len(outputs) > 1 else outputs[0]
