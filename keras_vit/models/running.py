"""Refuses data that does not fit a model before Keras runs it, and keeps the model usable after an error on JAX."""

import keras
import numpy as np

from keras_vit import arguments
from keras_vit.config import find_normalization


class CheckedRuns:
    """Adds checks to the `fit`, `evaluate` and `predict` of a `keras.Model`."""

    # Keras saves attributes and properties that are models, so this is a method.
    def checked_model(self):
        """Returns the model that receives the images. Each image must have this model's input shape."""
        return self

    def fit(self, x=None, *args, **kwargs):
        """Trains as `keras.Model.fit` does; raises a ValueError for images or classes that do not fit the model."""
        return self._run(super().fit, x, args, kwargs)

    def evaluate(self, x=None, *args, **kwargs):
        """Evaluates as `keras.Model.evaluate` does; raises a ValueError as `fit` does."""
        return self._run(super().evaluate, x, args, kwargs)

    def predict(self, x, *args, **kwargs):
        """Predicts as `keras.Model.predict` does; raises a ValueError for images of a wrong size."""
        return self._run(super().predict, x, args, kwargs)

    def _run(self, function, x, args, kwargs):
        for data in (x, kwargs.get("validation_data")):
            # Do not check the classes of wrappers, because they may ignore the labels.
            if function.__name__ != "predict" and self.checked_model() is self:
                check_classes(self, getattr(data, "class_names", None))
            # The shapes of a dataset's batches are in `element_spec`.
            images = getattr(data, "element_spec", data)
            images = images[0] if isinstance(images, tuple) else images
            shape = getattr(images, "shape", None)
            # If the shape of a dataset's batches is unknown, its rank is None, and the size is not checked.
            if shape is not None and getattr(shape, "rank", 0) is not None:
                check_size(self.checked_model(), images, "images")
        if keras.backend.backend() != "jax":
            return function(x, *args, **kwargs)
        optimizer = getattr(self, "optimizer", None)
        if function.__name__ == "fit" and self.built and optimizer is not None and not optimizer.built:
            optimizer.build(self.trainable_variables)
        # A wrapper may have variables that `variables` does not contain, for example the copies of a teacher's weights.
        variables = [*self.variables, *self.non_trainable_variables, *self.metrics_variables]
        kept = [(v, v.value) for v in [*variables, *([] if optimizer is None else optimizer.variables)]]
        try:
            return function(x, *args, **kwargs)
        except BaseException:
            # While Keras runs on JAX, the variables are empty, because Keras takes out their values. After an error,
            # put the values back. New metrics have no kept value, so reset all metrics.
            self.jax_state_sync()
            self.reset_metrics()
            for variable, value in kept:
                if _is_empty(variable) and not value.is_deleted():
                    variable.assign(value)
            raise


def check_size(model, images, name):
    """Raises an error, the same on every backend, if a batch of images does not have the model's input shape."""
    inputs = getattr(model, "inputs", None) or ()
    if len(inputs) == 1:
        arguments.image_shape(name, tuple(images.shape), tuple(inputs[0].shape), f" for model {model.name!r}")


def check_classes(model, names):
    """Raises if a label means one class in a dataset with the class names `names`, and another class in the model."""
    known = list(getattr(find_normalization(model), "class_names", None) or ())
    names = list(names) if isinstance(names, (list, tuple, np.ndarray)) else []
    # The data may lack the last classes. If no name is equal, the same classes may have other names, such as ids.
    if set(known) & set(names) and known[: len(names)] != names:
        raise ValueError(
            f"Expected data with the classes of model {model.name!r} in the same order, {known[:5]} ... Received: "
            f"{names[:5]} ... Pass class_names=model.config.class_names to the function that makes the data, or build "
            "the model for the classes of the data."
        )


def _is_empty(variable):
    try:
        return variable.value is None
    except TypeError:
        return True
