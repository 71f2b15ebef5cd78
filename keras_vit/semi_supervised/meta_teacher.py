import keras
from keras import ops

from keras_vit import arguments


class MetaTeacher(keras.Model):
    """Trains the teacher of `MetaPseudoLabels` with Keras' own train step.

    Batches are (images, (labels, drawn, feedback, growth)). The images are the labelled images, the unlabelled images
    and the augmented unlabelled images, in this order. `labels` and `drawn` are classes; `feedback` and the `growth` of
    `uda_weight` are scalars.
    """

    def __init__(self, model, label_smoothing, uda_weight, uda_temperature, uda_threshold):
        super().__init__(dtype=model.dtype_policy, autocast=False)
        self.model = model
        self.label_smoothing = arguments.rate("label_smoothing", label_smoothing)
        self.uda_weight = arguments.number("uda_weight", uda_weight)
        if self.uda_weight < 0:
            raise arguments.invalid("uda_weight", "a number of at least 0", uda_weight)
        self.uda_temperature = arguments.positive_number("uda_temperature", uda_temperature)
        self.uda_threshold = arguments.rate("uda_threshold", uda_threshold)
        self._parts = [keras.metrics.Mean(name=name) for name in ("supervised_loss", "uda_loss", "feedback")]
        self.built = True

    @property
    def state(self):
        """The variables in the groups that a step on JAX takes and returns."""
        optimizer = [] if self.optimizer is None else self.optimizer.variables
        return self.trainable_variables, self.non_trainable_variables, optimizer, self.metrics_variables

    def call(self, images, training=None):
        return self.model(images, training=training)

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        labels, drawn, feedback, growth = y
        first, count = ops.shape(labels)[0], ops.shape(drawn)[0]
        clean, augmented = y_pred[first : first + count], y_pred[first + count :]
        supervised = ops.mean(cross_entropy(labels, y_pred[:first], self.label_smoothing))
        target = ops.stop_gradient(ops.softmax(ops.cast(clean, "float32") / self.uda_temperature))
        sure = ops.cast(ops.max(target, axis=-1) >= self.uda_threshold, "float32")
        uda = ops.mean(sure * cross_entropy(target, augmented))
        for mean, value in zip(self._parts, (supervised, uda, feedback), strict=True):
            mean.update_state(value)
        meta = feedback * ops.mean(cross_entropy(drawn, augmented))
        # self.losses contains the losses of weight regularizers.
        return sum(self.losses, meta + self.uda_weight * growth * uda + supervised)

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        return self.get_metrics_result()


def cross_entropy(labels, logits, label_smoothing=0.0):
    """Returns the cross-entropy, float32 (batch,). `labels` are classes, or a probability for each class."""
    logits = ops.cast(logits, "float32")
    num_classes = logits.shape[-1]
    if len(labels.shape) == 1:
        labels = ops.one_hot(labels, num_classes, dtype="float32")
        labels = labels * (1 - label_smoothing) + label_smoothing / num_classes
    return -ops.sum(labels * ops.log_softmax(logits, axis=-1), axis=-1)
