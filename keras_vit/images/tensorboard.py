"""Writes images to TensorBoard logs during training."""

import os

import keras

from keras_vit import arguments


class TensorBoardPictures(keras.callbacks.Callback):
    """The base class of callbacks that write images. `TensorBoardAttention` documents the arguments."""

    name: str

    def __init__(self, log_dir: str | os.PathLike, images, every: int = 1):
        super().__init__()
        self.log_dir = str(arguments.path("log_dir", log_dir))
        self.images = arguments.arrays("images", images)
        self.every = arguments.positive_int("every", every)

    def pictures(self):
        """Returns the images to write, uint8, (number of images, height, width, channels)."""
        raise NotImplementedError

    def on_train_begin(self, logs=None):
        try:
            import tensorflow as tf  # noqa: TID251  Only TensorFlow writes TensorBoard's logs.
        except ImportError as error:
            raise ImportError("TensorBoard logs need TensorFlow: pip install tensorflow") from error
        self._summary = tf.summary
        self._writer = tf.summary.create_file_writer(self.log_dir)
        self._left_out = None

    def get_state(self):
        """Returns the state that `keras_vit.training.fit` saves in checkpoints."""
        return {"left_out": self._left_out}

    def set_state(self, state):
        """Restores the state from `get_state`."""
        self._left_out = state["left_out"]

    def on_epoch_end(self, epoch, logs=None):
        # Remember an epoch whose images are not written. If training ends with this epoch, `on_train_end` writes the
        # images.
        self._left_out = epoch if (epoch + 1) % self.every else None
        if self._left_out is None:
            self._write(epoch)

    def on_train_end(self, logs=None):
        if self._left_out is not None:
            self._write(self._left_out)
        self._writer.close()

    def _write(self, epoch):
        pictures = self.pictures()
        with self._writer.as_default():
            self._summary.image(self.name, pictures, step=epoch, max_outputs=len(pictures))
        self._writer.flush()
