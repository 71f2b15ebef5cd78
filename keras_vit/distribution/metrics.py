"""Metrics of several PyTorch processes, each with a part of the images. JAX and TensorFlow do not need this module.

The variables of a metric must be sums over images, as they are in all `keras.metrics`.
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
    """Replaces the logs of each epoch by the metrics of all PyTorch processes, before other callbacks see the logs.

    Give it to `model.fit` as the first callback, so that callbacks such as EarlyStopping decide the same in all
    processes. Logs of single steps contain the metrics of one process. If the loss of one process is not finite, the
    loss in the logs of all processes is NaN. With a single process, the callback does nothing.

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
        # Read the sums of the training steps, because an evaluation resets them.
        if self._epoch is not None:
            self._epoch |= reduce_metrics(self.model)

    def on_test_end(self, logs=None):
        if self._epoch is not None:
            self._epoch |= {f"val_{name}": value for name, value in reduce_metrics(self.model).items()}

    def on_epoch_end(self, epoch, logs=None):
        if self._epoch is not None:
            found, self._epoch = self._epoch or reduce_metrics(self.model), None
            logs.update({name: found.get(name, value) for name, value in logs.items()})

    # This callback has no state between epochs that `training.fit` must save.
    def get_state(self):
        return {}

    def set_state(self, state):
        pass
