import keras


class TrainingWrapper(keras.Model):
    """Base of models that train another: `save` and `export` write only `plain_model`, `save_weights` all weights."""

    @property
    def plain_model(self) -> keras.Model:
        """The model that is trained."""
        raise NotImplementedError

    def save(self, *args, **kwargs):
        """Saves the plain model."""
        return self.plain_model.save(*args, **kwargs)

    def export(self, *args, **kwargs):
        """Exports the plain model."""
        return self.plain_model.export(*args, **kwargs)

    def get_config(self):
        raise NotImplementedError(f"{type(self).__name__} has no config: save its `plain_model`.")
