"""Counts the parameters, multiply-adds and activation memory of a model from its layer shapes."""

import dataclasses
import functools
import math

import keras
import ml_dtypes  # noqa: F401, registers bfloat16 in NumPy; Keras depends on ml_dtypes
import numpy as np

from keras_vit import arguments
from keras_vit.console import text_table
from keras_vit.layers import PatchDropout, costs
from keras_vit.models.graph import is_graph, replay
from keras_vit.models.vit.model import ViT
from keras_vit.models.vit.variants import decode_variant

# Millions of parameters, from table 1 of the ViT paper (arXiv 2010.11929) and, for Ti and S, from table 1 of DeiT
# (arXiv 2012.12877). The papers give one number for all patch sizes.
PAPER = {"Ti/16": 5, "S/16": 22, "S/32": 22, "B/16": 86, "B/32": 86, "L/16": 307, "L/32": 307, "H/14": 632}


@dataclasses.dataclass(frozen=True)
class LayerCosts:
    """The costs of one layer for one image; `multiply_adds` is None if unknown."""

    name: str
    kind: str
    output_shape: tuple
    # `parameters` is 0 if an earlier row has the same weights, and None for a step inside a layer.
    parameters: int | None
    multiply_adds: int | None
    activation_bytes: int
    # `steps` contains a `LayerCosts` for each step inside the layer. It is empty if the layer has only one step.
    steps: tuple = ()


@dataclasses.dataclass(frozen=True)
class Profile:
    """The costs of a model for one image. `rows` contains a `LayerCosts` per layer call. `print` shows a table."""

    name: str
    input_shapes: tuple
    rows: tuple

    @property
    def parameters(self):
        """The total number of parameters."""
        return sum(row.parameters for row in self.rows)

    @property
    def multiply_adds(self):
        """The multiply-adds of one inference, without the layers in `not_counted`. A multiply-add is two FLOPs."""
        return sum(row.multiply_adds or 0 for row in self.rows)

    @property
    def activation_bytes(self):
        """The bytes of the outputs of all layers and steps. Training keeps about this number for the backward pass."""
        return sum(row.activation_bytes for row in self.rows)

    @property
    def not_counted(self):
        """The names of the layers with unknown multiply-adds."""
        return [row.name for row in self.rows if row.multiply_adds is None]

    def table(self, steps=False):
        """Returns the costs as a table. If `steps` is True, the table also has a row for each step of a layer."""
        lines = []
        for row in self.rows:
            lines.append(_cells(row))
            lines += [_cells(step, "  ") for step in row.steps] if steps else []
        total = LayerCosts("total", "", (), self.parameters, self.multiply_adds, self.activation_bytes)
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

    The counts follow from the layer shapes; the model is not run. The counts include all tokens, although a ViT may
    compute fewer tokens in its last block. Multiply-adds cover matrix products and convolutions, except work done once
    per batch, such as resizing position embeddings or merging LoRA matrices. Multiply-adds are known for this package's
    layers and for Keras' Dense, Conv, DepthwiseConv, norms, activations, pooling, reshapes and augmentation. Activation
    memory covers the outputs of all layers and of the steps inside blocks. It differs by at most 15% from the memory
    that PyTorch keeps for training on one image. It includes the attention weights, which fused kernels do not keep.

    Args:
        model: A functional or Sequential `keras.Model`, from any package. Nested models are counted too.
        image_size: Int or (height, width), in pixels, the size of all inputs of rank 4. It may differ from the model's
            own size. None: the model's own size. A model for images of any size needs this argument.

    Returns:
        A `Profile`, which prints as a table. Its attributes are `parameters`, `multiply_adds`, `activation_bytes`,
        `rows` and `not_counted`. `not_counted` lists the names of layers with unknown multiply-adds.

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
    image_size = arguments.optional(arguments.pair, "image_size", image_size)
    if image_size is not None and all(len(x.shape) != 4 for x in model.inputs):
        expected = "None for a model without images, because no input has rank 4 (batch, height, width, channels)"
        raise arguments.invalid("image_size", expected, image_size)
    inputs = []
    for x in model.inputs:
        shape = tuple(x.shape[1:])
        if image_size is not None and len(shape) == 3:
            shape = (*image_size, shape[-1])
        if None in shape:
            raise ValueError(
                "Invalid value received for argument `image_size`. Expected the size of the images, since the model "
                f"takes images of any size. Its input {x.name!r} has shape {x.shape}. Received: {image_size}"
            )
        inputs.append(keras.KerasTensor((1, *shape), dtype=x.dtype))
    counter = _Counter(image_size)
    counter.walk(model, inputs, "")
    if left := counter.new_parameters(model.weights):
        counter.rows.append(LayerCosts("other weights", "", (), left, 0, 0))
    return Profile(model.name, tuple(tuple(x.shape[1:]) for x in inputs), tuple(counter.rows))


def paper_table(image_size=224):
    """Returns a table of the costs of the papers' models next to the published parameter counts.

    The models have 1,000 classes. The ViT paper gives one count for all patch sizes of B, which is the count of B/16,
    and one count for all patch sizes of L, which is the count of L/32.

    Args:
        image_size: Int or (height, width), in pixels.

    Example:

    >>> print(paper_table().splitlines()[4])
    B/16            86.57                86              17.56            155.50
    """
    rows = []
    for variant, millions in PAPER.items():
        # Build only one block and multiply its costs, because a whole H/14 would take 2.5 GB of memory.
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
    """Collects a `LayerCosts` for each layer call in a model and its nested models."""

    def __init__(self, image_size):
        self.image_size, self.rows, self.seen = image_size, [], set()

    def new_parameters(self, weights):
        """Returns the number of parameters in the weights that no earlier row has counted."""
        new = {id(w): math.prod(w.shape) for w in weights if id(w) not in self.seen}
        self.seen.update(new)
        return sum(new.values())

    def walk(self, model, inputs, prefix):
        """Adds the `LayerCosts` of a model's layers; returns the model's outputs as a list of `keras.KerasTensor`s."""
        return replay(model, keras.tree.flatten(inputs), functools.partial(self.call, prefix))

    def call(self, prefix, operation, *args, **kwargs):
        """Adds the `LayerCosts` of one layer call; returns the layer's outputs."""
        name, kind = prefix + operation.name, type(operation).__name__
        if is_graph(operation):
            return self.walk(operation, args[0] if args else kwargs["inputs"], f"{name}/")
        if isinstance(operation, keras.layers.Dense):
            # Keras does not check the width of the input in shape inference. Compare the width with the input spec, not
            # with the kernel, because a packed kernel of a quantized layer has another shape.
            wants = (getattr(operation.input_spec, "axes", None) or {}).get(-1)
            width = keras.tree.flatten((args, kwargs))[0].shape[-1]
            if wants not in (None, width):
                raise ValueError(
                    f"Invalid value received for argument `image_size`. Expected a size for which the layer {name!r} "
                    f"receives {wants} features, the width of its weights. Received: {self.image_size}, for which "
                    f"{name!r} receives {width}"
                )
        # PatchDropout keeps all patches at inference, but its output spec has an unknown number of tokens.
        dropout = isinstance(operation, PatchDropout)
        outputs = args[0] if dropout else operation.compute_output_spec(*args, **kwargs)
        first = keras.tree.flatten(outputs)[0]
        shape = tuple(first.shape[1:])
        if None in shape:
            raise ValueError(
                "Invalid value received for argument `model`. Expected layers whose output shape follows from the "
                f"input shape. Received: {name!r}, a {kind}, which gives {first.shape}"
            )
        found = costs.operation_steps(operation, args, kwargs, first)
        width = np.dtype(getattr(operation, "compute_dtype", first.dtype)).itemsize
        steps = [LayerCosts(f"{name}/{step}", "", (), None, products, size * width) for step, products, size in found]
        parameters = self.new_parameters(getattr(operation, "weights", ()))
        size = sum(step.activation_bytes for step in steps)
        self.rows.append(
            LayerCosts(name, kind, shape, parameters, costs.total(found), size, tuple(steps[1:] and steps))
        )
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
