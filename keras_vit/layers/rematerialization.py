"""Gradient checkpointing: intermediate results are not kept, but recomputed for the gradient."""

import keras


def recompute(function, tensor, weights, dropouts):
    """Returns `function(tensor)`, recomputed for the gradient, where it reads `weights` and calls `dropouts` once each.

    `keras.remat` alone would draw other dropout the second time, and leak the state of the random seeds on JAX; so the
    seeds are drawn here, and the function reads its variables from a scope.
    """
    states = [(layer.seed_generator.state, layer.seed_generator.next()) for layer in dropouts if layer.rate]

    def run(tensor, *values):
        with keras.StatelessScope([*zip(weights, values, strict=True), *states]):
            return function(tensor)

    # As arguments, since TensorFlow passes no gradient to other tensors; and not as variables, whose gradients it would
    # count twice outside a graph.
    return keras.remat(run)(tensor, *(weight.value for weight in weights))
