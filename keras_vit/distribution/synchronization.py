"""Keeps a model's weights, gradients and metrics equal in several processes or replicas."""

import hashlib
import math
import os

import keras
import numpy as np
from keras import ops

from keras_vit import arguments
from keras_vit.distribution.processes import agree, num_processes, process_id, summed, torch_group


def synchronize(model: keras.Model) -> keras.Model:
    """Prepares a compiled model for `fit` in several PyTorch processes or on several TensorFlow devices.

    On PyTorch, all processes that called `initialize` get the variables of process 0. `model.optimizer` then averages
    the gradients of all processes, and each process gets different random seeds, for example for dropout. Call this
    function in all processes after `compile`, and again after loading weights. All processes must train the same number
    of steps with the same batch size. Pass `keras_vit.distribution.ReduceMetrics()` as a callback to `fit`. In each
    process, `keras.layers.BatchNormalization` normalizes with the statistics of this process' images only.

    On TensorFlow, this function only checks that the optimizer supports several devices. On JAX, it does nothing.

    Args:
        model: A built and compiled `keras.Model`. It is changed in place and returned.

    Raises:
        ValueError: If PyTorch's processes do not have the same compiled and built model, or if an optimizer on several
            TensorFlow devices scales the loss, or clips or accumulates gradients.

    Example:
    >>> loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    >>> model.compile(keras_vit.training.AdamW(1e-3), loss)  # doctest: +SKIP
    >>> keras_vit.distribution.synchronize(model).fit(data)  # doctest: +SKIP
    """
    arguments.model(model)
    if keras.backend.backend() == "tensorflow" and model.distribute_strategy.num_replicas_in_sync > 1:
        _check_optimizer(model.optimizer)
    if group := torch_group():
        if not (model.compiled and model.built):
            state = f"compiled={model.compiled}, built={model.built}"
            raise ValueError(f"Expected `model` to be compiled and built. Received: {model.name!r}, with {state}")
        if not model.optimizer.built:
            model.optimizer.build(model.trainable_variables)
        variables = model.variables + model.optimizer.variables
        found = [None] * num_processes()
        group.all_gather_object(found, [(tuple(v.shape), v.dtype, v.trainable) for v in variables])
        other = next((i for i, shapes in enumerate(found) if shapes != found[0]), None)
        # Raise in all processes. If only one process raised, the rest would wait for it.
        if other is not None:
            raise ValueError(
                f"Expected `model` to have the same {len(found[0])} variables in processes 0 and {other}. Received: "
                f"{len(found[other])} variables in process {other}. The number, shapes, dtypes or `trainable` differ. "
                "Build the same model in each process."
            )
        for variable in variables:
            value = variable.value.detach().contiguous()
            group.broadcast(value, src=0)
            variable.assign(value)
        if not isinstance(model.optimizer, _Averaging):
            # The new optimizer shares all attributes with the old one, and its class is a subclass of the old class.
            # Checkpoints, callbacks and loss scaling therefore work as before.
            kind, state = type(model.optimizer), vars(model.optimizer)
            shared = object.__new__(type(kind.__name__, (_Averaging, kind), {"__module__": kind.__module__}))
            object.__setattr__(shared, "__dict__", state)
            model.optimizer = shared
        spread_seeds(model)
    return model


def whole_batch_gradients(gradients):
    """Returns the gradients of the whole batch. `gradients` belong to this device's part; some of them may be None.

    PyTorch needs the mean over processes. TensorFlow needs the sum, because Keras divides losses by the replica count.
    """
    present = [gradient for gradient in gradients if gradient is not None]
    if group := torch_group():
        # The gradient of a transposed weight is not contiguous, but `all_reduce` needs contiguous tensors.
        present = [gradient.contiguous() for gradient in present]
        works = [group.all_reduce(gradient.div_(num_processes()), async_op=True) for gradient in present]
        for work in works:
            work.wait()
    elif keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        context = tf.distribute.get_replica_context()
        if context is not None and context.num_replicas_in_sync > 1:
            present = context.all_reduce("SUM", present)
    present = iter(present)
    return [None if gradient is None else next(present) for gradient in gradients]


class _Averaging:
    """Optimizer mixin that averages the gradients of all PyTorch processes before they are clipped and applied."""

    def apply(self, grads, trainable_variables=None):
        return super().apply(whole_batch_gradients(list(grads)), trainable_variables)


def check_synchronized(model):
    """Raises RuntimeError if several PyTorch processes would each train a separate model."""
    # If `torchrun` started this process but `initialize` was not called, use the number of processes of `torchrun`.
    started = int(os.environ.get("WORLD_SIZE", 1)) if "TORCHELASTIC_RUN_ID" in os.environ else 1
    size = max(num_processes(), started) if keras.backend.backend() == "torch" else 1
    if size > 1 and not isinstance(getattr(model, "optimizer", None), _Averaging):
        raise RuntimeError(
            f"Expected a model that {size} PyTorch processes train together. Received: {model.name!r}, which "
            "is not synchronized. Call keras_vit.distribution.initialize(...) before building it and "
            "keras_vit.distribution.synchronize(model) after `compile`, or start only one process."
        )


def spread_seeds(model):
    """Derives other PyTorch processes' seeds from process 0's random state. All processes must call this function."""
    if not torch_group():
        return
    import torch

    states = [v for v in model.variables if v.name == "seed_generator_state"]
    arrays = [keras.ops.convert_to_numpy(v) for v in states] + [torch.get_rng_state().numpy()]
    if torch.cuda.is_available():
        arrays.append(torch.cuda.get_rng_state().numpy())
    entropy = agree(int.from_bytes(hashlib.sha256(b"".join(array.tobytes() for array in arrays)).digest()))
    if process_id() > 0:
        # Halve the numbers, because the states of Keras' generators are signed integers.
        numbers = np.random.SeedSequence([entropy, process_id()]).generate_state(len(states) + 1) >> 1
        # Seed PyTorch's generator too, because Keras' Dropout uses it if no seed is given.
        keras.utils.set_random_seed(int(numbers[0]))
        for variable, seed in zip(states, numbers[1:], strict=True):
            variable.assign([int(seed), 0])


def _check_optimizer(optimizer):
    """Raises ValueError if an optimizer clips or accumulates gradients or scales the loss.

    On several TensorFlow devices, Keras clips and accumulates the gradients of each device before it sums them. With
    loss scaling, it checks the gradients of only one device.
    """
    while hasattr(optimizer, "inner_optimizer"):
        if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
            raise ValueError(
                "Expected no loss scaling on several devices of TensorFlow, where Keras checks the gradients of "
                "only one device. Received: LossScaleOptimizer. Choose mixed_bfloat16, or KERAS_BACKEND=jax or torch."
            )
        optimizer = optimizer.inner_optimizer
    for name in ("gradient_accumulation_steps", "global_clipnorm", "clipnorm", "clipvalue"):
        if (value := getattr(optimizer, name)) is not None:
            raise ValueError(
                f"Expected an optimizer without {name} on several devices of TensorFlow, where Keras applies it "
                f"separately on each device. Received: {name}={value}. Set it to None (`clip=None` in a recipe), or "
                "choose KERAS_BACKEND=jax or torch."
            )


def reduce_metrics(model: keras.Model) -> dict:
    """Returns the metrics of the last `evaluate`, computed for the images of all processes, as a dict of floats.

    All processes must call this function. On PyTorch, it sums the variables of the metrics over the processes. This is
    right if these variables are sums over images, as in all `keras.metrics`. On JAX and TensorFlow, the metrics already
    cover all images.

    Example:

    >>> model.evaluate(part_of_this_process)  # doctest: +SKIP
    >>> scores = keras_vit.distribution.reduce_metrics(model)  # doctest: +SKIP
    """
    arguments.model(model)
    variables = model.metrics_variables if torch_group() else []
    with keras.StatelessScope(state_mapping=list(zip(variables, summed(variables), strict=True))):
        return {name: float(ops.convert_to_numpy(value)) for name, value in model.get_metrics_result().items()}


class ReduceMetrics(keras.callbacks.Callback):
    """Callback that replaces each epoch's logs with metrics for the images of all PyTorch processes.

    Pass it to `model.fit` as the first callback, so that callbacks such as EarlyStopping get the same logs in all
    processes. The logs of a single step contain the metrics of one process. If the loss of any process is not finite in
    a step, the loss in the logs of this step is NaN in all processes. With a single process, the callback does nothing.

    Example:
    >>> callbacks = [keras_vit.distribution.ReduceMetrics(), keras.callbacks.EarlyStopping()]
    >>> model.fit(data, callbacks=callbacks)  # doctest: +SKIP
    """

    def __init__(self):
        super().__init__()
        self._epoch = None

    def on_epoch_begin(self, epoch, logs=None):
        self._epoch = {} if torch_group() else None

    def on_train_batch_end(self, batch, logs=None):
        if (group := torch_group()) and logs and "loss" in logs:
            import torch

            parameter = next(self.model.parameters())
            finite = torch.tensor(float(math.isfinite(logs["loss"])), device=parameter.device)
            group.all_reduce(finite, group.ReduceOp.MIN)
            logs["loss"] = logs["loss"] if finite.item() else math.nan

    def on_test_begin(self, logs=None):
        # Read the training metrics now, because the evaluation resets them.
        if self._epoch is not None:
            self._epoch |= reduce_metrics(self.model)

    def on_test_end(self, logs=None):
        if self._epoch is not None:
            self._epoch |= {f"val_{name}": value for name, value in reduce_metrics(self.model).items()}

    def on_epoch_end(self, epoch, logs=None):
        if self._epoch is not None:
            found, self._epoch = self._epoch or reduce_metrics(self.model), None
            logs.update({name: found.get(name, value) for name, value in logs.items()})
