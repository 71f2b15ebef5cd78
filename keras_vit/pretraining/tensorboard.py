import keras
import numpy as np

from keras_vit.layers import arguments
from keras_vit.pictures import displayable


class TensorBoardReconstructions(keras.callbacks.Callback):
    """Writes reconstructions of the same images, under the same masks, for TensorBoard as training goes on.

    Each picture is original, masked and prediction side by side.

    Args:
        log_dir: Path of the folder of logs. One beside that of `keras.callbacks.TensorBoard` keeps the two apart.
        images: A few images, as the model is trained on them.
        every: Int, the number of epochs between pictures. The last epoch has one in any case.

    Raises:
        ImportError: If TensorFlow, which writes the logs on every backend, is not installed.
        ValueError: If `every` is not a positive integer.

    Example:

    >>> callback = TensorBoardReconstructions("logs/pictures", images[:8], every=10)  # doctest: +SKIP
    >>> model.fit(images, epochs=100, callbacks=[callback])  # doctest: +SKIP
    """

    def __init__(self, log_dir, images, every=1):
        super().__init__()
        self.log_dir = str(log_dir)
        self.images = images
        self.every = arguments.positive_int("every", every)

    def on_train_begin(self, logs=None):
        try:
            import tensorflow as tf  # noqa: TID251  TensorBoard's logs are written by TensorFlow alone.
        except ImportError as error:
            raise ImportError('TensorBoard logs need TensorFlow: pip install "keras-vit[tensorflow]"') from error
        self._summary = tf.summary
        self._writer = tf.summary.create_file_writer(self.log_dir)

    def on_epoch_end(self, epoch, logs=None):
        if (epoch + 1) % self.every and epoch + 1 < self.params["epochs"]:
            return
        pictures = np.concatenate([displayable(part) for part in self.model.reconstruct(self.images)], axis=2)
        with self._writer.as_default():
            self._summary.image("reconstructions", pictures, step=epoch, max_outputs=len(pictures))
        self._writer.flush()

    def on_train_end(self, logs=None):
        self._writer.close()
