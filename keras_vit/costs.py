"""Counts the parameters, multiply-adds and activation memory of a model from its layer shapes."""

import dataclasses
import functools
import math
import re
from typing import NamedTuple

import keras
import ml_dtypes  # noqa: F401, teaches NumPy bfloat16; Keras depends on it
import numpy as np

from keras_vit import arguments, layers
from keras_vit.models.graph import is_graph, replay
from keras_vit.models.vit import ViT
from keras_vit.text_table import text_table
from keras_vit.variants import decode_variant

# Millions of parameters, for any patch size: table 1 of the ViT paper (arXiv 2010.11929); Ti and S: table 1 of DeiT
# (arXiv 2012.12877).
PAPER = {"Ti/16": 5, "S/16": 22, "S/32": 22, "B/16": 86, "B/32": 86, "L/16": 307, "L/32": 307, "H/14": 632}


class Part(NamedTuple):
    """One step of a layer: its multiply-adds (None if unknown) and the number of activations it keeps."""

    name: str
    multiply_adds: int | None
    activations: int


@dataclasses.dataclass(frozen=True)
class Row:
    """The costs of one layer for one image; `multiply_adds` is None if unknown."""

    name: str
    kind: str
    output_shape: tuple
    # 0 if an earlier row has the same weights.
    parameters: int | None
    multiply_adds: int | None
    activation_bytes: int
    # A Row per step, if there are several.
    steps: tuple = ()


@dataclasses.dataclass(frozen=True)
class Profile:
    """The costs of a model for one image, with a `Row` per layer call; prints as a table."""

    name: str
    input_shapes: tuple
    rows: tuple

    @property
    def parameters(self):
        """The total number of parameters."""
        return sum(row.parameters for row in self.rows)

    @property
    def multiply_adds(self):
        """The multiply-adds of one inference, excluding layers in `not_counted`; half the FLOPs."""
        return sum(row.multiply_adds or 0 for row in self.rows)

    @property
    def activation_bytes(self):
        """The bytes of the outputs of all layers and steps: about what training keeps for the backward pass."""
        return sum(row.activation_bytes for row in self.rows)

    @property
    def not_counted(self):
        """The names of the layers with unknown multiply-adds."""
        return [row.name for row in self.rows if row.multiply_adds is None]

    def table(self, steps=False):
        """Returns the costs as a table, also for the steps of each layer if `steps` is True."""
        lines = []
        for row in self.rows:
            lines.append(_cells(row))
            lines += [_cells(step, "  ") for step in row.steps] if steps else []
        total = Row("total", "", (), self.parameters, self.multiply_adds, self.activation_bytes)
        columns = ["layer", "kind", "output", "parameters", "multiply-adds (M)", "activations (MB)"]
        text = text_table(columns, [*lines, _cells(total)], decimals=2, missing="-")
        sizes = ", ".join(" x ".join(map(str, shape)) for shape in self.input_shapes)
        notes = [f"{self.name}, one input of {sizes}", text]
        if self.not_counted:
            notes.append(f"Multiply-adds not counted: {', '.join(self.not_counted)}")
        return "\n".join(notes)

    def __str__(self):
        return self.table()


def profile(model, image_size=None):
    """Counts a model's parameters, multiply-adds and activation memory for one image at inference, by layer.

    The counts follow from the layer shapes; nothing is computed. Multiply-adds cover matrix products and convolutions,
    except work done once per batch, such as resizing position embeddings or merging LoRA matrices. They are known for
    this package's layers and for Keras' Dense, Conv, DepthwiseConv, norms, activations, pooling, reshapes and
    augmentation. Activation memory covers the outputs of all layers and of the steps inside blocks, within 15% of what
    PyTorch keeps for training on one image. It includes the attention weights, which fused kernels do not keep.

    Args:
        model: A functional or Sequential `keras.Model`, from any package; models inside it are counted too.
        image_size: Int or (height, width), in pixels, of the inputs of rank 4; may differ from the model's own size.
            None: the model's own; required if the model takes any size.

    Returns:
        A `Profile`, which prints as a table, with `parameters`, `multiply_adds`, `activation_bytes`, `rows`, and
        `not_counted`, the names of layers with unknown multiply-adds.

    Raises:
        ValueError: If the model is neither functional nor Sequential, an input size is unknown, or a dense layer's
            weights do not fit images of that size.

    Example:

    >>> costs = profile(keras_vit.ViTTi16())
    >>> costs.parameters, round(costs.multiply_adds / 1e9, 2)
    (5717416, 1.25)
    """
    if not is_graph(model) or not model.built:
        raise arguments.invalid("model", "a functional model, or a Sequential one with known input", model)
    if image_size is not None:
        image_size = arguments.pair("image_size", image_size)
        if all(len(x.shape) != 4 for x in model.inputs):
            raise ValueError(
                "Invalid value received for argument `image_size`. Expected None for a model without images, "
                f"(batch, height, width, channels), among its inputs. Received: {image_size}"
            )
    inputs = []
    for x in model.inputs:
        shape = tuple(x.shape[1:])
        if image_size is not None and len(shape) == 3:
            shape = (*image_size, shape[-1])
        if None in shape:
            raise ValueError(
                "Invalid value received for argument `image_size`. Expected the size of the images, since the model "
                f"takes any: its input {x.name!r} has shape {x.shape}. Received: {image_size}"
            )
        inputs.append(keras.KerasTensor((1, *shape), dtype=x.dtype))
    counter = _Counter(image_size)
    counter.walk(model, inputs, "")
    if left := counter.new_parameters(model.weights):
        counter.rows.append(Row("other weights", "", (), left, 0, 0))
    return Profile(model.name, tuple(tuple(x.shape[1:]) for x in inputs), tuple(counter.rows))


def paper_table(image_size=224):
    """Returns a table of the costs of the papers' models next to the published parameter counts.

    The models have 1,000 classes. The paper gives one count for all patch sizes: 86 million is that of B/16, 307
    million that of L/32.

    Args:
        image_size: Int or (height, width), in pixels.

    Example:

    >>> print(paper_table().splitlines()[4])
    B/16            86.57                86              17.56            155.50
    """
    rows = []
    for variant, millions in PAPER.items():
        # Builds one block and multiplies its costs, since H/14 takes 2.5 GB.
        size, _, _ = decode_variant(variant)
        costs = profile(ViT(variant, image_size=image_size, num_layers=1))
        (block,) = (row for row in costs.rows if row.kind == "TransformerBlock")
        more = size.num_layers - 1
        parameters = (costs.parameters + more * block.parameters) / 1e6
        multiply_adds = (costs.multiply_adds + more * block.multiply_adds) / 1e9
        megabytes = (costs.activation_bytes + more * block.activation_bytes) / 1e6
        rows.append([variant, parameters, millions, multiply_adds, megabytes])
    columns = ["model", "parameters (M)", "in the paper (M)", "multiply-adds (G)", "activations (MB)"]
    return text_table(columns, rows, decimals=2)


class _Counter:
    """Collects the rows of a model and the models inside it."""

    def __init__(self, image_size):
        self.image_size, self.rows, self.seen = image_size, [], set()

    def new_parameters(self, weights):
        """Returns the number of parameters in the weights that no earlier row has counted."""
        new = {id(w): math.prod(w.shape) for w in weights if id(w) not in self.seen}
        self.seen.update(new)
        return sum(new.values())

    def walk(self, model, inputs, prefix):
        """Adds the rows of a model's layers; returns the model's outputs as a list of `keras.KerasTensor`s."""
        return replay(model, keras.tree.flatten(inputs), functools.partial(self.call, prefix))

    def call(self, prefix, operation, *args, **kwargs):
        """Adds the row of one layer call; returns its outputs."""
        name, kind = prefix + operation.name, type(operation).__name__
        if is_graph(operation):
            return self.walk(operation, args[0] if args else kwargs["inputs"], f"{name}/")
        tensors = [x for x in keras.tree.flatten((args, kwargs)) if isinstance(x, keras.KerasTensor)]
        inputs = [tuple(x.shape[1:]) for x in tensors]
        if isinstance(operation, keras.layers.Dense):
            # Keras does not check this in shape inference. A quantized kernel may be packed, so its shape is no guide.
            wants = (getattr(operation.input_spec, "axes", None) or {}).get(-1)
            if wants not in (None, inputs[0][-1]):
                raise ValueError(
                    f"Invalid value received for argument `image_size`. Expected a size whose images give {name!r} "
                    f"{wants} features, for which it has weights. Received: {self.image_size}, with which {name!r} "
                    f"gets {inputs[0][-1]}"
                )
        # PatchDropout keeps all patches at inference, but its output spec does not say so.
        dropout = isinstance(operation, layers.PatchDropout)
        outputs = args[0] if dropout else operation.compute_output_spec(*args, **kwargs)
        first = keras.tree.flatten(outputs)[0]
        shape = tuple(first.shape[1:])
        if None in shape:
            raise ValueError(
                "Invalid value received for argument `model`. Expected layers whose output shape follows from that of "
                f"their input. Received: {name!r}, a {kind}, which gives {first.shape}"
            )
        parts = parts_of(operation, inputs, shape)
        width = np.dtype(getattr(operation, "compute_dtype", first.dtype)).itemsize
        steps = [Row(f"{name}/{step}", "", (), None, products, size * width) for step, products, size in parts]
        parameters = self.new_parameters(getattr(operation, "weights", ()))
        # Only layers of a single step can have unknown multiply-adds.
        products = parts[0].multiply_adds if len(parts) == 1 else sum(part.multiply_adds for part in parts)
        size = sum(step.activation_bytes for step in steps)
        self.rows.append(Row(name, kind, shape, parameters, products, size, tuple(steps) if len(steps) > 1 else ()))
        return outputs


def _cells(row, indent=""):
    return [
        indent + row.name,
        row.kind,
        " x ".join(map(str, row.output_shape)),
        row.parameters,
        None if row.multiply_adds is None else row.multiply_adds / 1e6,
        row.activation_bytes / 1e6,
    ]


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
FREE += tuple(vars(layers)[name] for name in layers.__all__)
# Operations of keras.ops with matrix products or convolutions that are not counted; Matmul is.
UNKNOWN_OPERATIONS = (
    ".*(Conv|[Dd]ot|Einsum|FFT|STFT|Cholesky|Solve).*|Correlate|Cross|Det|Eigh?|Inner|Inv|Kron|Lstsq|LuFactor|Qr|SVD"
)


def parts_of(operation, inputs, output):
    """Returns the steps of a layer or `keras.Operation` call, for input shapes and first output shape without batch."""
    if isinstance(operation, layers.TokenProjector):
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
    if isinstance(layer, layers.RecurrentTokenizer):
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
    (layers.Bottleneck, _bottleneck),
    (layers.ResNetBlock, _resnet_block),
    (layers.VTModule, _vt_module),
    ((layers.FilterTokenizer, layers.RecurrentTokenizer), _tokenizer),
    (layers.TokenTransformer, _token_transformer),
    (layers.MBConv, _mbconv),
    (layers.RelativeTransformerBlock, _relative_transformer_block),
    (layers.RelativeAttention, _relative_attention),
    (layers.InvertedBottleneck, _inverted_bottleneck),
    (layers.SqueezeExcitation, _squeeze_excitation),
    (layers.StandardizedConv2D, _standardized_conv),
    (layers.PatchEmbedding, _products(lambda layer, x: math.prod(layer.patch_size) * x[-1])),
    # LoRA merges its two matrices once per batch, which is not counted.
    (keras.layers.Dense, _products(lambda layer, x: x[-1])),
    (_classes("DepthwiseConv[12]D"), _products(lambda layer, x: math.prod(layer.kernel.shape[:-2]))),
    # With groups, the kernel's input axis holds only the channels of one group.
    (_classes("Conv[123]D"), _products(lambda layer, x: math.prod(layer.kernel.shape[:-1]))),
)
