"""Splits variables and images over devices, with `keras.distribution` on JAX."""

import contextlib
import math
import re
from collections.abc import Sequence
from typing import NamedTuple

import keras

from keras_vit import arguments
from keras_vit.distribution.processes import num_processes, process_id

KINDS = ("data", "fsdp", "tensor", "fsdp+tensor")
# Names of the mesh axis that splits a batch. This package uses "data", and the documentation of Keras uses "batch".
_BATCH_NAMES = ("data", "batch")
# The kind "fsdp" does not split variables with fewer values than this.
_MIN_SIZE = 2**16
# {regular expression of the path of a variable in a block: the mesh axis that splits each of its dimensions}. The first
# kernel of an MLP or attention layer is split by columns and the second by rows, so that only the second product is
# summed over the devices.
_SPLIT_PATHS = {
    r".*\battention/qkv/kernel": (None, "model"),
    r".*\battention/qkv/bias": ("model",),
    r".*\battention/out/kernel": ("model", None),
    r".*\bmlp/dense_1/kernel": (None, "model"),
    r".*\bmlp/dense_1/bias": ("model",),
    r".*\bmlp/dense_2/kernel": ("model", None),
    r".*\battention/(query|key|value)/kernel": (None, "model", None),
    r".*\battention/(query|key|value)/bias": ("model", None),
    r".*\battention/attention_output/kernel": ("model", None, None),
    # The paths below belong to tensors inside a block, not to variables. See `layers.attention`.
    "heads of a kernel": (None, None, "model", None),
    "heads of tokens": ("data", None, None, "model", None),
    r".*\bblock_\d+/mlp/dense_1/output": ("data", None, "model"),
}
# Layer outputs that are split like the batch, so that each output stays on the device of its image. Without this
# layout, XLA may keep the parts of a variable in place and send the outputs to them. Outputs grow with the batch, so
# this may send more data than gathering the variable.
_OUTPUTS = re.compile(r"(.*/)?(patch_embedding|qkv|out|dense_1|dense_2|block_\d+|head)/output")


def device_mesh(model: int = 1, devices: Sequence[str] | None = None) -> keras.distribution.DeviceMesh:
    """Arranges devices in a mesh with the axes "data" and "model".

    Args:
        model: Int of at least 1, the number of devices that share one copy of the model's blocks.
        devices: List of device names such as "gpu:0". None uses all devices of all processes.

    Raises:
        ValueError: If `model` does not divide the number of devices.
        RuntimeError: On another backend than JAX.

    Example:

    >>> keras_vit.distribution.device_mesh().axis_names  # doctest: +SKIP
    ['data', 'model']
    """
    arguments.positive_int("model", model)
    arguments.optional(arguments.several, "devices", devices)
    if keras.backend.backend() != "jax":
        expected = "Expected the JAX backend, where Keras splits arrays over devices (KERAS_BACKEND=jax)"
        raise RuntimeError(f"{expected}. Received: {keras.backend.backend()}")
    devices = list(keras.distribution.list_devices() if devices is None else devices)
    if len(devices) % model:
        raise arguments.invalid("model", f"a divisor of {len(devices)}, the number of devices", model)
    return keras.distribution.DeviceMesh((len(devices) // model, model), ["data", "model"], devices)


def layout_map(mesh: keras.distribution.DeviceMesh) -> keras.distribution.LayoutMap:
    """Returns a `keras.distribution.LayoutMap` for tensor parallelism, for all models of this package.

    The attention heads and the hidden units of the MLPs are split over the devices. Embeddings, norms, convolutions and
    classification heads are not split.

    Args:
        mesh: A `keras.distribution.DeviceMesh` with two axes. The axis named "data" or "batch" splits the batch. If no
            axis has such a name, the first axis splits the batch. The remaining axis splits the model. A mesh with
            another number of axes raises a ValueError.

    Reference: [arXiv 1909.08053](https://arxiv.org/abs/1909.08053), section 3.
    """
    if len(arguments.instance("mesh", mesh, keras.distribution.DeviceMesh).axis_names) != 2:
        raise arguments.invalid("mesh", 'a mesh with two axes, such as "data" and "model"', mesh.axis_names)
    data = batch_axis(mesh)
    (model,) = (name for name in mesh.axis_names if name != data)
    layouts, names = keras.distribution.LayoutMap(mesh), {"data": data, "model": model, None: None}
    for path, axes in _SPLIT_PATHS.items():
        layouts[path] = tuple(names[axis] for axis in axes)
    return layouts


def batch_axis(mesh):
    """Returns the name of the mesh axis that splits a batch."""
    arguments.instance("mesh", mesh, keras.distribution.DeviceMesh)
    return next((name for name in mesh.axis_names if name in _BATCH_NAMES), mesh.axis_names[0])


def batch_parts():
    """Returns the number of parts into which the active `keras.distribution` splits each batch."""
    distribution = keras.distribution.distribution()
    if distribution is None or distribution.batch_dim_name is None:
        return 1
    mesh = distribution.device_mesh
    return mesh.shape[mesh.axis_names.index(distribution.batch_dim_name)]


class Layouts(keras.distribution.ModelParallel):
    """A `keras.distribution.ModelParallel` that only splits dimensions into equal parts.

    If `min_size` is given, a variable of at least `min_size` values is also split over the batch axis. This splits the
    longest dimension that is not split yet.
    """

    def __init__(self, layouts, min_size=None, auto_shard_dataset=True):
        arguments.boolean("auto_shard_dataset", auto_shard_dataset)
        arguments.instance("layouts", layouts, keras.distribution.LayoutMap)
        super().__init__(
            layout_map=layouts, batch_dim_name=batch_axis(layouts.device_mesh), auto_shard_dataset=auto_shard_dataset
        )
        self.min_size = min_size

    def get_variable_layout(self, variable):
        layout = super().get_variable_layout(variable)
        if not isinstance(layout, keras.distribution.TensorLayout):
            # In older versions of Keras, the layout of an optimizer's variable is already an object of JAX.
            return layout
        sizes = dict(zip(self.device_mesh.axis_names, self.device_mesh.shape, strict=True))
        shape = variable.shape
        pairs = zip(layout.axes, shape, strict=True)
        axes = [axis if axis is None or side % sizes[axis] == 0 else None for axis, side in pairs]
        data = self.batch_dim_name
        if self.min_size is not None and data not in axes and math.prod(shape) >= self.min_size:
            free = [i for i, axis in enumerate(axes) if axis is None and shape[i] % sizes[data] == 0]
            if free:
                axes[max(free, key=lambda i: shape[i])] = data
        return keras.distribution.TensorLayout(axes, self.device_mesh)

    def get_tensor_layout(self, path):
        layout = super().get_tensor_layout(path)
        if layout is None and _OUTPUTS.fullmatch(path):
            return keras.distribution.TensorLayout([self.batch_dim_name], self.device_mesh)
        return layout


def data_parallel(mesh: keras.distribution.DeviceMesh | None = None, *, auto_shard_dataset: bool = True) -> Layouts:
    """Returns a distribution in which each device has the whole model and a part of each batch, on JAX.

    Args:
        mesh: A `keras.distribution.DeviceMesh`, such as the result of `device_mesh`. The axis named "data" or "batch"
            splits the batch. If no axis has such a name, the first axis splits the batch. None uses all devices.
        auto_shard_dataset: Bool. With True, Keras splits a `tf.data.Dataset` among several processes. Pass False if
            each process already reads a different part of the data.

    Raises:
        RuntimeError: On another backend than JAX.

    Example:
    >>> keras.distribution.set_distribution(keras_vit.distribution.data_parallel())  # doctest: +SKIP
    >>> model = keras_vit.ViTB16(num_classes=10)  # doctest: +SKIP
    """
    mesh = device_mesh() if mesh is None else mesh
    return Layouts(keras.distribution.LayoutMap(mesh), auto_shard_dataset=auto_shard_dataset)


def tensor_parallel(mesh: keras.distribution.DeviceMesh, *, auto_shard_dataset: bool = True) -> Layouts:
    """Returns a JAX distribution that divides the weights of each block between devices, as `layout_map` describes.

    Args:
        mesh: A mesh as for `layout_map`. With `device_mesh(model=n)`, n devices share one copy of the blocks.
        auto_shard_dataset: As in `data_parallel`.

    Raises:
        ValueError: If the mesh does not have two axes.

    Reference: [arXiv 1909.08053](https://arxiv.org/abs/1909.08053), section 3.
    """
    return Layouts(layout_map(mesh), auto_shard_dataset=auto_shard_dataset)


def fsdp(
    mesh: keras.distribution.DeviceMesh | None = None,
    min_size: int = _MIN_SIZE,
    *,
    layouts: keras.distribution.LayoutMap | None = None,
    auto_shard_dataset: bool = True,
) -> Layouts:
    """Returns a distribution in which each device stores a part of each large variable and of its optimizer state.

    Each device trains on its part of the batch. Variables are split over the mesh axis that splits the batch, along the
    longest dimension that can be split equally. The devices gather a whole variable only while they use it.

    Args:
        mesh, auto_shard_dataset: As in `data_parallel`.
        min_size: Int of at least 1. Variables with fewer values are not split.
        layouts: A `keras.distribution.LayoutMap`, such as `layout_map(mesh)` for tensor parallelism. Its splits are
            applied first, and FSDP then splits another dimension. None applies only FSDP.

    Raises:
        ValueError: If `layouts` was made for another mesh.
        RuntimeError: On another backend than JAX.

    Reference: [arXiv 1910.02054](https://arxiv.org/abs/1910.02054), stage 3.
    """
    if layouts is None:
        layouts = keras.distribution.LayoutMap(device_mesh() if mesh is None else mesh)
    split = Layouts(layouts, arguments.positive_int("min_size", min_size), auto_shard_dataset)
    mesh = split.device_mesh if mesh is None else arguments.instance("mesh", mesh, keras.distribution.DeviceMesh)
    given, made = ([*x.axis_names, *x.shape, *x.devices.flat] for x in (mesh, split.device_mesh))
    if given != made:
        raise arguments.invalid("layouts", f"layouts that were made for {mesh}", split.device_mesh)
    return split


class Split(NamedTuple):
    """Each batch is split into `parts`, one per copy of the model. This process reads one of `num_shards` shards."""

    parts: int = 1
    num_shards: int = 1
    shard_index: int = 0


@contextlib.contextmanager
def distributed(kind: str | None, model_devices: int | None = None):
    """Returns a context manager in which models are built and trained on several devices. It yields a `Split`.

    Args:
        kind: With "data", each device has the whole model and a part of each batch. "fsdp" is like "data", but each
            device stores only a part of each large variable. With "tensor", each group of `model_devices` devices
            shares one copy of the blocks. "fsdp+tensor" combines "fsdp" and "tensor". None uses one device.
        model_devices: Int, the number of devices that share one copy of the blocks. None uses all devices with "tensor"
            and 2 with "fsdp+tensor".

    JAX supports all kinds, on all devices of all processes. TensorFlow supports "data" on the devices of one machine,
    with `tf.distribute.MirroredStrategy`. PyTorch supports "data", with one device for each process.

    Raises:
        ValueError: If `kind` is unknown, or `model_devices` does not divide the number of devices.
        RuntimeError: If the backend does not support `kind`; the message names a backend that does.
    """
    if model_devices is not None and "tensor" not in str(kind):
        raise arguments.invalid("model_devices", f"None with distribution={kind!r}", model_devices)
    if kind is None:
        if num_processes() > 1:
            raise arguments.invalid("distribution", f"one of {', '.join(KINDS)} for several processes", kind)
        yield Split()
        return
    arguments.choice("kind", kind, KINDS)
    backend = keras.backend.backend()
    if kind != "data" and backend != "jax":
        expected = f"Expected the JAX backend (KERAS_BACKEND=jax) for distribution={kind!r}"
        raise RuntimeError(f"{expected}. Received: {backend}, which supports only 'data'.")
    if backend == "tensorflow":
        import tensorflow as tf  # On TensorFlow, Keras 3 uses several devices only within the scope of a strategy.

        strategy = tf.distribute.MirroredStrategy()
        with strategy.scope():
            yield Split(strategy.num_replicas_in_sync)
    elif backend == "torch":
        yield Split(num_processes(), num_processes(), process_id())
    else:
        devices = len(keras.distribution.list_devices())
        if model_devices is None:
            model_devices = {"tensor": devices, "fsdp+tensor": 2}.get(kind, 1)
        if devices % arguments.positive_int("model_devices", model_devices):
            raise arguments.invalid("model_devices", f"a divisor of {devices}, the number of devices", model_devices)
        mesh = device_mesh(model_devices)
        layouts = layout_map(mesh) if "tensor" in kind else keras.distribution.LayoutMap(mesh)
        # Keras need not split the dataset, because each process reads only its own part of the data.
        with Layouts(layouts, _MIN_SIZE if "fsdp" in kind else None, auto_shard_dataset=False).scope():
            parts = batch_parts()
            # If there are more processes than parts, several processes share one copy of the model. They read the same
            # shard.
            shards = min(num_processes(), parts)
            yield Split(parts, shards, process_id() * shards // num_processes())
