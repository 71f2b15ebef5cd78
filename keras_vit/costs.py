"""Counts the parameters, multiply-adds and activation memory of a model from the shapes of its layers."""

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

# Millions of parameters in table 1 of the ViT paper (arXiv 2010.11929), one number for all patch sizes; for Ti and S in
# table 1 of DeiT (arXiv 2012.12877).
PAPER = {"Ti/16": 5, "S/16": 22, "S/32": 22, "B/16": 86, "B/32": 86, "L/16": 307, "L/32": 307, "H/14": 632}


class Part(NamedTuple):
    """One step of a layer: its multiply-adds (None if unknown), and how many numbers it leaves in memory."""

    name: str
    multiply_adds: int | None
    activations: int


@dataclasses.dataclass(frozen=True)
class Row:
    """The costs of one layer of a model for one image; `steps` are the rows of its steps, if it has several.

    `parameters` is 0 if an earlier row has the same weights, `multiply_adds` is None if they are unknown.
    """

    name: str
    kind: str
    output_shape: tuple
    parameters: int | None
    multiply_adds: int | None
    activation_bytes: int
    steps: tuple = ()


@dataclasses.dataclass(frozen=True)
class Profile:
    """The costs of a model for one image, a `Row` for each call of a layer; `print(profile)` shows them in a table."""

    name: str
    input_shapes: tuple
    rows: tuple

    @property
    def parameters(self):
        """The numbers in all weights."""
        return sum(row.parameters for row in self.rows)

    @property
    def multiply_adds(self):
        """The multiply-adds of an inference, without the layers in `not_counted`; half the FLOPs."""
        return sum(row.multiply_adds or 0 for row in self.rows)

    @property
    def activation_bytes(self):
        """The bytes of the outputs of all layers and their steps, about what training keeps for the backward pass."""
        return sum(row.activation_bytes for row in self.rows)

    @property
    def not_counted(self):
        """The names of the layers whose multiply-adds are unknown."""
        return [row.name for row in self.rows if row.multiply_adds is None]

    def table(self, steps=False):
        """Returns the rows as text.

        Args:
            steps: Bool, whether to show the steps of each layer too.

        Example:

        >>> profile(keras_vit.ViTTi16(num_layers=1)).table().splitlines()[0]
        'vit_Ti16, one input of 224 x 224 x 3'
        """
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
    """Counts a model's parameters, multiply-adds and activation memory, by layer and in total.

    The counts follow from the layers' shapes, for one image at inference; nothing is computed.

    Multiply-adds are those of matrix products and convolutions, without work done once per batch, such as resizing
    positions or merging LoRA matrices. They are known for the layers of this package, and for Keras' Dense, Conv,
    DepthwiseConv, norms, activations, pooling, reshapes and augmentation; `not_counted` names all other layers.

    Activation memory is that of the outputs of all layers and of the steps inside blocks: about what training keeps for
    one image, within 15% of PyTorch for ViTs, hybrids and BiT, with the attention weights, which a fused kernel does
    not keep.

    Args:
        model: A functional or Sequential `keras.Model`, also of other packages, also with models inside.
        image_size: Int, or (height, width), in pixels, of the inputs of rank 4. None takes the model's; a model of any
            size needs one. A model of a fixed size can be counted at other sizes too, with its own parameters.

    Returns:
        A `Profile` with `parameters`, `multiply_adds`, `activation_bytes`, `rows` and `not_counted`, which prints as a
        table.

    Raises:
        ValueError: If the model is neither functional nor Sequential, the size of an input is not known, or a dense
            layer's weights do not fit images of that size.

    Example:

    >>> costs = profile(keras_vit.ViTTi16())
    >>> costs.parameters, round(costs.multiply_adds / 1e9, 2)
    (5717416, 1.25)
    """
    if not is_graph(model) or not model.built:
        raise ValueError(
            "Invalid value received for argument `model`. Expected a functional model, or a Sequential one with known "
            f"input. Received: {model!r}"
        )
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
    """Returns a table of the costs of the papers' models beside the papers' numbers of parameters.

    The models have the 1,000 classes of ImageNet. The paper gives one number for all patch sizes: its 86 million are
    B/16's, its 307 million L/32's.

    Args:
        image_size: Int, or (height, width), in pixels.

    Example:

    >>> print(paper_table().splitlines()[4])
    B/16            86.57                86              17.56            155.50
    """
    rows = []
    for variant, millions in PAPER.items():
        # All blocks are alike, so one is built and counted as many times as there are: H/14 has 2.5 GB.
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
    """Collects the rows of a graph, model by model."""

    def __init__(self, image_size):
        self.image_size, self.rows, self.seen = image_size, [], set()

    def new_parameters(self, weights):
        """Returns the numbers in the weights that no earlier row has."""
        new = {id(w): math.prod(w.shape) for w in weights if id(w) not in self.seen}
        self.seen.update(new)
        return sum(new.values())

    def walk(self, model, inputs, prefix):
        """Adds the rows of a model's layers; returns the model's outputs, a list of `keras.KerasTensor`s."""
        return replay(model, keras.tree.flatten(inputs), functools.partial(self.call, prefix))

    def call(self, prefix, operation, *args, **kwargs):
        """Adds the row of one call; returns its outputs."""
        name, kind = prefix + operation.name, type(operation).__name__
        if is_graph(operation):
            return self.walk(operation, args[0] if args else kwargs["inputs"], f"{name}/")
        tensors = [x for x in keras.tree.flatten((args, kwargs)) if isinstance(x, keras.KerasTensor)]
        inputs = [tuple(x.shape[1:]) for x in tensors]
        if isinstance(operation, keras.layers.Dense):
            # Keras does not check this when it infers shapes. A quantized kernel may be packed.
            wants = (getattr(operation.input_spec, "axes", None) or {}).get(-1)
            if wants not in (None, inputs[0][-1]):
                raise ValueError(
                    f"Invalid value received for argument `image_size`. Expected a size whose images give {name!r} "
                    f"{wants} features, for which it has weights. Received: {self.image_size}, of which {name!r} gets "
                    f"{inputs[0][-1]}"
                )
        # PatchDropout drops nothing at inference, which its output shape leaves open.
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
        # Only a layer of one step may be unknown.
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
    """Returns the layers of this Keras whose names match."""
    return tuple(kind for name, kind in vars(keras.layers).items() if re.fullmatch(pattern, name))


# Layers without matrix products, by convention the only operations that are counted. The first ones pass their input
# through at inference.
VIEWS = _classes("Identity|Flatten|Reshape|ActivityRegularization|Gaussian.*|.*Dropout|Random(?!Crop).*")
VIEWS += (layers.DropPath, layers.PatchDropout)
FREE = _classes(
    "(Batch|Group|Layer|RMS|Unit)?Normalization|.*Pooling[123]D|Activation|.*ReLU|ELU|Softmax|Add|Average|Concatenate|"
    "Maximum|Minimum|Multiply|Subtract|(Cropping|UpSampling|ZeroPadding)[123]D|CenterCrop|RandomCrop|Rescaling|"
    "Resizing|Permute|RepeatVector|Embedding|Masking"
)
FREE += tuple(vars(layers)[name] for name in layers.__all__)
# The operations of keras.ops that multiply matrices or convolve; Matmul is counted.
UNKNOWN_OPERATIONS = (
    ".*(Conv|[Dd]ot|Einsum|FFT|STFT|Cholesky|Solve).*|Correlate|Cross|Det|Eigh?|Inner|Inv|Kron|Lstsq|LuFactor|Qr|SVD"
)


def parts_of(operation, inputs, output):
    """Returns the steps of one call of a layer or `keras.Operation`, by the shapes of its inputs and first output.

    The shapes have no batch. An unknown operation has one step with `multiply_adds=None`.
    """
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
    """Returns the rule of a layer that multiplies `count(layer, input)` numbers for each number of its output."""
    return lambda layer, x, output: [Part("", math.prod(output) * count(layer, x), math.prod(output))]


def _mlp(layer, x, output):
    tokens, width = math.prod(x[:-1]), x[-1]
    hidden = tokens * layer.mlp_dim
    # The first leaves what comes before and after the activation.
    return [Part("dense_1", hidden * width, 2 * hidden), Part("dense_2", hidden * width, tokens * width)]


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
    return [
        *parts,
        Part("query x key", product, scores),
        Part("weights x value", product, queries * width),
        Part("out", queries * width * hidden_dim, queries * hidden_dim),
    ]


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
    # Merging tokens follows the attention; tokens that the block does not give back are no queries.
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
    # The scaled branch, and the sum.
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
        # A norm and a ReLU; in post-activation the last ReLU comes after the sum.
        normed = math.prod(shape if layer.pre_activation else out)
        last = conv is layer.conv_3 and not layer.pre_activation
        steps += _inside(conv.name, _standardized_conv(conv, shape, out))
        steps.append(Part(conv.name.replace("conv", "norm"), 0, normed if last else 2 * normed))
        shape = out
    if layer.conv_proj is not None:
        steps += _inside("conv_proj", _standardized_conv(layer.conv_proj, x, output))
        steps += [] if layer.norm_proj is None else [Part("norm_proj", 0, math.prod(output))]
    return [*steps, Part("residual", 0, (1 if layer.pre_activation else 2) * math.prod(output))]


def _inside(name, parts):
    return [part._replace(name=f"{name}/{part.name}".rstrip("/")) for part in parts]


_standardized_conv = _products(lambda layer, x: math.prod(layer.kernel_size) * x[-1])
RULES = (
    (layers.TransformerBlock, _transformer_block),
    (layers.MultiHeadSelfAttention, _attention),
    (layers.AttentionPooling, _attention_pooling),
    (layers.MLP, _mlp),
    (layers.Bottleneck, _bottleneck),
    (layers.StandardizedConv2D, _standardized_conv),
    (layers.PatchEmbedding, _products(lambda layer, x: math.prod(layer.patch_size) * x[-1])),
    # Where LoRA is on, its two matrices are multiplied too, but once for all images of a batch.
    (keras.layers.Dense, _products(lambda layer, x: x[-1])),
    (_classes("DepthwiseConv[12]D"), _products(lambda layer, x: math.prod(layer.kernel.shape[:-2]))),
    # The kernel holds, for each filter, the channels of its group.
    (_classes("Conv[123]D"), _products(lambda layer, x: math.prod(layer.kernel.shape[:-1]))),
)
