"""How variables and images are split over devices: layouts for `keras.distribution`, on JAX."""

import math
import re
from collections.abc import Sequence

import keras

from keras_vit import arguments

DATA, MODEL = "data", "model"
# Variables of the blocks by path, with the mesh axis of each side. Columns of the first product and rows of the second
# are split, so that only the result of the second is summed over the devices.
_TENSOR = {
    r".*\battention/qkv/kernel": (None, MODEL),
    r".*\battention/qkv/bias": (MODEL,),
    r".*\battention/out/kernel": (MODEL, None),
    r".*\bmlp/dense_1/kernel": (None, MODEL),
    r".*\bmlp/dense_1/bias": (MODEL,),
    r".*\bmlp/dense_2/kernel": (MODEL, None),
    r".*\battention/(query|key|value)/kernel": (None, MODEL, None),
    r".*\battention/(query|key|value)/bias": (MODEL, None),
    r".*\battention/attention_output/kernel": (MODEL, None, None),
    # Tensors inside a block, not variables: see `layers.placement`.
    "heads of a kernel": (None, None, MODEL, None),
    "heads of tokens": (None, DATA, MODEL, None, None),
    r".*\bblock_\d+/mlp/dense_1/output": (DATA, None, MODEL),
}
# Outputs that stay where their images are. Otherwise XLA may send these, which grow with the batch, to the parts of a
# variable instead of the parts to them.
_OUTPUTS = re.compile(r"(.*/)?(patch_embedding|qkv|out|dense_1|dense_2|block_\d+|head)/output")


def device_mesh(model: int = 1, devices: Sequence[str] | None = None) -> keras.distribution.DeviceMesh:
    """Arranges devices in a mesh with the axes "data" and "model".

    Args:
        model: Int of at least 1, the devices that share one copy of the model's blocks.
        devices: Names such as "gpu:0". None: all that JAX has, those of other processes included.

    Raises:
        ValueError: If `model` does not divide the number of devices.
        RuntimeError: On another backend than JAX.

    Example:

    >>> keras_vit.distribution.device_mesh().axis_names  # doctest: +SKIP
    ['data', 'model']
    """
    if keras.backend.backend() != "jax":
        raise RuntimeError(
            "Expected the JAX backend, where Keras splits arrays over devices (KERAS_BACKEND=jax). "
            f"Received: {keras.backend.backend()}"
        )
    devices = list(keras.distribution.list_devices() if devices is None else devices)
    if len(devices) % arguments.positive_int("model", model):
        raise arguments.invalid("model", f"a divisor of {len(devices)}, the number of devices", model)
    return keras.distribution.DeviceMesh((len(devices) // model, model), [DATA, MODEL], devices)


def layout_map(mesh: keras.distribution.DeviceMesh) -> keras.distribution.LayoutMap:
    """Returns the `keras.distribution.LayoutMap` of tensor parallelism, for all families of this package.

    The axis "model" splits the attention heads and the hidden units of the MLPs; embeddings, norms, convolutions and
    heads of classes are on each device. `tensor_parallel` uses it.

    Args:
        mesh: A `keras.distribution.DeviceMesh` with the axes "data" and "model", such as from `device_mesh`.

    Raises:
        ValueError: If the mesh has other axes.

    Reference: [arXiv 1909.08053](https://arxiv.org/abs/1909.08053), section 3.
    """
    if list(mesh.axis_names) != [DATA, MODEL]:
        raise arguments.invalid("mesh", f"a mesh with the axes {DATA!r} and {MODEL!r}", mesh.axis_names)
    layouts = keras.distribution.LayoutMap(mesh)
    for path, axes in _TENSOR.items():
        layouts[path] = axes
    return layouts


class Layouts(keras.distribution.ModelParallel):
    """A `keras.distribution.ModelParallel` that fits its layouts to the shapes of the variables.

    A side that its mesh axis does not divide stays whole. Each variable of at least `min_size` numbers is also split
    over "data", by the longest of its other sides that this axis divides. Use `data_parallel`, `fsdp` or
    `tensor_parallel`.
    """

    def __init__(self, layouts, min_size=None, auto_shard_dataset=True):
        super().__init__(layout_map=layouts, batch_dim_name=DATA, auto_shard_dataset=auto_shard_dataset)
        self.min_size = arguments.optional(arguments.positive_int, "min_size", min_size)

    def get_variable_layout(self, variable):
        layout = super().get_variable_layout(variable)
        if not isinstance(layout, keras.distribution.TensorLayout):
            # A variable of an optimizer, whose layout older versions of Keras copy as JAX's.
            return layout
        sizes = dict(zip(self.device_mesh.axis_names, self.device_mesh.shape, strict=True))
        shape = variable.shape
        axes = [
            axis if axis is None or side % sizes[axis] == 0 else None
            for axis, side in zip(layout.axes, shape, strict=True)
        ]
        if self.min_size is not None and DATA not in axes and math.prod(shape) >= self.min_size:
            free = [i for i, axis in enumerate(axes) if axis is None and shape[i] % sizes[DATA] == 0]
            if free:
                axes[max(free, key=lambda i: shape[i])] = DATA
        return keras.distribution.TensorLayout(axes, self.device_mesh)

    def get_tensor_layout(self, path):
        layout = super().get_tensor_layout(path)
        if layout is None and _OUTPUTS.fullmatch(path):
            return keras.distribution.TensorLayout([DATA], self.device_mesh)
        return layout


def data_parallel(mesh: keras.distribution.DeviceMesh | None = None, *, auto_shard_dataset: bool = True) -> Layouts:
    """Returns a distribution in which each device has the whole model and a part of each batch.

    Args:
        mesh: From `device_mesh`; None for all devices.
        auto_shard_dataset: Bool, whether Keras splits a tf.data.Dataset among several processes; False if each process
            has its own part already.

    Raises:
        RuntimeError: On another backend than JAX.

    Example:

    >>> keras.distribution.set_distribution(keras_vit.distribution.data_parallel())  # doctest: +SKIP
    >>> model = keras_vit.ViTB16(num_classes=10)  # doctest: +SKIP
    """
    mesh = device_mesh() if mesh is None else mesh
    return Layouts(keras.distribution.LayoutMap(mesh), auto_shard_dataset=auto_shard_dataset)


def tensor_parallel(mesh: keras.distribution.DeviceMesh, *, auto_shard_dataset: bool = True) -> Layouts:
    """Returns a distribution in which the axis "model" splits the blocks by `layout_map`, and "data" each batch.

    Args:
        mesh: From `device_mesh(model=n)`; n devices share one copy of the blocks.
        auto_shard_dataset: As in `data_parallel`.

    Raises:
        ValueError: If the mesh has other axes.

    Reference: [arXiv 1909.08053](https://arxiv.org/abs/1909.08053), section 3.
    """
    return Layouts(layout_map(mesh), auto_shard_dataset=auto_shard_dataset)


def fsdp(
    mesh: keras.distribution.DeviceMesh | None = None,
    min_size: int = 2**16,
    *,
    layouts: keras.distribution.LayoutMap | None = None,
    auto_shard_dataset: bool = True,
) -> Layouts:
    """Returns a distribution in which each device stores a part of each large variable, and of its optimizer state.

    A variable is split over the axis "data" by the longest side that this axis divides; it is whole only while it is
    used. Each device still trains on its part of the batch.

    Args:
        mesh: From `device_mesh`; None for all devices.
        min_size: Int of at least 1, the numbers in a variable that is worth splitting.
        layouts: A `keras.distribution.LayoutMap` to apply first, such as `layout_map(mesh)`.
        auto_shard_dataset: As in `data_parallel`.

    Raises:
        RuntimeError: On another backend than JAX.

    Reference: [arXiv 1910.02054](https://arxiv.org/abs/1910.02054), stage 3.
    """
    mesh = device_mesh() if mesh is None else mesh
    layouts = keras.distribution.LayoutMap(mesh) if layouts is None else layouts
    return Layouts(layouts, min_size, auto_shard_dataset)
