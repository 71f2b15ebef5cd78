import contextlib
import threading
from types import SimpleNamespace

import keras
from keras import ops

from keras_vit import arguments
from keras_vit.distillation.losses import HardDistillation, SoftDistillation, weighted_loss
from keras_vit.distillation.teacher import FrozenTeacher, gives_probabilities
from keras_vit.models.backbone import HEADS

KINDS = ("hard", "soft")


class _Running(threading.local):
    """Which step runs, in each thread by itself: TensorFlow gives each replica of a strategy its own."""

    step = None


# Not on keras.distillation.Distiller, which Keras 3.10, the oldest for this package, has not. It wants teacher and
# student to take images of one size and type and to give outputs alike, knows no heads, drops sample weights, asks the
# teacher in evaluation too, sets its `trainable`, and tracks it, so that it comes into files of weights.
class Distiller(keras.Model):
    """Trains a student on the labels and on a teacher's answers: DeiT's distillation.

    Compile and fit this model; the weights are the given student's own, and `distiller.student` is the result. In
    training the loss given to `compile` is that of the class head to the labels, and the distillation loss that of the
    distillation head to the teacher. `evaluate`, `predict` and a call answer as the student does: by the mean of its
    heads, and without the teacher.

    A student with two heads is one built with `distillation_token=True`. Any other classifier is a plain student, whose
    one head learns from both.

    The teacher computes with copies of its weights, made here and anew at the start of each `fit`; its own weights,
    statistics and `trainable` flags stay as they are, and it comes into no file: `save`, `export` and with them
    `keras.callbacks.ModelCheckpoint` write the student alone, and `save_weights` the student and the optimizer.

    Metrics beside those given to `compile`, which are of the student's answer: `class_loss` and `distillation_loss` in
    training, and, of a student with two heads, `class_accuracy` and `distillation_accuracy`, each head's share of the
    labels; of mixed labels that of the largest part.

    Args:
        student: A built `keras.Model` from images, (batch, height, width, channels), to logits, (batch, num_classes).
        teacher: Any built `keras.Model` that classifies images, channels last, into the same classes.
        kind: "hard" (the cross entropy to the teacher's most likely class) or "soft" (the divergence from the teacher's
            distribution).
        alpha: Float in [0, 1], the share of the distillation loss. With 1 neither labels nor a loss are needed,
            and a class head of its own learns nothing.
        temperature: Float above 0, for "soft" only.
        teacher_preprocessing: Function from a batch of the student's images to the teacher's, of `keras.ops`. By
            default the constants of the student's `normalization` layer are undone and the teacher's applied where both
            are models of this package, and the teacher gets the student's images as they are otherwise: a model of
            `keras.applications` wants its own `preprocess_input`, of `raw_images(images, student)`. Gray images are
            repeated for a teacher of three channels. In any case images are resized, bilinearly, where the teacher
            has an input size of its own.
        teacher_from_logits: Bool; False for a teacher that gives probabilities, as those of `keras.applications` do.
        **kwargs: Other arguments of `keras.Model`.

    Call arguments:
        inputs: The student's.
        training: Bool.

    Returns:
        The student's outputs.

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
        its table 3's, of the class token alone, which the official code has not.
    """

    def __init__(
        self,
        student,
        teacher,
        kind="hard",
        alpha=0.5,
        temperature=3.0,
        teacher_preprocessing=None,
        teacher_from_logits=True,
        **kwargs,
    ):
        if not isinstance(student, keras.Model) or not getattr(student, "outputs", None):
            raise ValueError(
                f"Expected `student` to be a functional or sequential keras.Model with Input. Received: {student!r}"
            )
        # The student's policy, by which `compile` decides on scaling the loss; but images are the student's to cast,
        # which would otherwise be rounded before they are centred.
        super().__init__(**{"dtype": student.dtype_policy, "autocast": False, **kwargs})
        self.kind = arguments.one_of("kind", kind, KINDS)
        self.alpha = arguments.number("alpha", alpha)
        if not 0 <= self.alpha <= 1:
            raise ValueError(
                f"Invalid value received for argument `alpha`. Expected a number in [0, 1]. Received: {alpha!r}"
            )
        self.temperature = arguments.positive_number("temperature", temperature)
        self.student = student
        heads = _two_heads(student)
        teacher = FrozenTeacher(teacher, student, teacher_preprocessing, teacher_from_logits)
        # In a namespace Keras tracks neither: the teacher comes into no file, and no weight of the student in twice. A
        # property `teacher` would undo that, since Keras saves the weights of whatever a model has as an attribute.
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
        names = ("class", "distillation") if heads is not None else ()
        self._accuracies = {n: keras.metrics.SparseCategoricalAccuracy(name=f"{n}_accuracy") for n in names}
        self._running = _Running()
        self.build(student.inputs[0].shape)

    def build(self, images_shape):
        # The student is built already.
        self.built = True

    @property
    def non_trainable_variables(self):
        """With the copies of the teacher's, thereby arguments of JAX's compiled step; `variables` has none of them."""
        return super().non_trainable_variables + self._hidden.teacher.copies

    def call(self, inputs, training=None):
        step = self._running.step
        if step is None or self._hidden.heads is None:
            answer = self.student(inputs, training=training)
            return answer if step is None else {"answer": answer, "class": answer, "distillation": answer}
        first, second, answer = self._hidden.heads(inputs, training=training)
        return {"answer": answer, "class": first, "distillation": second}

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
        """Makes `call` give the heads, and not only the answer, while a step runs or is traced."""
        self._running.step = step
        try:
            yield
        finally:
            self._running.step = None

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        if self._running.step != "training":
            return super().compute_loss(x, y, _answer(y_pred), sample_weight, training=training)
        # Under a strategy of TensorFlow Keras divides each loss, to sum the gradients of the replicas.
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
            # Each image counts alike, as in Keras' own tracker, also in a last batch that is smaller.
            tracker.update_state(loss * replicas, sample_weight=ops.shape(x)[0])
        return weighted_loss(*losses, self.alpha) + regularization

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        if self._running.step is not None and y is not None:
            labels = ops.argmax(y, axis=-1) if tuple(y.shape[1:]) == (self.num_classes,) else ops.reshape(y, (-1,))
            for name, accuracy in self._accuracies.items():
                accuracy.update_state(labels, y_pred[name], sample_weight)
        results = super().compute_metrics(x, y, _answer(y_pred), sample_weight)
        if self._running.step != "training":
            # Nobody asks the teacher in evaluation.
            for tracker in self._loss_trackers:
                results.pop(tracker.name, None)
        return results

    def save(self, *args, **kwargs):
        """Saves the student, as `student.save` does: neither the teacher nor the optimizer."""
        return self.student.save(*args, **kwargs)

    def export(self, *args, **kwargs):
        """Exports the student, as `student.export` does."""
        return self.student.export(*args, **kwargs)

    def get_config(self):
        raise NotImplementedError("A Distiller has no config, since its teacher may be any model: save the student.")


def _two_heads(student):
    """A model of the student's layers from images to [class logits, distillation logits, answer], or None."""
    if any(isinstance(layer, keras.Model) and _has_two_heads(layer) for layer in student.layers):
        raise ValueError(
            f"Expected a student with a distillation head itself, and not within another model. Received: {student!r}"
        )
    distilled = _has_two_heads(student)
    heads = [student.get_layer(name) for name in HEADS] if distilled else []
    if len(student.outputs) > 1 and not distilled:
        raise ValueError(f"Expected `student` to have one output. Received: {len(student.outputs)} outputs")
    if gives_probabilities(student, heads):
        raise ValueError(
            "Expected `student` to give logits: build it with classifier_activation=None. "
            f"Received: {student.name!r}, which ends in a softmax or sigmoid"
        )
    if not distilled:
        return None
    logits = [head.output for head in heads]
    answer = student.outputs[0] if len(student.outputs) == 1 else keras.layers.Average(dtype="float32")(logits)
    return keras.Model(student.input, [*logits, answer])


def _has_two_heads(model):
    return set(HEADS) <= {layer.name for layer in model.layers}


def _answer(y_pred):
    """The student's answer out of what a step, or a call of a student that returns both heads, has given."""
    if isinstance(y_pred, dict):
        return y_pred["answer"]
    return (y_pred[0] + y_pred[1]) / 2 if isinstance(y_pred, (list, tuple)) else y_pred
