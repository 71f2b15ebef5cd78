"""Gradient checkpointing: activations are recomputed for the gradient instead of stored."""

import keras

ON_TORCH = keras.backend.backend() == "torch"


def recompute(function, tensor, weights, dropouts):
    """Returns `function(tensor)`, recomputed for the gradient; it reads `weights` and calls each of `dropouts` once."""
    # keras.remat would draw new dropout masks when recomputing, and leak the seeds' state on JAX. It restores only
    # PyTorch's generator, which layers without a seed use on PyTorch.
    seeded = [layer for layer in dropouts if layer.rate and not (ON_TORCH and layer.seed is None)]
    states = [(layer.seed_generator.state, layer.seed_generator.next()) for layer in seeded]

    def run(tensor, *values):
        with keras.StatelessScope([*zip(weights, values, strict=True), *states]):
            return function(tensor)

    # TensorFlow has no gradient for captured tensors, and in eager mode doubles the gradient of captured variables.
    return keras.remat(run)(tensor, *(weight.value for weight in weights))
