"""The replicas of `tf.distribute`: Keras sums their gradients only after it has clipped them, and seeds all alike."""

import functools

import keras
from keras import ops

# Far from the seeds that count up in a model.
_BETWEEN_REPLICAS = 1_013_904_223


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
    """Makes a Keras optimizer judge the gradient of the whole batch, not of each replica's part.

    It then clips by the norm for the whole batch, and loss scaling skips a step in all replicas or in none.
    """
    while hasattr(optimizer, "inner_optimizer"):
        if isinstance(optimizer, keras.optimizers.LossScaleOptimizer) and "apply" not in vars(optimizer):
            optimizer.apply = functools.partial(_apply_finite, optimizer.apply)
        optimizer = optimizer.inner_optimizer
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
    if optimizer.global_clipnorm is not None:
        # Not the setting, which checkpoints record.
        optimizer._clip_gradients = functools.partial(_clipped, optimizer.global_clipnorm)


def _clipped(limit, gradients):
    totals = [ops.cast(total, "float32") for total in sum_over_replicas(gradients) if total is not None]
    norm = ops.sqrt(sum(ops.sum(ops.square(total)) for total in totals))
    scale = limit / ops.maximum(norm, limit)
    return [None if g is None else g * ops.cast(scale, g.dtype) for g in gradients]


def _apply_finite(apply, gradients, trainable_variables=None):
    """Lets all replicas know if a gradient of one is not finite: Keras asks only the first."""
    gradients = list(gradients)
    # 0, or NaN if any is not finite.
    parts = [ops.sum(ops.cast(g, "float32") * 0) for g in gradients if g is not None]
    (zero,) = sum_over_replicas([sum(parts)])
    return apply([None if g is None else g + ops.cast(zero, g.dtype) for g in gradients], trainable_variables)


def spread_seeds_over_replicas(model):
    """Lets each replica of TensorFlow draw other random numbers; the first draws as if it were alone."""
    for layer in model._flatten_layers():
        for generator in vars(layer).values():
            if isinstance(generator, keras.random.SeedGenerator) and "next" not in vars(generator):
                generator.next = functools.partial(_of_replica, generator.next)


def _of_replica(draw, ordered=True):
    import tensorflow as tf

    seed, context = draw(ordered), tf.distribute.get_replica_context()
    if context is None or context.num_replicas_in_sync == 1:
        return seed
    return seed + tf.cast([context.replica_id_in_sync_group, 0], seed.dtype) * _BETWEEN_REPLICAS
