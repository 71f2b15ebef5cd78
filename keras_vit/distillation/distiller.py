import contextlib
import threading
from collections.abc import Callable
from types import SimpleNamespace

import keras
from keras import ops

from keras_vit import arguments
from keras_vit.distillation.losses import HardDistillation, SoftDistillation, weighted_loss
from keras_vit.distillation.teacher import FrozenTeacher
from keras_vit.models.backbone import HEADS
from keras_vit.models.predictions import activation_of
from keras_vit.models.wrapper import TrainingWrapper


class _Running(threading.local):
    """The running step, by thread: TensorFlow gives each replica of a strategy its own."""

    step = None


# Not on keras.distillation.Distiller: Keras 3.10 does not have it. It also needs a teacher with the student's input and
# output shapes, supports neither two heads nor sample weights, calls the teacher in evaluation, and saves its weights.
class Distiller(TrainingWrapper):
    """Trains a student on the labels and on a teacher's outputs: DeiT's distillation.

    Compile and fit this model. In training the loss given to `compile` is that of the class head to the labels, and the
    distillation loss that of the distillation head to the teacher. `evaluate`, `predict` and a call use the student's
    outputs, the mean of its heads, without the teacher.

    A student with two heads is built with `distillation_token=True`. Any other classifier is a plain student, whose one
    head learns from both.

    `plain_model`, the given student, is trained in place. `save`, `export` and `keras.callbacks.ModelCheckpoint` write
    it alone; `save_weights` keeps the student and the optimizer. The teacher computes with copies of its weights, made
    here and at the start of each `fit`; it is not changed and comes into no file.

    Metrics in addition to those given to `compile`: `class_loss` and `distillation_loss` in training, and, for a
    student with two heads, `class_accuracy` and `distillation_accuracy`, each head's accuracy on the labels; for mixed
    labels on the class with the largest part.

    Args:
        student: A built `keras.Model` from images, (batch, height, width, channels), to logits, (batch, num_classes).
        teacher: Any built `keras.Model` that classifies images, channels last, into the same classes.
        kind: "hard" (the cross entropy to the teacher's most likely class) or "soft" (the divergence from the teacher's
            distribution).
        alpha: Float in [0, 1], the share of the distillation loss. With 1 neither labels nor a loss are needed, and
            the class head of a student with two learns nothing.
        temperature: Float above 0, for "soft" only.
        teacher_preprocessing: Function from a batch of the student's images to the teacher's, of `keras.ops`. By
            default the constants of the student's `normalization` layer are undone and the teacher's applied if both
            are models of this package, and otherwise the teacher gets the student's images: a model of
            `keras.applications` needs its own `preprocess_input` of `raw_images(images, student)`. Grey images are
            repeated for a teacher of three channels. Images are always resized, bilinearly, if the teacher has a fixed
            input size.
        teacher_from_logits: Bool; False for a teacher that returns probabilities, as those of `keras.applications` do.
        **kwargs: Other arguments of `keras.Model`.

    Raises:
        ValueError: If an argument is out of its range, or the models do not fit each other.

    Example:

    >>> options = {"image_size": 32, "num_layers": 1, "num_classes": 2}
    >>> student = keras_vit.ViT("Ti/16", distillation_token=True, **options)
    >>> distiller = Distiller(student, teacher=keras_vit.ViT("Ti/16", **options))
    >>> distiller.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    >>> history = distiller.fit(np.zeros((4, 32, 32, 3)), np.array([0, 1, 0, 1]), verbose=0)
    >>> sorted(history.history)
    ['class_accuracy', 'class_loss', 'distillation_accuracy', 'distillation_loss', 'loss']

    Reference: [arXiv 2012.12877](https://arxiv.org/abs/2012.12877), section 4. Hard distillation of a plain student is
    that of the class token alone in its table 3, which the official code does not have.
    """

    def __init__(
        self,
        student: keras.Model,
        teacher: keras.Model,
        kind: str = "hard",
        alpha: float = 0.5,
        temperature: float = 3.0,
        teacher_preprocessing: Callable | None = None,
        teacher_from_logits: bool = True,
        **kwargs,
    ):
        if not isinstance(student, keras.Model) or not getattr(student, "outputs", None):
            raise ValueError(
                f"Expected `student` to be a functional or sequential keras.Model with Input. Received: {student!r}"
            )
        # `compile` decides by the student's policy on scaling the loss. The student itself casts its images.
        super().__init__(**{"dtype": student.dtype_policy, "autocast": False, **kwargs})
        self.kind = arguments.one_of("kind", kind, ("hard", "soft"))
        self.alpha = arguments.number("alpha", alpha)
        if not 0 <= self.alpha <= 1:
            raise ValueError(
                f"Invalid value received for argument `alpha`. Expected a number in [0, 1]. Received: {alpha!r}"
            )
        self.temperature = arguments.positive_number("temperature", temperature)
        self.student = student
        heads, distilled = _heads(student)
        teacher = FrozenTeacher(teacher, student, teacher_preprocessing, teacher_from_logits)
        # Keras would track them, and save the teacher, if they were attributes or properties.
        self._hidden = SimpleNamespace(heads=heads, teacher=teacher)
        self.num_classes = int(student.outputs[0].shape[-1])
        outputs = getattr(teacher.model, "outputs", None)
        if outputs and outputs[0].shape[-1] != self.num_classes:
            raise ValueError(
                f"Expected `teacher` to have the student's {self.num_classes} classes. "
                f"Received: {outputs[0].shape[-1]} classes"
            )
        self._distillation = HardDistillation() if kind == "hard" else SoftDistillation(self.temperature)
        self._loss_trackers = [keras.metrics.Mean(name=name) for name in ("class_loss", "distillation_loss")]
        names = ("class", "distillation") if distilled else ()
        self._accuracies = {n: keras.metrics.SparseCategoricalAccuracy(name=f"{n}_accuracy") for n in names}
        self._running = _Running()
        self.built = True

    @property
    def plain_model(self):
        return self.student

    @property
    def non_trainable_variables(self):
        """With the copies of the teacher's weights, as arguments of JAX's compiled step; `variables` is without."""
        return super().non_trainable_variables + self._hidden.teacher.copies

    def call(self, inputs, training=None):
        if self._running.step is None:
            return self.student(inputs, training=training)
        class_logits, distillation_logits, output = self._hidden.heads(inputs, training=training)
        return {"output": output, "class": class_logits, "distillation": distillation_logits}

    def fit(self, *args, **kwargs):
        self._hidden.teacher.refresh()
        return super().fit(*args, **kwargs)

    def train_step(self, *args):
        # (data,) or, on JAX, (state, data).
        with self._within("training"):
            return super().train_step(*args)

    def test_step(self, *args):
        with self._within("evaluation"):
            return super().test_step(*args)

    @contextlib.contextmanager
    def _within(self, step):
        """Makes `call` return the heads too while a step runs or is traced."""
        self._running.step = step
        try:
            yield
        finally:
            self._running.step = None

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        if self._running.step != "training":
            return super().compute_loss(x, y, _output(y_pred), sample_weight, training=training)
        # With a strategy of TensorFlow Keras divides each loss and sums the gradients of the replicas.
        strategy = getattr(self, "distribute_strategy", None)
        replicas = 1 if strategy is None else strategy.num_replicas_in_sync
        regularization = sum((ops.sum(loss) for loss in self.losses), start=0.0) / replicas
        class_loss = 0.0
        if self.alpha < 1:
            class_loss = super().compute_loss(x, y, y_pred["class"], sample_weight, training=training) - regularization
        teacher_logits = self._hidden.teacher.logits(x)
        distillation_loss = self._distillation(teacher_logits, y_pred["distillation"], sample_weight)
        losses = (class_loss, distillation_loss)
        for tracker, loss in zip(self._loss_trackers, losses, strict=True):
            # As in Keras' own tracker each image counts the same, also in a smaller last batch.
            tracker.update_state(loss * replicas, sample_weight=ops.shape(x)[0])
        return weighted_loss(*losses, self.alpha) + regularization

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        if self._running.step is not None and y is not None:
            labels = ops.argmax(y, axis=-1) if tuple(y.shape[1:]) == (self.num_classes,) else ops.reshape(y, (-1,))
            for name, accuracy in self._accuracies.items():
                accuracy.update_state(labels, y_pred[name], sample_weight)
        results = super().compute_metrics(x, y, _output(y_pred), sample_weight)
        if self._running.step != "training":
            # Evaluation does not call the teacher.
            for tracker in self._loss_trackers:
                results.pop(tracker.name, None)
        return results


def _heads(student):
    """A model from images to [class logits, distillation logits, output], and whether the student has two heads."""
    if any(isinstance(layer, keras.Model) and _has_two_heads(layer) for layer in student.layers):
        raise ValueError(
            f"Expected a student with a distillation head itself, and not within another model. Received: {student!r}"
        )
    distilled = _has_two_heads(student)
    if len(student.outputs) > 1 and not distilled:
        raise ValueError(f"Expected `student` to have one output. Received: {len(student.outputs)} outputs")
    logits = [student.get_layer(name).output for name in HEADS] if distilled else student.outputs * 2
    output = student.outputs[0] if len(student.outputs) == 1 else keras.layers.Average(dtype="float32")(logits)
    if activation_of(keras.Model(student.inputs, output)) is None:
        raise ValueError(
            "Expected `student` to give logits: build it with classifier_activation=None. "
            f"Received: {student.name!r}, which ends in a softmax or sigmoid"
        )
    return keras.Model(student.inputs[0], [*logits, output]), distilled


def _has_two_heads(model):
    return set(HEADS) <= {layer.name for layer in model.layers}


def _output(y_pred):
    """The student's output, from the outputs of a step or from those of a student that returns both heads."""
    if isinstance(y_pred, dict):
        return y_pred["output"]
    return (y_pred[0] + y_pred[1]) / 2 if isinstance(y_pred, (list, tuple)) else y_pred
