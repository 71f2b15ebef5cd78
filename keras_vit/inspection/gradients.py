import keras
from keras import ops


def gradients(function, *values):
    """Differentiates a function of tensors.

    Keras has no such function of its own, so this is where each backend's is called.

    Args:
        function: Takes as many tensors as there are values, and returns a scalar tensor.
        *values: Float tensors of the backend, at which to differentiate.

    Returns:
        A list of one tensor a value: the function's gradient, zero where it does not depend on the value.

    Raises:
        ValueError: If the backend has no gradients.

    Example:

    >>> gradient, nothing = gradients(lambda x, y: keras.ops.sum(x**2), keras.ops.array([1.0, 2.0]), keras.ops.ones(1))
    >>> keras.ops.convert_to_numpy(gradient).tolist(), keras.ops.convert_to_numpy(nothing).tolist()
    ([2.0, 4.0], [0.0])
    """
    backend = keras.backend.backend()
    if backend == "tensorflow":
        import tensorflow as tf  # noqa: TID251

        # Else it would keep what the gradients of all weights need.
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(values)
            y = function(*values)
        return list(tape.gradient(y, values, unconnected_gradients="zero"))
    if backend == "jax":
        import jax  # noqa: TID251

        return list(jax.grad(function, argnums=tuple(range(len(values))))(*values))
    if backend == "torch":
        import torch  # noqa: TID251

        with torch.enable_grad():
            values = [value.detach().requires_grad_() for value in values]
            found = torch.autograd.grad(function(*values), values, allow_unused=True)
        return [ops.zeros_like(x) if g is None else g for g, x in zip(found, values, strict=True)]
    raise ValueError(f"Expected a backend with gradients: tensorflow, jax or torch. Received: {backend!r}")
