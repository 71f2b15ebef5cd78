import keras

from keras_vit.models import forward, losses
from keras_vit.models.running import CheckedRuns


class TrainingWrapper(CheckedRuns, keras.Model):
    """Base of models that train another model, `plain_model`.

    `save` and `export` write only the `plain_model`. `save_weights` writes all weights of the wrapper.
    """

    # A subclass sets this to True if it computes another loss than the one passed to `compile`.
    has_own_loss = False

    def __init__(self, model, **kwargs):
        # `compile` uses the dtype policy to decide if it scales the loss. The model casts its images itself.
        super().__init__(**{"dtype": model.dtype_policy, "autocast": False, **kwargs})

    @property
    def plain_model(self) -> keras.Model:
        """The model that is trained."""
        raise NotImplementedError

    def checked_model(self):
        return self.plain_model

    @property
    def num_replicas(self):
        """The number of replicas over which a TensorFlow strategy sums gradients; 1 without a strategy."""
        strategy = getattr(self, "distribute_strategy", None)
        return 1 if strategy is None else strategy.num_replicas_in_sync

    def forward_passes(self):
        """Returns a list of models and of (object, method name) pairs. `jit_compile=True` compiles them on PyTorch."""
        return [self.plain_model]

    def compile(self, *args, jit_compile="auto", **kwargs):
        """Configures training; on PyTorch, `jit_compile=True` compiles only the forward passes."""
        if not self.has_own_loss:
            losses.check_loss(self.plain_model, args, kwargs)
        super().compile(*args, jit_compile=jit_compile, **kwargs)
        forward.follow_jit_compile(self, jit_compile)

    def save(self, *args, **kwargs):
        """Saves the plain model."""
        return self.plain_model.save(*args, **kwargs)

    def export(self, *args, **kwargs):
        """Exports the plain model."""
        return self.plain_model.export(*args, **kwargs)

    def get_config(self):
        raise NotImplementedError(f"{type(self).__name__} has no config: save its `plain_model`.")
