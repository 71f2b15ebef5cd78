"""Metrics of several PyTorch processes, of which each sees its part of the images; JAX and TensorFlow need none of it.

The variables of a metric must be sums over images, as those of all `keras.metrics` are.
"""

import math

import keras
from keras import ops

from keras_vit.distribution.processes import summed, torch_group


def reduce_metrics(model: keras.Model) -> dict:
    """Returns the metrics of the last `evaluate` for the images of all processes; all processes must call it.

    Args:
        model: A compiled `keras.Model`.

    Returns:
        A dict from the names of the loss and of the metrics to floats.

    Example:

    >>> model.evaluate(part_of_this_process)  # doctest: +SKIP
    >>> scores = keras_vit.distribution.reduce_metrics(model)  # doctest: +SKIP
    """
    variables = model.metrics_variables if torch_group() else []
    with keras.StatelessScope(state_mapping=list(zip(variables, summed(variables), strict=True))):
        return {name: float(ops.convert_to_numpy(value)) for name, value in model.get_metrics_result().items()}


class ReduceMetrics(keras.callbacks.Callback):
    """Makes the logs of each epoch the metrics of all PyTorch processes, before other callbacks see the logs.

    Give it to `model.fit` as the first callback, so that callbacks such as EarlyStopping decide the same in all
    processes. Logs of single steps remain those of one process, but if the loss of a process is not finite, the loss in
    the logs of all processes is NaN. Without other PyTorch processes, the callback does nothing.

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
        # The sums of the training steps; an evaluation resets them.
        if self._epoch is not None:
            self._epoch |= reduce_metrics(self.model)

    def on_test_end(self, logs=None):
        if self._epoch is not None:
            self._epoch |= {f"val_{name}": value for name, value in reduce_metrics(self.model).items()}

    def on_epoch_end(self, epoch, logs=None):
        if self._epoch is not None:
            found, self._epoch = self._epoch or reduce_metrics(self.model), None
            logs.update({name: found.get(name, value) for name, value in logs.items()})

    # Nothing of this callback outlives an epoch, so `training.fit` saves nothing of it.
    def get_state(self):
        return {}

    def set_state(self, state):
        pass
