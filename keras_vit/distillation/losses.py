"""DeiT's distillation losses (arXiv 2012.12877, section 4), as functions and Keras losses."""

import keras
from keras import ops

from keras_vit import arguments
from keras_vit.prediction.inputs import real_array


def hard_distillation(teacher_logits, logits):
    """Returns the student's cross-entropy for each image, float32 (batch,). The label is the teacher's top-1 class.

    Args:
        teacher_logits: Floats, (batch, num_classes), the logits of the teacher.
        logits: Floats, (batch, num_classes), the logits of the student.

    Example:
    >>> round(float(hard_distillation(np.array([[0.1, 0.3]]), np.array([[0.0, 0.0]]))[0]), 4)
    0.6931

    Reference: [arXiv 2012.12877](https://arxiv.org/abs/2012.12877), equation 3.
    """
    teacher_logits, logits = _as_logits(teacher_logits, logits)
    # Multiply with one-hot labels, because gathering by index is slow in XLA.
    labels = ops.one_hot(ops.argmax(teacher_logits, axis=-1), logits.shape[-1], dtype="float32")
    return -ops.sum(labels * ops.log_softmax(logits, axis=-1), axis=-1)


def soft_distillation(teacher_logits, logits, temperature: float = 3.0):
    """Returns the soft distillation loss of each image, float32 (batch,).

    This is the Kullback-Leibler divergence KL(teacher || student) times temperature^2 / num_classes.

    Args:
        teacher_logits, logits: As in `hard_distillation`.
        temperature: Float above 0, by which the logits of both models are divided.

    Example:
    >>> float(soft_distillation(np.array([[0.0, 3.0]]), np.array([[0.0, 3.0]]))[0])
    0.0

    Reference: [arXiv 2012.12877](https://arxiv.org/abs/2012.12877), equation 2. As in the official code, but not in the
    paper, the result is divided by the number of classes.
    """
    arguments.positive_number("temperature", temperature)
    teacher_logits, logits = _as_logits(teacher_logits, logits)
    teacher_log = ops.log_softmax(teacher_logits / temperature, axis=-1)
    student_log = ops.log_softmax(logits / temperature, axis=-1)
    divergence = ops.sum(ops.exp(teacher_log) * (teacher_log - student_log), axis=-1)
    return divergence * (temperature**2 / logits.shape[-1])


def weighted_loss(base_loss, distillation_loss, alpha: float):
    """Returns `(1 - alpha) * base_loss + alpha * distillation_loss`, for alpha in [0, 1].

    Example:
    >>> weighted_loss(2.0, 4.0, 0.25)
    2.5

    Reference: [arXiv 2012.12877](https://arxiv.org/abs/2012.12877), equation 2, where alpha is called lambda. In
    equation 3, alpha is 0.5.
    """
    arguments.share("alpha", alpha)
    for name, value in (("base_loss", base_loss), ("distillation_loss", distillation_loss)):
        if not hasattr(value, "shape"):
            arguments.number(name, value)
    return (1 - alpha) * base_loss + alpha * distillation_loss


@keras.saving.register_keras_serializable(package="keras_vit")
class HardDistillation(keras.losses.Loss):
    """Keras loss that is the mean of `hard_distillation`. Call it as `loss(teacher_logits, logits, sample_weight)`.

    Example:
    >>> round(float(HardDistillation()(np.array([[0.1, 0.3]]), np.array([[0.0, 0.0]]))), 4)
    0.6931
    """

    def __init__(self, name: str = "hard_distillation", **kwargs):
        super().__init__(name=name, **kwargs)

    def call(self, y_true, y_pred):
        return hard_distillation(y_true, y_pred)


@keras.saving.register_keras_serializable(package="keras_vit")
class SoftDistillation(keras.losses.Loss):
    """Keras loss that is the mean of `soft_distillation`. Call it like `HardDistillation`.

    Args:
        temperature: Float above 0. Other values raise a ValueError.

    Example:
    >>> float(SoftDistillation(temperature=2.0)(np.array([[0.0, 3.0]]), np.array([[0.0, 3.0]])))
    0.0
    """

    def __init__(self, temperature: float = 3.0, name: str = "soft_distillation", **kwargs):
        super().__init__(name=name, **kwargs)
        self.temperature = arguments.positive_number("temperature", temperature)

    def call(self, y_true, y_pred):
        return soft_distillation(y_true, y_pred, self.temperature)

    def get_config(self):
        return {**super().get_config(), "temperature": self.temperature}


def _as_logits(teacher_logits, logits):
    # Do not check the values of tensors, because symbolic tensors have no values.
    given = {"teacher_logits": teacher_logits, "logits": logits}
    given = {name: x if ops.is_tensor(x) else real_array(name, x) for name, x in given.items()}
    for name, x in given.items():
        if len(x.shape) != 2:
            raise arguments.invalid(name, "logits of shape (batch, num_classes)", tuple(x.shape))
    shape, num_classes = tuple(given["teacher_logits"].shape), given["logits"].shape[1]
    if shape[1] != num_classes:
        raise arguments.invalid("teacher_logits", f"logits of {num_classes} classes, as in `logits`", f"shape {shape}")
    return [ops.cast(ops.convert_to_tensor(x), "float32") for x in given.values()]
