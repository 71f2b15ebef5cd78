"""What one call of a layer costs by its shapes: multiply-adds, and numbers that it leaves in memory.

A new kind of layer is a function here, in `RULES`, or a name in `WITHOUT_PRODUCTS`.
"""

import math
from typing import NamedTuple

import keras

from keras_vit import layers


class Part(NamedTuple):
    """One step of a layer.

    Args:
        name: String, of the sublayer or of what is computed; "" where the layer is one step.
        multiply_adds: Int, or None where the products are not known.
        activations: Int, the numbers that the step leaves.
    """

    name: str
    multiply_adds: int | None
    activations: int


# Keras' layers whose work is a handful of operations for each number that goes in or comes out, if any: by convention
# only the products of matrices and convolutions are counted.
WITHOUT_PRODUCTS = """
Activation ActivityRegularization Add AlphaDropout Average AveragePooling1D AveragePooling2D AveragePooling3D
BatchNormalization CenterCrop Concatenate Cropping1D Cropping2D Cropping3D Dropout ELU Embedding Flatten GaussianDropout
GaussianNoise GlobalAveragePooling1D GlobalAveragePooling2D GlobalAveragePooling3D GlobalMaxPooling1D
GlobalMaxPooling2D GlobalMaxPooling3D GroupNormalization Identity LayerNormalization LeakyReLU Masking MaxPooling1D
MaxPooling2D MaxPooling3D Maximum Minimum Multiply Normalization PReLU Permute RMSNormalization RandomBrightness
RandomContrast RandomCrop RandomFlip RandomRotation RandomTranslation RandomZoom ReLU RepeatVector Rescaling Reshape
Resizing Softmax SpatialDropout1D SpatialDropout2D SpatialDropout3D Subtract UnitNormalization UpSampling1D
UpSampling2D UpSampling3D ZeroPadding1D ZeroPadding2D ZeroPadding3D
"""
# And, on the numbers that go in, nothing at all at inference.
VIEWS = """
ActivityRegularization AlphaDropout Dropout Flatten GaussianDropout GaussianNoise Identity RandomBrightness
RandomContrast RandomFlip RandomRotation RandomTranslation RandomZoom Reshape SpatialDropout1D SpatialDropout2D
SpatialDropout3D
"""
# keras.ops in a functional graph that multiply matrices or convolve; `Matmul` has a rule.
PRODUCT_OPERATIONS = """
Cholesky CholeskyInverse Conv ConvTranspose Convolve Correlate Cross DepthwiseConv Det Dot DotProductAttention Eig Eigh
Einsum FFT FFT2 IFFT2 IRFFT ISTFT Inner Inv Kron Lstsq LuFactor Outer Qr RFFT STFT SVD SeparableConv Solve
SolveTriangular Tensordot Vdot
""".split()  # noqa: SIM905


def _classes(names):
    # An older Keras does not have all of them.
    return tuple(getattr(keras.layers, name) for name in names.split() if hasattr(keras.layers, name))


OURS_WITHOUT_PRODUCTS = (
    layers.DropPath,
    layers.GroupNormalization,
    layers.ImageNormalization,
    layers.LayerScale,
    layers.PatchDropout,
    layers.PatchMap,
    layers.Patches,
    # Resizing its table takes products, but once for all images of a batch.
    layers.PositionEmbedding,
    layers.PrefixTokens,
    layers.SymmetricMaxPooling2D,
    layers.TokenPooling,
)
FREE = (*_classes(WITHOUT_PRODUCTS), *OURS_WITHOUT_PRODUCTS)
FREE_VIEWS = (*_classes(VIEWS), layers.DropPath, layers.PatchDropout)


def parts_of(operation, inputs, output):
    """The steps of one call.

    Args:
        operation: A layer, or a `keras.Operation` as `keras.ops` put them into a graph.
        inputs: Mapping from the call's argument to its shape, the batch left out; 0, 1, ... for positional ones.
        output: The shape of what comes out, likewise; of the first output where there are several.

    Returns:
        A list of `Part`; one with `multiply_adds=None` where the operation is not known.
    """
    for kind, rule in RULES:
        if isinstance(operation, kind):
            return rule(operation, inputs, output)
    size = math.prod(output)
    passes_through = isinstance(operation, layers.ImageNormalization) and (not operation.apply or operation.folded)
    if isinstance(operation, FREE_VIEWS) or passes_through:
        return [Part("", 0, 0)]
    if isinstance(operation, FREE):
        return [Part("", 0, size)]
    if not isinstance(operation, keras.layers.Layer):
        name = type(operation).__name__
        if name == "Matmul" and 0 in inputs:
            return [Part("", size * inputs[0][-1], size)]
        if name != "Matmul" and name not in PRODUCT_OPERATIONS:
            return [Part("", 0, size)]
    return [Part("", None, size)]


def features_of(layer):
    """How many numbers a dense layer has weights for on the last axis of its input; None of other layers."""
    if not isinstance(layer, (keras.layers.Dense, keras.layers.EinsumDense)):
        return None
    if isinstance(layer, keras.layers.Dense):
        # A quantized kernel may be packed. A subclass may have no such record.
        return (getattr(layer.input_spec, "axes", None) or {}).get(-1)
    sources, _, _ = layer.equation.partition("->")
    own, of_kernel = sources.split(",")
    # None where the last axis is one that the kernel does not share.
    return dict(zip(of_kernel, layer.kernel.shape, strict=True)).get(own[-1])


def einsum_output(layer, shape):
    """The shape that an `EinsumDense` gives, the batch left out: its own is what its author wrote, None included."""
    sources, _, result = layer.equation.partition("->")
    own, of_kernel = sources.split(",")
    sizes = dict(zip(of_kernel, layer.kernel.shape, strict=True))
    # A batch axis, or an ellipsis, stands first or nowhere that matters: labels are matched from the right.
    own, result = own.replace("...", "."), result.replace("...", ".")
    named = own.rpartition(".")[2]
    known = (None, *shape)
    sizes.update(zip(reversed(named), reversed(known), strict=False))
    rest = known[: len(known) - len(named)] if "." in own else ()
    output = [side for label in result for side in (rest if label == "." else (sizes[label],))]
    return tuple(output[1:])


def _dense(layer, inputs, output):
    # Where LoRA is on, its two matrices are multiplied too, but once for all images of a batch.
    return [Part("", math.prod(output) * inputs[0][-1], math.prod(output))]


def _einsum_dense(layer, inputs, output):
    sources, _, _ = layer.equation.partition("->")
    own, of_kernel = sources.split(",")
    shared = math.prod(size for label, size in zip(of_kernel, layer.kernel.shape, strict=True) if label in own)
    return [Part("", math.prod(inputs[0]) * math.prod(layer.kernel.shape) // shared, math.prod(output))]


def _conv(layer, inputs, output):
    # The kernel holds, for each filter, what one number of the output takes: a group's channels alone.
    return [Part("", math.prod(output) * math.prod(layer.kernel.shape[:-1]), math.prod(output))]


def _depthwise_conv(layer, inputs, output):
    return [Part("", math.prod(output) * math.prod(layer.kernel.shape[:-2]), math.prod(output))]


def _separable_conv(layer, inputs, output):
    places = math.prod(output) // layer.filters
    depthwise = math.prod(layer.depthwise_kernel.shape)
    pointwise = math.prod(layer.pointwise_kernel.shape)
    return [Part("", places * (depthwise + pointwise), math.prod(output))]


def _conv_transpose(layer, inputs, output):
    # Its kernel is (..., filters, channels), and each number that goes in meets all but the channels.
    return [Part("", math.prod(inputs[0]) * math.prod(layer.kernel.shape[:-1]), math.prod(output))]


def _patch_embedding(layer, inputs, output):
    return [Part("", math.prod(output) * math.prod(layer.patch_size) * inputs[0][-1], math.prod(output))]


def _standardized_conv(layer, inputs, output):
    return [Part("", math.prod(output) * math.prod(layer.kernel_size) * inputs[0][-1], math.prod(output))]


def _mlp(layer, inputs, output):
    tokens, width = math.prod(inputs[0][:-1]), inputs[0][-1]
    hidden = tokens * layer.mlp_dim
    return [
        # What comes before and after the activation.
        Part("dense_1", hidden * width, 2 * hidden),
        Part("dense_2", hidden * width, tokens * width),
    ]


def _self_attention(layer, inputs, output):
    tokens, hidden_dim = inputs[0]
    queries = output[0]
    head_dim = layer.head_dim or hidden_dim // layer.num_heads
    width = layer.num_heads * head_dim
    parts = [Part("qkv", 3 * tokens * hidden_dim * width, 3 * tokens * width)]
    if layer.qk_norm:
        parts.append(Part("query_norm, key_norm", 0, 2 * tokens * width))
    if layer.max_relative_distance is not None:
        parts.append(Part("relative positions", queries * tokens * width, layer.num_heads * queries * tokens))
    return [
        *parts,
        Part("query x key", queries * tokens * width, layer.num_heads * queries * tokens),
        Part("weights x value", queries * tokens * width, queries * width),
        Part("out", queries * width * hidden_dim, queries * hidden_dim),
    ]


def _keras_attention(layer, inputs, output):
    names = ("query", "value", "key")
    shapes = {name: inputs.get(name, inputs.get(i)) for i, name in enumerate(names)}
    shapes["key"] = shapes["key"] or shapes["value"]
    config = layer.get_config()
    if any(len(shape) != 2 for shape in shapes.values()) or config["attention_axes"] not in (None, [1], (1,)):
        return [Part("", None, math.prod(output))]
    key_width = layer.num_heads * layer.key_dim
    value_width = layer.num_heads * (layer.value_dim or layer.key_dim)
    queries, keys = shapes["query"][0], shapes["key"][0]
    projections = [
        Part(name, math.prod(shapes[name]) * width, shapes[name][0] * width)
        for name, width in (("query", key_width), ("key", key_width), ("value", value_width))
    ]
    return [
        *projections,
        Part("query x key", queries * keys * key_width, queries * keys * layer.num_heads),
        Part("weights x value", queries * keys * value_width, queries * value_width),
        Part("out", value_width * math.prod(output), math.prod(output)),
    ]


def _attention_pooling(layer, inputs, output):
    tokens, hidden_dim = inputs[0]
    probe, rest = (1, hidden_dim), (tokens - layer.num_prefix_tokens, hidden_dim)
    return [
        *_inside("attention", _keras_attention(layer.attention, {0: probe, 1: rest}, probe)),
        Part("norm", 0, hidden_dim),
        *_inside("mlp", _mlp(layer.mlp, {0: probe}, probe)),
        Part("residual", 0, hidden_dim),
    ]


def _transformer_block(layer, inputs, output):
    def scale(size):
        return [] if layer.layer_scale_1 is None else [Part("layer_scale", 0, size)]

    size = math.prod(output)
    # Tokens that merge do so behind the attention; those that the block does not give back are no queries.
    attended = inputs[0] if layer.num_outputs is None else output
    before = math.prod(attended)
    merging = []
    if layer.token_merging:
        (tokens, hidden_dim), num_left = inputs[0], output[0]
        patches = tokens - layer.num_prefix_tokens
        pairs = patches // 2 * (patches - patches // 2)
        merging = [
            Part("match", pairs * (layer.attention.head_dim or hidden_dim // layer.attention.num_heads), pairs),
            Part("merge", num_left * tokens * hidden_dim, num_left * tokens + size),
        ]
    return [
        Part("norm_1", 0, math.prod(inputs[0])),
        *_inside("attention", _self_attention(layer.attention, inputs, attended)),
        *scale(before),
        Part("residual", 0, before),
        *merging,
        Part("norm_2", 0, size),
        *_inside("mlp", _mlp(layer.mlp, {0: output}, output)),
        *scale(size),
        Part("residual", 0, size),
    ]


def _bottleneck(layer, inputs, output):
    steps, shape = [], (None, *inputs[0])
    for conv, norm in ((layer.conv_1, "norm_1"), (layer.conv_2, "norm_2"), (layer.conv_3, "norm_3")):
        out = conv.compute_output_shape(shape)
        (part,) = _standardized_conv(conv, {0: shape[1:]}, out[1:])
        normed = math.prod((shape if layer.pre_activation else out)[1:])
        # A norm and a ReLU; the last unit's ReLU comes after the sum.
        both = normed if norm == "norm_3" and not layer.pre_activation else 2 * normed
        pair = [part._replace(name=conv.name), Part(norm, 0, both)]
        steps += reversed(pair) if layer.pre_activation else pair
        shape = out
    if layer.conv_proj is not None:
        (part,) = _standardized_conv(layer.conv_proj, inputs, output)
        steps.append(part._replace(name="conv_proj"))
        if layer.norm_proj is not None:
            steps.append(Part("norm_proj", 0, math.prod(output)))
    return [*steps, Part("residual", 0, (1 if layer.pre_activation else 2) * math.prod(output))]


def _inside(name, parts):
    return [part._replace(name=f"{name}/{part.name}") for part in parts]


RULES = (
    (layers.TransformerBlock, _transformer_block),
    (layers.MultiHeadSelfAttention, _self_attention),
    (layers.AttentionPooling, _attention_pooling),
    (layers.MLP, _mlp),
    (layers.PatchEmbedding, _patch_embedding),
    (layers.Bottleneck, _bottleneck),
    (layers.StandardizedConv2D, _standardized_conv),
    (keras.layers.MultiHeadAttention, _keras_attention),
    (keras.layers.Dense, _dense),
    (keras.layers.EinsumDense, _einsum_dense),
    (_classes("DepthwiseConv1D DepthwiseConv2D"), _depthwise_conv),
    (_classes("SeparableConv1D SeparableConv2D"), _separable_conv),
    (_classes("Conv1DTranspose Conv2DTranspose Conv3DTranspose"), _conv_transpose),
    (_classes("Conv1D Conv2D Conv3D"), _conv),
)
