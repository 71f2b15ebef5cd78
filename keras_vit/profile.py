import dataclasses
import math
import re

import keras

from keras_vit import arguments
from keras_vit.layer_costs import einsum_output, features_of, parts_of
from keras_vit.layers import PatchDropout
from keras_vit.models.graph import is_graph, replay
from keras_vit.models.vit import ViT
from keras_vit.text_table import text_table
from keras_vit.variants import decode_variant

# Parameters in millions. B, L, H: the ViT paper (arXiv 2010.11929), table 1, which says one number for all patch sizes;
# Ti, S: DeiT (arXiv 2012.12877), table 1.
PAPER_PARAMETERS = {"Ti": 5, "S": 22, "B": 86, "L": 307, "H": 632}
PAPER_VARIANTS = ("Ti/16", "S/16", "S/32", "B/16", "B/32", "L/16", "L/32", "H/14")


@dataclasses.dataclass(frozen=True)
class Row:
    """What one layer of a model costs for one image.

    Args:
        name: String, the layer's path in the model, or a step's within the layer.
        kind: String, its class.
        output_shape: Its first output's, without the batch.
        parameters: Int, the numbers in its weights; 0 where an earlier row has them.
        multiply_adds: Int, or None where they are not counted.
        activation_bytes: Int.
        steps: The rows of the layer's steps, where it has several.
    """

    name: str
    kind: str
    output_shape: tuple
    parameters: int
    multiply_adds: int | None
    activation_bytes: int
    steps: tuple = ()


@dataclasses.dataclass(frozen=True)
class Profile:
    """What a model costs for one image. `print(profile)` shows a row a layer and the totals.

    Args:
        name: String, the model's.
        input_shapes: The inputs' shapes, without the batch.
        rows: A `Row` for each call of a layer, in the order of the graph.
    """

    name: str
    input_shapes: tuple
    rows: tuple

    @property
    def parameters(self):
        """The numbers in all weights."""
        return sum(row.parameters for row in self.rows)

    @property
    def multiply_adds(self):
        """The multiply-adds of an inference, without the layers in `not_counted`; twice as many FLOPs."""
        return sum(row.multiply_adds or 0 for row in self.rows)

    @property
    def activation_bytes(self):
        """The bytes of what all layers and their steps give out, about what training keeps for the way back."""
        return sum(row.activation_bytes for row in self.rows)

    @property
    def not_counted(self):
        """The names of the layers whose multiply-adds are not known."""
        return [row.name for row in self.rows if row.multiply_adds is None]

    def table(self, steps=False):
        """Writes the rows as text.

        Args:
            steps: Bool, whether to show the steps of each layer too.

        Returns:
            String.

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
    """Counts a model's parameters, multiply-adds and activation memory, for each layer and in all.

    Nothing is computed: the counts follow from the layers' shapes, for one image at inference. No weight is allocated
    and the model stays as it is.

    Multiply-adds are those of matrix products and convolutions: dense layers, convolutions, patch embeddings, and in
    attention both the projections and the products with keys and values. Biases, norms, activations, pooling and
    additions are not counted, as is usual; nor is what is done once for all images of a batch, as resizing positions or
    joining LoRA's matrices. A layer of a kind that is not known, as one of your own, is not taken for
    free: it is named in `not_counted`, and its `multiply_adds` is None.

    Activation memory is that of what all layers and the steps inside blocks give out, in their compute dtypes: about
    what training keeps for one image, within 15% of what PyTorch keeps of ViTs, hybrids and BiT. Attention weights are
    among it, which a fused kernel does not keep.

    Args:
        model: A functional or Sequential `keras.Model`, of this package or not, with models inside or not.
        image_size: Int, or (height, width), in pixels, of the inputs of rank 4. None takes the model's own, and must
            not be where the model takes any size. Of a model of a fixed size other sizes are counted as well, with the
            parameters that it has.

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
    left = [w for w in model.weights if id(w) not in counter.seen]
    if left:
        counter.rows.append(Row("other weights", "", (), counter.parameters_of(left), 0, 0))
    return Profile(model.name, tuple(tuple(x.shape[1:]) for x in inputs), tuple(counter.rows))


def paper_table(image_size=224):
    """Writes the costs of the papers' models beside the papers' own numbers of parameters.

    The models have the 1,000 classes of ImageNet. The paper gives one number for all patch sizes: its 86 million are
    B/16's, its 307 million L/32's.

    Args:
        image_size: Int, or (height, width), in pixels.

    Returns:
        String.

    Example:

    >>> print(paper_table().splitlines()[4])
    B/16            86.57                86              17.56            155.50
    """
    rows = []
    for variant in PAPER_VARIANTS:
        # All blocks are alike, so one is built and counted as many times as there are: H/14 has 2.5 GB.
        size, _, _ = decode_variant(variant)
        costs = profile(ViT(variant, image_size=image_size, num_layers=1))
        (block,) = (row for row in costs.rows if row.kind == "TransformerBlock")
        more = size.num_layers - 1
        rows.append(
            [
                variant,
                (costs.parameters + more * block.parameters) / 1e6,
                PAPER_PARAMETERS[variant.split("/")[0]],
                (costs.multiply_adds + more * block.multiply_adds) / 1e9,
                (costs.activation_bytes + more * block.activation_bytes) / 1e6,
            ]
        )
    columns = ["model", "parameters (M)", "in the paper (M)", "multiply-adds (G)", "activations (MB)"]
    return text_table(columns, rows, decimals=2)


class _Counter:
    """Collects the rows of a graph, model by model."""

    def __init__(self, image_size=None):
        self.image_size, self.rows, self.seen = image_size, [], set()

    def parameters_of(self, weights):
        """The numbers in those weights that were not met before."""
        new = {id(w): math.prod(w.shape) for w in weights if id(w) not in self.seen}
        self.seen.update(new)
        return sum(new.values())

    def check_dense(self, layer, name, inputs):
        """Checks that a dense layer's weights fit its input, which Keras does not when it tells the output's shape."""
        wants = features_of(layer)
        got = inputs[0].shape[-1] if wants else None
        if wants != got:
            raise ValueError(
                f"Invalid value received for argument `image_size`. Expected a size whose images give {name!r} {wants} "
                f"features, for which it has weights. Received: {self.image_size}, of which {name!r} gets {got}"
            )

    def walk(self, model, inputs, prefix):
        """Adds the rows of a model's layers. Returns the model's outputs, a list of `keras.KerasTensor`s."""

        def call(operation, *args, **kwargs):
            return self.call(operation, args, kwargs, prefix)

        return replay(model, keras.tree.flatten(inputs), call)

    def call(self, operation, args, kwargs, prefix):
        """Adds the rows of one call. Returns its outputs."""
        name = prefix + operation.name
        if is_graph(operation):
            return self.walk(operation, args[0] if args else kwargs["inputs"], f"{name}/")
        self.check_dense(operation, name, keras.tree.flatten((args, kwargs)))
        outputs = _outputs(operation, args, kwargs)
        inputs = {
            key: tuple(x.shape[1:])
            for key, x in (*enumerate(_tensors(args)), *kwargs.items())
            if isinstance(x, keras.KerasTensor)
        }
        if not args:
            inputs[0] = next(iter(inputs.values()), ())
        first = keras.tree.flatten(outputs)[0]
        shape = tuple(first.shape[1:])
        if None in shape:
            raise ValueError(
                "Invalid value received for argument `model`. Expected layers whose output shape follows from that of "
                f"their input. Received: {name!r}, a {type(operation).__name__}, which gives {first.shape}"
            )
        parts = parts_of(operation, inputs, shape)
        width = _bytes(getattr(operation, "compute_dtype", first.dtype))
        kind = type(operation).__name__
        steps = tuple(
            Row(f"{name}/{part.name}", "", (), None, part.multiply_adds, part.activations * width) for part in parts
        )
        products = [part.multiply_adds for part in parts]
        self.rows.append(
            Row(
                name=name,
                kind=kind,
                output_shape=shape,
                parameters=self.parameters_of(getattr(operation, "weights", ())),
                multiply_adds=None if None in products else sum(products),
                activation_bytes=sum(step.activation_bytes for step in steps),
                steps=steps if len(steps) > 1 else (),
            )
        )
        return outputs


def _outputs(operation, args, kwargs):
    if isinstance(operation, PatchDropout):
        # It drops nothing at inference, which its own output shape leaves open.
        return args[0]
    outputs = operation.compute_output_spec(*args, **kwargs)
    if isinstance(operation, keras.layers.EinsumDense):
        (x,) = args or kwargs.values()
        return keras.KerasTensor((1, *einsum_output(operation, tuple(x.shape[1:]))), dtype=outputs.dtype)
    return outputs


def _tensors(args):
    # A merging layer has one argument, a list.
    return args[0] if len(args) == 1 and isinstance(args[0], (list, tuple)) else args


def _bytes(dtype):
    """The bytes of a number, by the name of its kind: "bfloat16" has two."""
    digits = re.search(r"\d+", str(dtype))
    return int(digits[0]) // 8 if digits else 1


def _cells(row, indent=""):
    return [
        indent + row.name,
        row.kind,
        " x ".join(map(str, row.output_shape)),
        row.parameters,
        None if row.multiply_adds is None else row.multiply_adds / 1e6,
        row.activation_bytes / 1e6,
    ]
