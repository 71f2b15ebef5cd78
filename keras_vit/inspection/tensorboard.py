from keras_vit import arguments
from keras_vit.inspection.attention_plots import attention_overlay
from keras_vit.inspection.rollout import FUSIONS, attention_rollout
from keras_vit.inspection.watch import pictures_of
from keras_vit.tensorboard import TensorBoardPictures


class TensorBoardAttention(TensorBoardPictures):
    """Writes where the model looks in a few images, for TensorBoard, as training goes on.

    Each picture is the image, darkened where little attention goes, by `attention_rollout`.

    Args:
        log_dir: Path of the folder of logs. One beside that of `keras.callbacks.TensorBoard` keeps the two apart.
        images: A few images, as the model is trained on them.
        every: Int, the number of epochs between pictures. The last epoch has one in any case, also where
            training is stopped before its time.
        head_fusion: "mean", "max" or "min", as in `attention_rollout`.
        model: The model to look into, where it is not the one that is fitted but a part of it, as the student of a
            distillation.

    Raises:
        ImportError: If TensorFlow, which writes the logs on every backend, is not installed.
        ValueError: If `every` is not a positive integer, `head_fusion` is none of the three, or the model holds no
            ViT, or several.

    Example:

    >>> callback = TensorBoardAttention("logs/attention", images[:8], every=10)  # doctest: +SKIP
    >>> model.fit(images, labels, epochs=100, callbacks=[callback])  # doctest: +SKIP
    """

    name = "attention"

    def __init__(self, log_dir, images, every=1, head_fusion="mean", model=None):
        super().__init__(log_dir, every)
        self.images = images
        self.head_fusion = arguments.one_of("head_fusion", head_fusion, tuple(FUSIONS))
        self.watched = model

    def on_train_begin(self, logs=None):
        super().on_train_begin(logs)
        self._inputs = pictures_of(self.watched or self.model, self.images)

    def pictures(self):
        attention = attention_rollout(self.watched or self.model, self.images, self.head_fusion)
        return attention_overlay(self._inputs, attention)
