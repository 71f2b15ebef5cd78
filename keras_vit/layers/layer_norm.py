import keras

from keras_vit.layers import kernels


@keras.saving.register_keras_serializable(package="keras_vit")
class LayerNorm(keras.layers.LayerNormalization):
    """Keras' layer normalization, but without copies in float32 of half-precision inputs on a GPU with PyTorch.

    On GPUs, PyTorch's kernel computes in float32 and rounds only its output. On CPUs, it also rounds the mean.
    """

    def call(self, inputs):
        if keras.backend.backend() != "torch" or self.axis != [-1] or isinstance(inputs, keras.KerasTensor):
            return super().call(inputs)
        if inputs.device.type == "cpu" and self.compute_dtype != "float32":
            return super().call(inputs)
        return kernels.layer_norm(inputs, self.gamma, self.beta, self.epsilon)
