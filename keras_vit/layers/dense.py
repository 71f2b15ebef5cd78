import keras
import numpy as np
from keras import ops

from keras_vit.layers import kernels

# Keras saves the weights of a layer under numbers, such as "0". `Dense` also saves its LoRA factors and their scale,
# under the names below.
_FACTORS, _SCALE = ("lora_kernel_a", "lora_kernel_b"), "lora_scale"


@keras.saving.register_keras_serializable(package="keras_vit")
class Dense(keras.layers.Dense):
    """Computes the same as `keras.layers.Dense`, but faster, and saves LoRA factors separately from the kernel."""

    @property
    def dtype_policy(self):
        """The dtype policy of this layer. If it was given as a `DTypePolicyMap`, the map's entry for this layer."""
        policy = super().dtype_policy
        is_map = isinstance(policy, keras.dtype_policies.DTypePolicyMap)
        return policy[self.path] if is_map and self.path else policy

    @dtype_policy.setter
    def dtype_policy(self, value):
        keras.layers.Dense.dtype_policy.fset(self, value)

    def call(self, inputs, training=None):
        x = kernels.dense(inputs, self.kernel, self.bias, self.compute_dtype)
        return x if self.activation is None else kernels.activate(x, self.activation)

    def build(self, input_shape):
        alpha = self.lora_alpha
        super().build(input_shape)
        # If the config enables LoRA, Keras' `build` sets alpha to the rank, so restore the alpha of the config.
        self.lora_alpha = alpha

    # Save the LoRA factors too. Keras saves only the sum of kernel and LoRA, rounded to the kernel's precision. When
    # Keras loads such a file, it sets both LoRA factors to zero. The gradients of both factors are then zero too, so
    # LoRA could not be trained further.
    def save_own_variables(self, store):
        enabled = self.lora_enabled
        self.lora_enabled = False
        try:
            super().save_own_variables(store)
        finally:
            self.lora_enabled = enabled
        if enabled:
            for name in _FACTORS:
                store[name] = ops.convert_to_numpy(getattr(self, name))
            store[_SCALE] = np.float32(self.lora_alpha / self.lora_rank)

    def load_own_variables(self, store):
        saved = {name: store[name] for name in list(store.keys())}
        lora = {name: np.asarray(saved.pop(name)) for name in (*_FACTORS, _SCALE) if name in saved}
        if lora and not self.lora_enabled and self.quantization_mode:
            raise ValueError(
                f"Expected a layer with LoRA, or a layer that is not quantized, because the weights contain LoRA. "
                f"Received: layer {self.name!r} without LoRA, quantized to {self.quantization_mode!r}. Call "
                f"`enable_lora` first."
            )
        factor = ops.copy(self.lora_kernel_a) if self.lora_enabled else None
        super().load_own_variables(saved)
        if self.lora_enabled:
            self.lora_kernel_a.assign(lora.get("lora_kernel_a", factor))
            self.lora_kernel_b.assign(lora.get("lora_kernel_b", self.lora_kernel_b))
            scale = np.float32(self.lora_alpha / self.lora_rank)
            if lora.get(_SCALE, scale) != scale:
                # This layer multiplies the factors by another scale than the layer that was saved.
                self.lora_kernel_b.assign(self.lora_kernel_b * float(lora[_SCALE] / scale))
        elif lora:
            # On GPUs, JAX and TensorFlow would round the factors to TensorFloat32, so use NumPy.
            update = np.matmul(*(lora[name].astype("float32") for name in _FACTORS)) * np.float32(lora[_SCALE])
            self.kernel.assign(ops.add(self.kernel, ops.cast(update, self.kernel.dtype)))

    def quantize(self, mode=None, type_check=True, **kwargs):
        # Keras refuses to quantize subclasses of Dense, because their `call` may differ. Allow it for this class only.
        return super().quantize(mode, type_check=type_check and type(self) is not Dense, **kwargs)
