import keras

from keras_vit.record import config_of


class RecordedModel(keras.Model):
    """A functional `keras.Model` whose first layer carries its record; the properties read it there.

    A model that goes on from one of its layers is a plain `keras.Model`: `keras_vit.config_of` finds the record in that
    as well.
    """

    def __setattr__(self, name, value):
        # Keras would keep the layer or its weights, and PyTorch say nothing.
        ours = (vars(kind) for kind in type(self).__mro__ if kind.__module__.startswith("keras_vit."))
        if any(isinstance(own.get(name), property) for own in ours):
            raise AttributeError(
                f"`{name}` of model {self.name!r} is read from its layers and cannot be set. A new head goes on from "
                'one of them: keras.Model(model.input, keras.layers.Dense(7)(model.get_layer("pre_logits").output)).'
            )
        super().__setattr__(name, value)

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
