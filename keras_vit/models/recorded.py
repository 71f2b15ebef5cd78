import keras

from keras_vit.record import config_of


class RecordedModel(keras.Model):
    """A functional `keras.Model` whose first layer carries its record; the properties read it there.

    A copy by `keras.models.clone_model`, or a model that goes on from one of its layers, is a plain `keras.Model`:
    `keras_vit.config_of` finds the record in those as well.
    """

    @property
    def config(self):
        """The record of what the model is."""
        return config_of(self)

    @property
    def preprocessing(self):
        """The `keras_vit.Preprocessing` that its images are to be given."""
        return self.config.preprocessing

    @property
    def head(self):
        """The layer that gives the logits; None in a model of features."""
        return next((layer for layer in self.layers if layer.name == "head"), None)
