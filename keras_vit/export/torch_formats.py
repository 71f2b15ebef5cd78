"""Writes and runs ONNX and torch.export files on PyTorch, and returns PyTorch modules."""

import os

import keras
import numpy as np

from keras_vit import arguments
from keras_vit.export import parity
from keras_vit.export.parity import stored


def torch_module(model: keras.Model):
    """Converts a model on PyTorch to a `torch.nn.Module` that computes its outputs without Keras.

    The module is the program that `torch_export` writes. It avoids Keras' overhead, which is about 15 % of the time of
    a Ti/16 on one image. It can be compiled with `torch.compile`. The module and the model share their weights, so a
    change of the model's weights changes the module.

    The module takes images on the model's device, (batch, height, width, channels), with any batch size, and any image
    size if the model allows it. It returns the model's output, or a tuple if the model has several outputs. `train()`
    has no effect. To save the module, use `torch_export`.

    Args:
        model: A `keras.Model` with one input, built on PyTorch; else a ValueError is raised.

    Example:
    >>> module = keras_vit.export.torch_module(model)  # doctest: +SKIP
    >>> with torch.inference_mode():  # doctest: +SKIP
    ...     logits = module(torch.zeros(1, 224, 224, 3, device=model.variables[0].value.device))
    """
    if keras.backend.backend() != "torch":
        received = f"{keras.backend.backend()!r}. `export.torch_export` writes a program on any backend"
        raise ValueError(f"Expected a model built on PyTorch. Received: {received}.")
    import torch

    class Inference(torch.nn.Module):
        """A traced program that is always in inference mode."""

        def __init__(self, program):
            super().__init__()
            self.program = program
            self.train(False)

        def forward(self, images):
            outputs = self.program(images)
            return outputs[0] if len(outputs) == 1 else outputs

        def train(self, mode=True):
            # Do not call the program's `train`, which raises an error.
            self.training = mode
            return self

    return Inference(_traced(arguments.model(model), "float32").module())


def write_torch_export(model, path, settings):
    """Writes an exported program. With float16 or bfloat16, weights are stored in this precision if they stay exact."""
    import torch

    precision = settings["precision"]
    torch.export.save(_traced(model, precision if precision != "int8" else "float32"), os.fspath(path))


def run_torch_export(path, batches, settings):
    """Yields the outputs of an exported program."""
    import torch

    program = torch.export.load(os.fspath(path)).module()
    for batch in batches:
        with torch.no_grad():
            yield [y.float().numpy() for y in program(torch.from_numpy(batch))]


def write_onnx(model, path, settings):
    """Writes an ONNX file. With float16 or bfloat16, weights are stored in this precision if they stay exact."""
    import torch

    options = {"input_names": ["images"], "output_names": settings["names"], "verbose": False}
    program = torch.onnx.export(_traced(model, "float32"), dynamo=True, **options)
    if settings["precision"] in ("float16", "bfloat16"):
        _shrink(program.model, settings["precision"])
    program.save(os.fspath(path))


def run_onnx(path, batches, settings):
    """Yields the outputs of an ONNX file in onnxruntime."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    # Log only errors: onnxruntime warns about each folded constant.
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(os.fspath(path), options, providers=["CPUExecutionProvider"])
    for batch in batches:
        yield [np.asarray(y, "float32") for y in session.run(settings["names"], {"images": batch})]


def _traced(model, precision):
    """Returns a `torch.export.ExportedProgram` that maps images to a tuple. Axes of any length stay dynamic."""
    import torch

    class Program(torch.nn.Module):
        """Runs the model. Each weight is a buffer, in `precision` if this does not change the weight's values."""

        def __init__(self):
            super().__init__()
            for i, variable in enumerate(model.variables):
                value = variable.value.detach()
                exact = precision != "float32" and stored(value.numpy(), precision) is not None
                self.register_buffer(f"weight_{i}", value.to(getattr(torch, precision)) if exact else value)

        def forward(self, images):
            values = {}
            for i, variable in enumerate(model.variables):
                values[id(variable)] = getattr(self, f"weight_{i}").to(variable.value.dtype)
            groups = model.trainable_variables, model.non_trainable_variables
            weights, others = ([values[id(variable)] for variable in group] for group in groups)
            outputs, _ = model.stateless_call(weights, others, images, training=False)
            return tuple(keras.tree.flatten(outputs))

    device = model.variables[0].value.device if model.variables else "cpu"
    example = torch.from_numpy(parity.probes(model)[0]).to(device)
    free = [axis for axis, side in enumerate(model.inputs[0].shape) if side is None]
    shapes = (dict.fromkeys(free, torch.export.Dim.DYNAMIC),)
    with torch.no_grad():
        # Keras converts tensors before each operation. The decompositions remove the conversions that have no effect.
        program = torch.export.export(Program().eval(), (example,), dynamic_shapes=shapes).run_decompositions({})
    graph = program.graph_module.graph
    for node in list(graph.nodes):
        # Remove the type checks of all tensors except the user's images.
        if "assert_tensor_metadata" in str(node.target) and node.args[0].name != "images":
            graph.erase_node(node)
    program.graph_module.recompile()
    return program


def _shrink(model, precision):
    """Stores the constants of an ONNX model in `precision` if they stay exact. Cast nodes convert them to float32."""
    import onnx_ir as ir

    dtype = {"float16": ir.DataType.FLOAT16, "bfloat16": ir.DataType.BFLOAT16}[precision]
    graph = model.graph
    for name, value in list(graph.initializers.items()):
        small = stored(value.const_value.numpy(), precision)
        if small is None:
            continue
        tensor = ir.tensor(small, dtype=dtype, name=f"{name}.{precision}")
        weight = ir.Value(name=tensor.name, shape=tensor.shape, type=ir.TensorType(tensor.dtype), const_value=tensor)
        cast = ir.node("Cast", [weight], {"to": ir.DataType.FLOAT}, name=f"{name}.cast")
        cast.outputs[0].name = f"{name}.float32"
        cast.outputs[0].shape, cast.outputs[0].type = value.shape, value.type
        value.replace_all_uses_with(cast.outputs[0])
        del graph.initializers[name]
        graph.register_initializer(weight)
        graph.insert_before(graph[0], cast)
