import keras
from keras import ops


def pad_sides(images, vertical, horizontal, value=0.0):
    """Pads images of (batch, height, width, channels) with `value`.

    `vertical` is the number of pixels (above, below), and `horizontal` is the number of pixels (left, right).
    """
    if keras.backend.backend() != "torch" or isinstance(images, keras.KerasTensor):
        return ops.pad(images, ((0, 0), vertical, horizontal, (0, 0)), constant_values=value)
    from torch.nn import functional

    # PyTorch cannot compile `ops.pad` in one graph, so call PyTorch's own function. It takes the padding of the last
    # axis first.
    return functional.pad(images, (0, 0, *horizontal, *vertical), value=value)


@keras.saving.register_keras_serializable(package="keras_vit")
class ZeroPadding2D(keras.layers.ZeroPadding2D):
    """`keras.layers.ZeroPadding2D` for images of (batch, height, width, channels).

    PyTorch can compile this layer in one graph with other layers, unlike Keras' own layer.
    """

    def __init__(self, padding, **kwargs):
        super().__init__(padding, **{"data_format": "channels_last", **kwargs})

    def call(self, images):
        return pad_sides(images, *self.padding)
