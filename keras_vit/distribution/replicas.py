"""Gradients of the replicas of `tf.distribute`, where Keras sums them only after it has clipped them."""

import keras
from keras import ops


def sum_over_replicas(values):
    """Returns tensors summed over TensorFlow's replicas; as they are outside of a strategy and on other backends."""
    if keras.backend.backend() != "tensorflow":
        return values
    import tensorflow as tf

    context = tf.distribute.get_replica_context()
    if context is None or context.num_replicas_in_sync == 1:
        return values
    present = iter(context.all_reduce("SUM", [value for value in values if value is not None]))
    return [None if value is None else next(present) for value in values]


def clip_over_replicas(optimizer):
    """Makes a Keras optimizer clip by the norm of the gradient of the whole batch, not of each replica's part."""
    optimizer = getattr(optimizer, "inner_optimizer", optimizer)
    for name, value in (
        ("gradient_accumulation_steps", optimizer.gradient_accumulation_steps),
        ("clipnorm", optimizer.clipnorm),
        ("clipvalue", optimizer.clipvalue),
    ):
        if value is not None:
            raise ValueError(
                f"Expected an optimizer without {name} on several devices of TensorFlow, where Keras computes it for "
                f"each device alone; JAX and PyTorch (KERAS_BACKEND=jax) can. Received: {name}={value}"
            )
    limit, apply = optimizer.global_clipnorm, optimizer.apply
    if limit is None:
        return
    # Keras would clip again.
    optimizer.global_clipnorm = None

    def clipped(gradients, trainable_variables=None):
        totals = [ops.cast(total, "float32") for total in sum_over_replicas(gradients) if total is not None]
        norm = ops.sqrt(sum(ops.sum(ops.square(total)) for total in totals))
        scale = limit / ops.maximum(norm, limit)
        gradients = [None if g is None else g * ops.cast(scale, g.dtype) for g in gradients]
        return apply(gradients, trainable_variables)

    optimizer.apply = clipped
