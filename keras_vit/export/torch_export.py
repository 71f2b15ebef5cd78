import os

import keras
import numpy as np

from keras_vit.export import parity
from keras_vit.export import precision as precisions


def torch_export(
    model: keras.Model,
    path: str | os.PathLike,
    *,
    precision: str = "float32",
    images: np.ndarray | None = None,
    labels: np.ndarray | None = None,
    tolerance: float | None = None,
    overwrite: bool = False,
    custom_module: str | os.PathLike | None = None,
) -> parity.ExportReport:
    """Writes a model as an exported program of PyTorch, which `torch.export.load` reads without Keras.

    A model of another backend, or on a GPU, is traced on PyTorch's CPU in a process of its own. The program takes one
    tensor, images as the model does, of any number, and in a model of any size of any size; it returns a tuple of the
    outputs. It is loaded and run, beside the model, before it is put in its place.

    Args:
        model: A `keras.Model` of one input.
        path: Path of the file, ending in ".pt2".
        precision: "float32", "float16", "bfloat16" or "int8", as `precision.with_precision` rounds: the weights are
            stored so, and computed with as the model does.
        images: Images as the model takes them, (batch, height, width, channels), to measure the change of the answers
            on; None for none.
        labels: Ints, (batch,), the classes of `images`, to measure the accuracy too; None for none.
        tolerance: Float, the largest difference allowed from the model of the same precision, in parts of the largest
            output or of 1, whichever is more. None takes 1e-4, and 5e-2 for a model that computes in bfloat16, 1e-2 in
            float16 or on a GPU.
        overwrite: Bool, whether to replace what is at `path`.
        custom_module: Name of a module, or path of a Python file, that defines the model's own layers, where the other
            process cannot find them.

    Returns:
        A `parity.ExportReport`; printed, it says the size, the difference and the change.

    Raises:
        ImportError: If torch is not installed.
        FileExistsError: If there is something at `path` and `overwrite` is False.
        ValueError: If an argument is out of its range, or the model has not one input.
        ParityError: If the file answers otherwise than the model; it is not written.
        RuntimeError: If the model cannot be exported.

    Example:

    >>> keras_vit.export.torch_export(model, "vit.pt2")  # doctest: +SKIP
    ExportReport(path=PosixPath('vit.pt2'), precision='float32', ...)

    Reference: [torch.export](https://docs.pytorch.org/docs/stable/export.html).
    """
    parity.require(("torch", "torch"))
    return parity.write_checked(
        model,
        path,
        write_file,
        run,
        backend="torch",
        suffix=".pt2",
        precision=precision,
        images=images,
        labels=labels,
        tolerance=tolerance,
        overwrite=overwrite,
        custom_module=custom_module,
    )


def write_file(model, path, precision):
    """Writes an exported program on the PyTorch backend; weights that a precision holds exactly are stored in it."""
    import torch

    torch.export.save(traced(model, precision if precision in ("float16", "bfloat16") else "float32"), os.fspath(path))


def traced(model, precision="float32"):
    """Traces a model of the PyTorch backend, with whatever sizes its input leaves open.

    Args:
        model: A `keras.Model`.
        precision: The weights are stored in it where it holds them exactly.

    Returns:
        A `torch.export.ExportedProgram` from images to a tuple of outputs.
    """
    import torch

    class Program(torch.nn.Module):
        """The model with its weights as buffers, and without what Keras does around a call."""

        def __init__(self):
            super().__init__()
            self.paths = []
            for i, variable in enumerate(model.variables):
                value = variable.value.detach()
                small = precisions.stored(value.numpy(), precision) if precision != "float32" else None
                self.register_buffer(f"weight_{i}", value if small is None else value.to(getattr(torch, precision)))

        def forward(self, images):
            weights = [getattr(self, f"weight_{i}") for i in range(len(model.variables))]
            values = [w.to(v.value.dtype) for w, v in zip(weights, model.variables, strict=True)]
            by_id = {id(v): value for v, value in zip(model.variables, values, strict=True)}
            outputs, _ = model.stateless_call(
                [by_id[id(v)] for v in model.trainable_variables],
                [by_id[id(v)] for v in model.non_trainable_variables],
                images,
                training=False,
            )
            return tuple(keras.tree.flatten(outputs))

    example = torch.from_numpy(parity.probes(model)[0])
    free = [axis for axis, side in enumerate(model.inputs[0].shape) if side is None]
    with torch.no_grad():
        return torch.export.export(
            Program().eval(), (example,), dynamic_shapes=(dict.fromkeys(free, torch.export.Dim.DYNAMIC),)
        )


def run(path, batches, names):
    """Answers batches of images with an exported program, in a process that knows no Keras.

    A program's outputs have an order and no `names`.
    """
    import subprocess
    import sys
    import tempfile
    from pathlib import Path

    code = (
        "import sys, numpy, torch; path, folder, count = sys.argv[1:]; program = torch.export.load(path).module()\n"
        "for i in range(int(count)):\n"
        "    images = torch.from_numpy(numpy.load(f'{folder}/{i}.npy'))\n"
        "    with torch.no_grad():\n"
        "        outputs = [y.float().numpy() for y in program(images)]\n"
        "    numpy.savez(f'{folder}/{i}.npz', *outputs)\n"
    )
    with tempfile.TemporaryDirectory(prefix="keras_vit_") as folder:
        for i, batch in enumerate(batches):
            np.save(Path(folder, f"{i}.npy"), batch)
        environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "-1"}
        command = [sys.executable, "-P", "-c", code, os.fspath(path), folder, str(len(batches))]
        process = subprocess.run(command, capture_output=True, text=True, errors="replace", env=environment)
        if process.returncode:
            raise RuntimeError(f"The exported program does not run:\n{process.stderr.strip()[-4000:]}")
        answers = []
        for i in range(len(batches)):
            with np.load(Path(folder, f"{i}.npz")) as file:
                answers.append([file[f"arr_{k}"] for k in range(len(file.files))])
        return answers
