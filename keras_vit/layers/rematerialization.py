"""Gradient checkpointing: what a layer computes on its way is thrown away and, for the gradient, computed again."""

import keras


def recompute(function, tensor, weights, dropouts):
    """Calls a function of which the backward pass keeps the input alone and computes all between again.

    `keras.remat` by itself draws other dropout when it computes again, and on JAX leaks the state of the random seeds;
    so the seeds are drawn here, and the function reads all variables from a scope of its own.

    Args:
        function: Function of one tensor that returns float tensors.
        tensor: Its argument.
        weights: List of all variables that it reads.
        dropouts: List of the `keras.layers.Dropout` that it calls, each once.

    Returns:
        What the function returns.
    """
    states = [(layer.seed_generator.state, layer.seed_generator.next()) for layer in dropouts if layer.rate]

    def run(tensor, *values):
        with keras.StatelessScope([*zip(weights, values, strict=True), *states]):
            return function(tensor)

    # Passed in, for on TensorFlow no gradient would reach other tensors that the function sees; and not as variables,
    # whose gradients it would count twice outside a graph.
    return keras.remat(run)(tensor, *(weight.value for weight in weights))
