"""A callback that stops training at NaN."""

import keras

from keras_vit.models.finite import non_finite_weights


class TerminateOnNaN(keras.callbacks.TerminateOnNaN):
    """Stops training at a NaN or infinite loss, or after an epoch if weights are NaN or infinite.

    On TensorFlow, ReLU can turn NaN into 0, so that the loss stays finite although weights are NaN.

    Example:

    >>> model = keras_vit.ViT("Ti/16", image_size=32, num_classes=2, num_layers=1)
    >>> model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    >>> callbacks = [keras_vit.training.TerminateOnNaN()]
    >>> _ = model.fit(np.zeros((2, 32, 32, 3)), np.zeros(2), callbacks=callbacks, verbose=0)
    """

    def on_epoch_end(self, epoch, logs=None):
        if found := non_finite_weights(self.model):
            print(f"\nStopped after epoch {epoch + 1}: {len(found)} weights are NaN or infinite, such as {found[0]!r}.")
            self.model.stop_training = True
