import keras


class TrainingWrapper(keras.Model):
    """The base of models that train another model and are not needed after that.

    `plain_model` is the model that is trained. `save`, `export` and so `keras.callbacks.ModelCheckpoint` write it
    alone; `save_weights` writes all weights and the optimizer's state, for a run that is to go on.
    """

    @property
    def plain_model(self) -> keras.Model:
        """The model that is trained."""
        raise NotImplementedError

    def save(self, *args, **kwargs):
        """Saves the plain model, as its `save` does."""
        return self.plain_model.save(*args, **kwargs)

    def export(self, *args, **kwargs):
        """Exports the plain model, as its `export` does."""
        return self.plain_model.export(*args, **kwargs)

    def get_config(self):
        raise NotImplementedError(f"{type(self).__name__} has no config: save its `plain_model`.")
