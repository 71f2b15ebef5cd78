import keras
from keras import ops

from keras_vit.layers import kernels


@keras.saving.register_keras_serializable(package="keras_vit")
class LayerNorm(keras.layers.LayerNormalization):
    """Layer normalization as in Keras. On a GPU with PyTorch, half-precision inputs are not copied to float32.

    PyTorch's kernel then computes in float32, but gamma, beta and the outputs are rounded to half precision. On CPUs,
    the kernel also rounds the mean, so Keras' code is used.
    """

    def call(self, inputs):
        is_usual = self.axis == [-1] and not self.rms_scaling
        if keras.backend.backend() != "torch" or not is_usual or isinstance(inputs, keras.KerasTensor):
            return super().call(inputs)
        if inputs.device.type == "cpu" and self.compute_dtype != "float32":
            return super().call(inputs)
        return ops.cast(kernels.layer_norm(inputs, self.gamma, self.beta, self.epsilon), self.compute_dtype)
