import keras
from keras import ops

from keras_vit import arguments
from keras_vit.distribution.synchronization import whole_batch_gradients
from keras_vit.models.wrapper import TrainingWrapper
from keras_vit.training.checkpoints import generator_states, set_generator_states


class _Gradients:
    """Stands in for the optimizer in Keras' train step, and stores the gradients without changing a weight."""

    def __init__(self, optimizer):
        self.optimizer = optimizer
        self.gradients = None

    def __getattr__(self, name):
        return getattr(self.optimizer, name)

    def apply(self, grads, trainable_variables=None):
        self.gradients = list(grads)

    def apply_gradients(self, grads_and_vars):
        self.gradients = [gradient for gradient, _ in grads_and_vars]

    def stateless_apply(self, optimizer_variables, grads, trainable_variables):
        self.gradients = list(grads)
        return trainable_variables, optimizer_variables


class SAM(TrainingWrapper):
    """Trains a model by sharpness-aware minimization (SAM), which minimizes the largest loss near the weights.

    Each step computes the gradient g at the weights w and a second gradient at `w + rho * g / ||g||`, where `||g||` is
    the global norm of g. The step then updates w with the second gradient. A step costs twice as much as without SAM.
    Both gradients use the same dropout masks. Compile and fit this wrapper; it returns the model's outputs.
    `plain_model` is the given model, which is trained in place. `save`, `export` and `keras.callbacks.ModelCheckpoint`
    write only the given model; `save_weights` also writes the optimizer.

    Args:
        model: The `keras.Model` to train.
        rho: Float, the distance from w to the weights of the second gradient. Use 0.05 for ResNets and 0.1 to 0.2 for
            ViTs. If `rho` is not above 0, a ValueError is raised.

    Example:
    >>> model = keras_vit.ViT("Ti/16", image_size=32, num_layers=1, num_classes=2)
    >>> trainer = SAM(model, rho=0.1)
    >>> trainer.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    >>> history = trainer.fit(np.zeros((4, 32, 32, 3)), np.array([0, 1, 0, 1]), verbose=0)

    Reference: [arXiv 2010.01412](https://arxiv.org/abs/2010.01412), algorithm 1; [arXiv
    2106.01548](https://arxiv.org/abs/2106.01548) for ViTs. With gradient accumulation, both gradients are
    computed for each batch separately (m-sharpness).
    """

    def __init__(self, model: keras.Model, rho: float = 0.05, **kwargs):
        super().__init__(arguments.model(model), **kwargs)
        self.model = model
        self.rho = arguments.positive_number("rho", rho)
        self.built = model.built

    @property
    def plain_model(self):
        return self.model

    def call(self, inputs, training=None):
        return self.model(inputs, training=training)

    @property
    def optimizer(self):
        """The compiled optimizer, or while gradients are recorded, the object that records them."""
        return self._optimizer if self._recorder is None else self._recorder

    @optimizer.setter
    def optimizer(self, value):
        self._optimizer, self._recorder = value, None

    def train_step(self, *args):
        # On JAX, Keras calls this with (state, data), and the result contains the new state of the model.
        return self._stateless_train_step(*args) if len(args) == 2 else self._stateful_train_step(*args)

    def _stateless_train_step(self, state, data):
        weights, others, optimizer_variables, _ = state
        gradients, (logs, (_, new_others, _, new_metrics)) = self._gradients(state, data)
        steps = self._steps(gradients)
        worst = [w if e is None else w + ops.cast(e, w.dtype) for w, e in zip(weights, steps, strict=True)]
        gradients, _ = self._gradients((worst, others, optimizer_variables, new_metrics), data)
        weights, optimizer_variables = self.optimizer.stateless_apply(optimizer_variables, gradients, weights)
        return logs, (weights, new_others, optimizer_variables, new_metrics)

    def _stateful_train_step(self, data):
        weights = self.trainable_variables
        others = self.non_trainable_variables
        before, generators = _values(others), generator_states()
        gradients, logs = self._gradients(data)
        after = _values(others + self.metrics_variables)
        centre = _values(weights)
        for weight, value, step in zip(weights, centre, self._steps(gradients), strict=True):
            if step is not None:
                weight.assign(value + ops.cast(step, value.dtype))
        _assign(others, before)
        # Compute the second gradient with the same random numbers as the first.
        set_generator_states(generators)
        gradients, _ = self._gradients(data)
        _assign(weights, centre)
        _assign(others + self.metrics_variables, after)
        self.optimizer.apply(gradients, weights)
        return logs

    def _gradients(self, *args):
        """Runs Keras' train step, and returns its gradients and its result."""
        self._recorder = recorder = _Gradients(self._optimizer)
        try:
            result = super().train_step(*args)
        finally:
            self._recorder = None
        return recorder.gradients, result

    def _steps(self, gradients):
        """Returns the change of each weight, `rho * g / ||g||`, or None for a weight without a gradient."""
        gradients = whole_batch_gradients(gradients)
        squares = [ops.sum(ops.square(ops.cast(g, "float32"))) for g in gradients if g is not None]
        # If the norm is 0, the weights do not change.
        scale = self.rho / ops.maximum(ops.sqrt(sum(squares)), 1e-12)
        return [None if g is None else ops.cast(g, "float32") * scale for g in gradients]


def _values(variables):
    # Copy the values: on PyTorch, a tensor that is read from a variable changes with the variable.
    return [ops.copy(ops.stop_gradient(v)) for v in variables]


def _assign(variables, values):
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)
