import numpy as np

from keras_vit.pictures import displayable
from keras_vit.tensorboard import TensorBoardPictures


class TensorBoardReconstructions(TensorBoardPictures):
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

    name = "reconstructions"

    def __init__(self, log_dir, images, every=1):
        super().__init__(log_dir, every)
        self.images = images

    def pictures(self):
        return np.concatenate([displayable(part) for part in self.model.reconstruct(self.images)], axis=2)
