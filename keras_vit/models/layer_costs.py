"""The multiply-adds and activations of each kind of layer, step by step: a rule for each that has several steps."""

import math
import re
from typing import NamedTuple

import keras

from keras_vit import layers
from keras_vit.layers.class_token import PrefixTokens
from keras_vit.layers.squeeze_excitation import SqueezeExcitation
from keras_vit.layers.symmetric_max_pooling import SymmetricMaxPooling2D
from keras_vit.models.bit.bottleneck import Bottleneck
from keras_vit.models.bit.group_normalization import GroupNormalization
from keras_vit.models.bit.standardized_conv import StandardizedConv2D
from keras_vit.models.coatnet.mbconv import MBConv
from keras_vit.models.coatnet.relative_attention import RelativeAttention
from keras_vit.models.coatnet.relative_transformer_block import RelativeTransformerBlock
from keras_vit.models.efficientnet.inverted_bottleneck import InvertedBottleneck
from keras_vit.models.vt_resnet.filter_tokenizer import FilterTokenizer
from keras_vit.models.vt_resnet.recurrent_tokenizer import RecurrentTokenizer
from keras_vit.models.vt_resnet.resnet_block import ResNetBlock
from keras_vit.models.vt_resnet.token_projector import TokenProjector
from keras_vit.models.vt_resnet.token_transformer import TokenTransformer
from keras_vit.models.vt_resnet.vt_module import VTModule


class Part(NamedTuple):
    """One step of a layer: its multiply-adds (None if unknown) and the number of activations it keeps."""

    name: str
    multiply_adds: int | None
    activations: int


def _classes(pattern):
    """Returns the classes in `keras.layers` whose names match a pattern."""
    return tuple(kind for name, kind in vars(keras.layers).items() if re.fullmatch(pattern, name))


# Layers without multiply-adds. Those in VIEWS also pass their input through at inference and keep no activations.
VIEWS = _classes("Identity|Flatten|Reshape|ActivityRegularization|Gaussian.*|.*Dropout|Random(?!Crop).*")
VIEWS += (layers.DropPath, layers.PatchDropout)
FREE = _classes(
    "(Batch|Group|Layer|RMS|Unit)?Normalization|.*Pooling[123]D|Activation|.*ReLU|ELU|Softmax|Add|Average|Concatenate|"
    "Maximum|Minimum|Multiply|Subtract|(Cropping|UpSampling|ZeroPadding)[123]D|CenterCrop|RandomCrop|Rescaling|"
    "Resizing|Permute|RepeatVector|Embedding|Masking"
)
FREE += (*(vars(layers)[name] for name in layers.__all__), PrefixTokens, SymmetricMaxPooling2D)
FREE += (GroupNormalization, FilterTokenizer)
# Operations of keras.ops with matrix products or convolutions that are not counted; Matmul is.
UNKNOWN_OPERATIONS = (
    ".*(Conv|[Dd]ot|Einsum|FFT|STFT|Cholesky|Solve).*|Correlate|Cross|Det|Eigh?|Inner|Inv|Kron|Lstsq|LuFactor|Qr|SVD"
)


def parts_of(operation, inputs, output):
    """Returns the steps of a layer or `keras.Operation` call, for input shapes and first output shape without batch."""
    if isinstance(operation, TokenProjector):
        return _token_projector(operation, inputs, output)
    for kind, rule in RULES:
        if isinstance(operation, kind):
            return rule(operation, inputs[0], output)
    size, kind = math.prod(output), type(operation).__name__
    if isinstance(operation, VIEWS):
        return [Part("", 0, 0)]
    if isinstance(operation, layers.ImageNormalization) and (not operation.apply or operation.folded):
        return [Part("", 0, 0)]
    if isinstance(operation, FREE):
        return [Part("", 0, size)]
    if kind == "Matmul" and inputs:
        return [Part("", size * inputs[0][-1], size)]
    known = not isinstance(operation, keras.layers.Layer) and not re.fullmatch(UNKNOWN_OPERATIONS, kind)
    return [Part("", 0 if known else None, size)]


def _products(count):
    """Returns the rule for a layer with `count(layer, input_shape)` multiply-adds per output value."""
    return lambda layer, x, output: [Part("", math.prod(output) * count(layer, x), math.prod(output))]


def _mlp(layer, x, output):
    tokens, width = math.prod(x[:-1]), x[-1]
    hidden = tokens * layer.mlp_dim
    # The first layer keeps its outputs before and after the activation; a gated one is twice as wide.
    wide = 2 * hidden if layer.gated else hidden
    parts = [Part("dense_1", wide * width, wide + (2 if layer.gated else 1) * hidden)]
    if layer.inner_norm:
        parts.append(Part("norm", 0, hidden))
    return [*parts, Part("dense_2", hidden * width, tokens * width)]


def _attention(layer, x, output):
    tokens, hidden_dim = x
    queries = output[0]
    width = layer.num_heads * (layer.head_dim or hidden_dim // layer.num_heads)
    product, scores = queries * tokens * width, layer.num_heads * queries * tokens
    parts = [Part("qkv", 3 * tokens * hidden_dim * width, 3 * tokens * width)]
    if layer.qk_norm:
        parts.append(Part("query_norm, key_norm", 0, 2 * tokens * width))
    if layer.max_relative_distance is not None:
        parts.append(Part("relative positions", product, scores))
    if layer.rotary_layout is not None:
        parts.append(Part("rotated query, key", 0, 2 * tokens * width))
    parts += [Part("query x key", product, scores), Part("weights x value", product, queries * width)]
    if layer.output_norm:
        parts.append(Part("norm", 0, queries * width))
    return [*parts, Part("out", queries * width * hidden_dim, queries * hidden_dim)]


def _attention_pooling(layer, x, output):
    tokens, hidden_dim = x[0] - layer.num_prefix_tokens, x[1]
    width = layer.num_heads * (hidden_dim // layer.num_heads)
    return [
        Part("attention/query", hidden_dim * width, width),
        Part("attention/key, value", 2 * tokens * hidden_dim * width, 2 * tokens * width),
        Part("attention/query x key", tokens * width, tokens * layer.num_heads),
        Part("attention/weights x value", tokens * width, width),
        Part("attention/out", width * hidden_dim, hidden_dim),
        Part("norm", 0, hidden_dim),
        *_inside("mlp", _mlp(layer.mlp, (1, hidden_dim), output)),
        Part("residual", 0, hidden_dim),
    ]


def _transformer_block(layer, x, output):
    (tokens, hidden_dim), size = x, math.prod(output)
    # Token merging comes after the attention; tokens that the block does not output are not queries.
    attended = x if layer.num_outputs is None else output
    merging = []
    if layer.token_merging:
        patches = tokens - layer.num_prefix_tokens
        pairs = patches // 2 * (patches - patches // 2)
        head_dim = layer.attention.head_dim or hidden_dim // layer.attention.num_heads
        merging = [
            Part("match", pairs * head_dim, pairs),
            Part("merge", output[0] * tokens * hidden_dim, output[0] * tokens + size),
        ]
    # With layer scale, both the scaled branch and the sum are kept.
    copies = 1 if layer.layer_scale_1 is None else 2
    return [
        Part("norm_1", 0, math.prod(x)),
        *_inside("attention", _attention(layer.attention, x, attended)),
        Part("residual_1", 0, copies * math.prod(attended)),
        *merging,
        Part("norm_2", 0, size),
        *_inside("mlp", _mlp(layer.mlp, output, output)),
        Part("residual_2", 0, copies * size),
    ]


def _bottleneck(layer, x, output):
    steps, shape = [], x
    for conv in (layer.conv_1, layer.conv_2, layer.conv_3):
        out = conv.compute_output_shape((None, *shape))[1:]
        # Norm and ReLU; with post-activation the last ReLU comes after the sum.
        normed = math.prod(shape if layer.pre_activation else out)
        last = conv is layer.conv_3 and not layer.pre_activation
        steps += _inside(conv.name, _standardized_conv(conv, shape, out))
        steps.append(Part(conv.name.replace("conv", "norm"), 0, normed if last else 2 * normed))
        shape = out
    if layer.conv_proj is not None:
        steps += _inside("conv_proj", _standardized_conv(layer.conv_proj, x, output))
        steps += [] if layer.norm_proj is None else [Part("norm_proj", 0, math.prod(output))]
    return [*steps, Part("residual", 0, (1 if layer.pre_activation else 2) * math.prod(output))]


def _resnet_block(layer, x, output):
    steps, shape = [], x
    for conv, norm in zip(layer.convs, layer.norms, strict=True):
        shape = (*(-(-side // conv.strides[0]) for side in shape[:2]), conv.filters)
        size = math.prod(shape)
        # The ReLU of the last norm comes after the sum.
        steps.append(Part(conv.name, size * math.prod(conv.kernel.shape[:-1]), size))
        steps.append(Part(norm.name, 0, size if conv is layer.convs[-1] else 2 * size))
    size = math.prod(output)
    if layer.conv_proj is not None:
        steps += [Part("conv_proj", size * x[-1], size), Part("norm_proj", 0, size)]
    return [*steps, Part("residual", 0, 2 * size)]


def _tokenizer(layer, x, output):
    pixels, channels, (num_tokens, token_dim) = math.prod(x[:-1]), x[-1], output
    product = num_tokens * pixels * channels
    parts = [Part("filters x pixels", product, num_tokens * pixels)]
    parts.append(Part("weights x pixels", product, num_tokens * channels))
    if isinstance(layer, RecurrentTokenizer):
        size = num_tokens * channels
        parts.insert(0, Part("to_filters", size * layer.to_filters.kernel.shape[0], size))
    if layer.value is not None:
        parts.append(Part("value", num_tokens * channels * token_dim, num_tokens * token_dim))
    return parts


def _token_transformer(layer, x, output):
    (tokens, width), size = x, math.prod(x)
    key_dim = layer.key_dim or width
    return [
        Part("key, query", 2 * size * key_dim, 2 * tokens * key_dim),
        Part("key x query", tokens * tokens * key_dim, tokens * tokens),
        Part("weights x tokens", tokens * size, size),
        Part("residual_1", 0, size),
        Part("dense_1", size * width, 2 * size),
        Part("dense_2", size * width, size),
        Part("residual_2", 0, size),
    ]


def _token_projector(layer, inputs, output):
    (*sides, channels), (num_tokens, token_dim) = inputs
    pixels, size = math.prod(sides), math.prod(output)
    key_dim = layer.key_dim or channels
    parts = [
        Part("query", size * key_dim, pixels * key_dim),
        Part("key", num_tokens * token_dim * key_dim, num_tokens * key_dim),
        Part("query x key", pixels * num_tokens * key_dim, pixels * num_tokens),
        Part("weights x tokens", num_tokens * size, size),
        Part("residual", 0, size),
    ]
    if layer.value is not None:
        parts.append(Part("value", num_tokens * token_dim * channels, num_tokens * channels))
    return parts


def _vt_module(layer, x, output):
    tokens = layer.num_tokens, layer.token_dim or x[-1]
    parts = _inside("tokenizer", _tokenizer(layer.tokenizer, x, tokens))
    parts += _inside("transformer", _token_transformer(layer.transformer, tokens, tokens))
    if layer.projector is not None:
        parts += _inside("projector", _token_projector(layer.projector, (x, tokens), x))
    return parts


def _dense(layer, x):
    """Returns the step of a dense layer, for a feature map."""
    size = math.prod(x[:-1]) * layer.units
    return Part(layer.name, size * x[-1], size)


def _squeeze_excitation(layer, x, output):
    means = (1, 1, x[-1])
    reduced = (1, 1, layer.reduced_dim)
    return [
        Part("mean", 0, x[-1]),
        _dense(layer.reduce, means),
        _dense(layer.expand, reduced),
        Part("product", 0, math.prod(x)),
    ]


def _mbconv(layer, x, output):
    halved = (*output[:-1], x[-1])
    # What the expansion and the depthwise convolution take.
    expanded = halved if layer.strides > 1 and layer.downsampling != "depthwise" else x
    hidden = (*output[:-1], layer.hidden_dim)
    wide, size = math.prod(expanded[:-1]) * layer.hidden_dim, math.prod(hidden)
    # Batch normalization keeps two copies, an activation one more.
    steps = [Part("pre_norm", 0, math.prod(x) * (3 if layer.pre_norm_activation else 2))]
    if layer.down is not None:
        steps.append(Part("down", 0, math.prod(halved)))
    steps += [_dense(layer.expand, expanded), Part("expand_norm", 0, 3 * wide)]
    steps.append(Part("depthwise", size * math.prod(layer.depthwise.kernel_size), size))
    squeezed = _inside("se", _squeeze_excitation(layer.se, hidden, hidden))
    normed = [Part("depthwise_norm", 0, 3 * size)]
    steps += [*squeezed, *normed] if layer.se_before_norm else [*normed, *squeezed]
    steps.append(_dense(layer.project, hidden))
    return [*steps, *_shortcut(layer, x, output)]


def _shortcut(layer, x, output):
    """Returns the steps of a block's shortcut and the sum."""
    halved = (*output[:-1], x[-1])
    steps = [] if layer.pool is None else [Part("pool", 0, math.prod(halved))]
    steps += [] if layer.shortcut is None else [_dense(layer.shortcut, halved)]
    return [*steps, Part("residual", 0, math.prod(output))]


def _relative_attention(layer, x, output):
    tokens, width = math.prod(x[:-1]), layer.num_heads * layer.head_dim
    product, scores = tokens * tokens * width, layer.num_heads * tokens * tokens
    return [
        Part("qkv", 3 * tokens * x[-1] * width, 3 * tokens * width),
        Part("query x key", product, scores),
        Part("weights x value", product, tokens * width),
        _dense(layer.out, (*x[:-1], width)),
    ]


def _relative_transformer_block(layer, x, output):
    size = math.prod(output)
    halved = (*output[:-1], x[-1])
    # With layer scale, both the scaled branch and the sum are kept.
    copies = 1 if layer.layer_scale_1 is None else 2
    return [
        Part("norm_1", 0, math.prod(x)),
        *([] if layer.pool is None else [Part("pool of norm_1", 0, math.prod(halved))]),
        *_inside("attention", _relative_attention(layer.attention, halved, output)),
        *_shortcut(layer, x, output),
        Part("norm_2", 0, size),
        *_inside("mlp", _mlp(layer.mlp, output, output)),
        Part("residual_2", 0, (2 * copies - 1) * size),
    ]


def _inverted_bottleneck(layer, x, output):
    inside, steps = x[-1] * layer.expansion, []
    pixels, reduced = math.prod(x[:-1]), math.prod(output[:-1])
    # A norm followed by swish keeps the outputs of both.
    if layer.expand_conv is not None:
        size = pixels * inside
        steps = [Part("expand_conv", size * x[-1], size), Part("expand_norm", 0, 2 * size)]
    size = reduced * inside
    steps += [Part("depthwise_conv", size * layer.kernel_size**2, size), Part("depthwise_norm", 0, 2 * size)]
    shape = (*output[:-1], inside)
    steps += _inside("squeeze_excitation", _squeeze_excitation(layer.squeeze_excitation, shape, shape))
    size = math.prod(output)
    steps += [Part("project_conv", size * inside, size), Part("project_norm", 0, size)]
    return [*steps, *([Part("residual", 0, size)] if tuple(x) == tuple(output) else [])]


def _inside(name, parts):
    return [part._replace(name=f"{name}/{part.name}".rstrip("/")) for part in parts]


_standardized_conv = _products(lambda layer, x: math.prod(layer.kernel_size) * x[-1])
RULES = (
    (layers.TransformerBlock, _transformer_block),
    (layers.MultiHeadSelfAttention, _attention),
    (layers.AttentionPooling, _attention_pooling),
    (layers.MLP, _mlp),
    (Bottleneck, _bottleneck),
    (ResNetBlock, _resnet_block),
    (VTModule, _vt_module),
    ((FilterTokenizer, RecurrentTokenizer), _tokenizer),
    (TokenTransformer, _token_transformer),
    (MBConv, _mbconv),
    (RelativeTransformerBlock, _relative_transformer_block),
    (RelativeAttention, _relative_attention),
    (InvertedBottleneck, _inverted_bottleneck),
    (SqueezeExcitation, _squeeze_excitation),
    (StandardizedConv2D, _standardized_conv),
    (layers.PatchEmbedding, _products(lambda layer, x: math.prod(layer.patch_size) * x[-1])),
    # LoRA merges its two matrices once per batch, which is not counted.
    (keras.layers.Dense, _products(lambda layer, x: x[-1])),
    (_classes("DepthwiseConv[12]D"), _products(lambda layer, x: math.prod(layer.kernel.shape[:-2]))),
    # With groups, the kernel's input axis holds only the channels of one group.
    (_classes("Conv[123]D"), _products(lambda layer, x: math.prod(layer.kernel.shape[:-1]))),
)
