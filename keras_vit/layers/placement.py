import keras


def with_sharding(tensor, name):
    """Splits a tensor over the devices by the layout for a name.

    Returns the tensor unchanged if there is no layout, or if a split side is not divisible by its mesh axis.
    """
    layout = active_layout(name)
    if layout is None:
        return tensor
    sizes = dict(zip(layout.device_mesh.axis_names, layout.device_mesh.shape, strict=True))
    if any(axis and side % sizes[axis] for axis, side in zip(layout.axes, tensor.shape, strict=True) if side):
        return tensor
    return keras.distribution.distribute_tensor(tensor, layout)


def active_layout(name):
    """Returns the `keras.distribution.TensorLayout` of a name in the active distribution, or None."""
    distribution = keras.distribution.distribution()
    return None if distribution is None else distribution.get_tensor_layout(name)
