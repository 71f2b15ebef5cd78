import contextvars
import inspect
from collections.abc import Callable
from types import SimpleNamespace

import keras
from keras import ops

from keras_vit import arguments
from keras_vit.config import find_normalization
from keras_vit.distillation.losses import HardDistillation, SoftDistillation, weighted_loss
from keras_vit.models.backbone import HEADS
from keras_vit.models.family import cut_from
from keras_vit.models.graph import activation_behind, is_graph, producing_call
from keras_vit.models.wrapper import TrainingWrapper
from keras_vit.prediction.classes import fitting_class_names, output_activation, postprocess_kind
from keras_vit.prediction.inputs import real_array
from keras_vit.prediction.preprocessing import require_normalization


def raw_images(images, model: keras.Model):
    """Converts a model's input images back to pixels in [0, 255], float32.

    Args:
        images: Images in the model's value range, (batch, height, width, channels). A NumPy array gives a NumPy array,
            and a tensor of the backend gives a tensor.
        model: A model with a `normalization` layer of this package. If the model was built with
            `include_preprocessing=True`, the images are returned unchanged.

    Raises:
        ValueError: If the model has no `normalization` layer of this package.

    Example:
    >>> student = keras_vit.ViTTi16(num_classes=10)
    >>> float(raw_images(np.ones((1, 1, 1, 3), "float32"), student)[0, 0, 0, 0])
    255.0
    >>> to_teacher = lambda images: keras.applications.resnet.preprocess_input(raw_images(images, student))
    """
    if len((images if ops.is_tensor(images) else real_array("images", images)).shape) != 4:
        raise arguments.invalid("images", "an array (batch, height, width, channels)", images)
    return require_normalization(model).raw_images(images)


class FrozenTeacher:
    """Computes a teacher's logits with copies of its weights, in inference mode and without gradients."""

    def __init__(self, teacher, student, preprocessing=None, from_logits=True):
        self.model = teacher
        self.from_logits = from_logits
        if not isinstance(teacher, keras.Model) or not teacher.built:
            raise arguments.invalid("teacher", "a built keras.Model: call it on a batch first", teacher)
        outputs = getattr(teacher, "outputs", None) or ()
        if len(outputs) > 1:
            raise ValueError(f"Expected `teacher` to have one output. Received: {len(outputs)} of {teacher.name!r}")
        if outputs and postprocess_kind(teacher) != "classify":
            raise arguments.invalid("teacher", "a classifier of classes that exclude each other", teacher.name)
        ending = activation_behind(outputs[0], ("softmax", "sigmoid", "linear")) if outputs else None
        if ending is not None and from_logits != (ending == "linear"):
            why = f"since {teacher.name!r} returns {'probabilities' if from_logits else 'logits'}"
            raise ValueError(f"Expected `teacher_from_logits={not from_logits}`, {why}. Received: {from_logits!r}")
        self.input_shape = _input_shape(teacher)
        self._preprocessing = preprocessing or self._default_preprocessing(student)
        # Pass `training` only if the teacher's `call` has this argument.
        takes_training = "training" in inspect.signature(teacher.call).parameters
        self._options = {"training": False} if takes_training else {}
        # Copy only `weights`. The list `variables` also contains the seeds of dropout, which inference does not need.
        self.copies = [
            keras.Variable(ops.copy(v), trainable=False, dtype=v.dtype, name=v.name) for v in teacher.weights
        ]

    def refresh(self):
        """Copies the teacher's weights again, because they may have changed."""
        for copy, variable in zip(self.copies, self.model.weights, strict=True):
            # Copy each array. A JAX training step may overwrite the copies, and the teacher must keep its own arrays.
            copy.assign(ops.copy(variable))

    def logits(self, images):
        """Returns the teacher's logits, float32 (batch, num_classes), for the student's images."""
        images = self._preprocessing(images)
        size = tuple(self.input_shape[1:3]) if self.input_shape else (None, None)
        if None not in size and tuple(images.shape[1:3]) != size:
            images = ops.image.resize(ops.cast(images, "float32"), size, "bilinear", data_format="channels_last")
        values = [ops.stop_gradient(ops.convert_to_tensor(copy)) for copy in self.copies]
        with keras.StatelessScope(state_mapping=list(zip(self.model.weights, values, strict=True))):
            logits = ops.cast(self.model(images, **self._options), "float32")
        if not self.from_logits:
            # The lower bound avoids log(0).
            logits = ops.log(ops.maximum(logits, keras.config.epsilon()))
        return ops.stop_gradient(logits)

    def _default_preprocessing(self, student):
        channels, expected = (s and s[-1] for s in (_input_shape(student), self.input_shape))
        repeat = (channels, expected) == (1, 3)
        if channels and expected and channels != expected and not repeat:
            why = f"since the student takes {channels} channels and the teacher takes {expected} channels"
            raise ValueError(f"Expected `teacher_preprocessing`, {why}. Received: teacher_preprocessing=None")
        theirs, ours = find_normalization(self.model), find_normalization(student)
        rescale = None not in (theirs, ours) and _constants(theirs) != _constants(ours)

        def convert(images):
            if rescale:
                images = raw_images(images, student)
            if repeat:
                images = ops.repeat(images, 3, axis=-1)
            return theirs.normalize(images) if rescale and not theirs.apply else images

        return convert


def _input_shape(model):
    """Returns the input shape (None, height, width, channels) of a model, or None if it is unknown."""
    inputs = getattr(model, "inputs", None)
    return tuple(inputs[0].shape) if inputs and len(inputs) == 1 and len(inputs[0].shape) == 4 else None


def _constants(layer):
    return (layer.apply, *(() if layer.apply else layer.preprocessing.offset_and_scale))


# The step that is running: "training", "evaluation" or None. TensorFlow runs each replica in a thread of its own, so
# each thread has a separate value.
_STEP = contextvars.ContextVar("step", default=None)


# This class is needed because keras.distillation.Distiller does not support two heads or sample weights.
class Distiller(TrainingWrapper):
    """Trains a student on labels and a teacher's outputs, as in DeiT.

    Compile and fit this model. In training, the loss given to `compile` compares the class head with the labels, and
    the distillation loss compares the distillation head with the teacher. A ViT that is built with
    `distillation_token=True` has these two heads. Any other classifier uses its single head for both losses.
    `evaluate`, `predict` and calls use only the student. If the student has two heads, it returns their mean.

    `plain_model` is the student, which is trained in place. `save`, `export` and `keras.callbacks.ModelCheckpoint`
    write only the student. `save_weights` also writes the optimizer. The teacher is not changed or saved. The
    constructor and each `fit` copy the teacher's weights. Training adds the metrics `class_loss` and
    `distillation_loss`. If the student has two heads, training also adds the accuracy of each head on the labels,
    `class_accuracy` and `distillation_accuracy`.

    Args:
        student: A built `keras.Model` that takes images, (batch, height, width, channels), and returns logits, (batch,
            num_classes).
        teacher: A built `keras.Model` that classifies channels-last images into the same classes.
        kind: The distillation loss: "hard" (cross-entropy with the teacher's top-1 class) or "soft" (Kullback-Leibler
            divergence from the teacher's probabilities).
        alpha: Float in [0, 1], the weight of the distillation loss. With 1, labels and a loss are not needed, and the
            class head of a student with two heads is not trained.
        temperature: Float above 0. With "soft", the logits of teacher and student are divided by the temperature. With
            "hard", it is not used.
        teacher_preprocessing: Function that converts the student's images to the teacher's images, with `keras.ops`. If
            the teacher comes from `keras.applications`, pass a function that calls the teacher's `preprocess_input`
            with `raw_images(images, student)`, as in the example of `raw_images`. With None, the teacher gets the
            student's images, with two changes. If teacher and student are both models of this package, the pixels are
            scaled as the teacher expects. If the student's images are grey and the teacher takes 3 channels, the
            channel is repeated. With or without a function, images are resized bilinearly if the teacher has a fixed
            input size.
        teacher_from_logits: Bool. Pass False if the teacher returns probabilities, as models of `keras.applications`
            do by default.

    Raises:
        ValueError: If an argument is out of range, or the models or their class names do not match.

    Example:
    >>> options = {"image_size": 32, "num_layers": 1, "num_classes": 2}
    >>> student = keras_vit.ViT("Ti/16", distillation_token=True, **options)
    >>> distiller = Distiller(student, teacher=keras_vit.ViT("Ti/16", **options))
    >>> distiller.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    >>> history = distiller.fit(np.zeros((4, 32, 32, 3)), np.array([0, 1, 0, 1]), verbose=0)
    >>> sorted(history.history)
    ['class_accuracy', 'class_loss', 'distillation_accuracy', 'distillation_loss', 'loss']

    Reference: [arXiv 2012.12877](https://arxiv.org/abs/2012.12877), section 4. Table 3 of the paper includes hard
    distillation of a student with one head. The official code does not support it.
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
            raise arguments.invalid("student", "a functional or sequential keras.Model with Input", student)
        super().__init__(student, **kwargs)
        self.kind = arguments.choice("kind", kind, ("hard", "soft"))
        self.alpha = arguments.share("alpha", alpha)
        self.temperature = arguments.positive_number("temperature", temperature)
        self.student = student
        arguments.boolean("teacher_from_logits", teacher_from_logits)
        arguments.optional(arguments.function, "teacher_preprocessing", teacher_preprocessing)
        heads = _heads(student)
        teacher = FrozenTeacher(teacher, student, teacher_preprocessing, teacher_from_logits)
        # Keep these in a namespace, because Keras would track and save models that are attributes of this model.
        self._hidden = SimpleNamespace(heads=heads, teacher=teacher)
        self.num_classes = int(student.outputs[0].shape[-1])
        outputs = getattr(teacher.model, "outputs", None)
        if outputs and outputs[0].shape[-1] != self.num_classes:
            expected = f"Expected `teacher` to have the student's {self.num_classes} classes"
            raise ValueError(f"{expected}. Received: {outputs[0].shape[-1]} classes")
        arguments.same_classes("teacher", *map(fitting_class_names, (teacher.model, student)), "`student`")
        self._distillation = HardDistillation() if kind == "hard" else SoftDistillation(self.temperature)
        self._loss_trackers = [keras.metrics.Mean(name=name) for name in ("class_loss", "distillation_loss")]
        names = ("class", "distillation") if heads else ()
        self._accuracies = {n: keras.metrics.SparseCategoricalAccuracy(name=f"{n}_accuracy") for n in names}
        self.built = True

    @property
    def plain_model(self):
        return self.student

    def forward_passes(self):
        return [model for model in (self.student, self._hidden.heads) if model is not None]

    @property
    def non_trainable_variables(self):
        """Contains also the copies of the teacher's weights, so that JAX passes them to the compiled training step.

        `variables` does not contain the copies, so that they are not saved.
        """
        return super().non_trainable_variables + self._hidden.teacher.copies

    def call(self, inputs, training=None):
        if _STEP.get() is None:
            return self.student(inputs, training=training)
        if self._hidden.heads is None:
            class_logits = distillation_logits = output = self.student(inputs, training=training)
        else:
            class_logits, distillation_logits, output = self._hidden.heads(inputs, training=training)
        return {"output": output, "class": class_logits, "distillation": distillation_logits}

    def fit(self, *args, **kwargs):
        self._hidden.teacher.refresh()
        return super().fit(*args, **kwargs)

    def train_step(self, *args):
        # `args` is (data,), or (state, data) on JAX.
        return _within("training", super().train_step, args)

    def test_step(self, *args):
        return _within("evaluation", super().test_step, args)

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        if _STEP.get() != "training":
            return super().compute_loss(x, y, _output(y_pred), sample_weight, training=training)
        regularization = sum((ops.sum(loss) for loss in self.losses), start=0.0) / self.num_replicas
        class_loss = 0.0
        if self.alpha < 1:
            class_loss = super().compute_loss(x, y, y_pred["class"], sample_weight, training=training) - regularization
        teacher_logits = self._hidden.teacher.logits(x)
        distillation_loss = self._distillation(teacher_logits, y_pred["distillation"], sample_weight)
        losses = (class_loss, distillation_loss)
        for tracker, loss in zip(self._loss_trackers, losses, strict=True):
            # Weight the mean over batches by the batch size, as Keras does for `loss`.
            tracker.update_state(loss * self.num_replicas, sample_weight=ops.shape(x)[0])
        return weighted_loss(*losses, self.alpha) + regularization

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        if _STEP.get() is not None and y is not None:
            labels = ops.argmax(y, axis=-1) if tuple(y.shape[1:]) == (self.num_classes,) else ops.reshape(y, (-1,))
            for name, accuracy in self._accuracies.items():
                accuracy.update_state(labels, y_pred[name], sample_weight)
        results = super().compute_metrics(x, y, _output(y_pred), sample_weight)
        if _STEP.get() != "training":
            # Evaluation does not compute the two losses, so remove their metrics.
            for tracker in self._loss_trackers:
                results.pop(tracker.name, None)
        return results


def _within(step, function, args):
    """Calls a function in a step of this name, so that the distiller's `call` returns the outputs of both heads."""
    token = _STEP.set(step)
    try:
        return function(*args)
    finally:
        _STEP.reset(token)


def _heads(student):
    """Returns a model that maps images to [class logits, distillation logits, mean of both]; None for one head."""
    heads = _two_heads(student.outputs)
    if not all(producing_call(x)[0] in student.layers for x in heads):
        received = f"{student}, which contains a model with two heads. Pass the nested model."
        raise ValueError(f"Expected `student` to have the two heads itself. Received: {received}")
    if len(student.outputs) > 1 and not heads:
        expected = "`student` to have one output, or two heads that return logits"
        raise ValueError(f"Expected {expected}. Received: {len(student.outputs)} outputs")
    output = student.outputs[0] if len(student.outputs) == 1 else keras.layers.Average(dtype="float32")(heads)
    if output_activation(keras.Model(student.inputs, output)) != "softmax":
        received = f"{student.name!r}. Build it with classifier_activation=None and task='single_label'."
        expected = "`student` to return logits of two or more classes that exclude each other"
        raise ValueError(f"Expected {expected}. Received: {received}")
    return cut_from(student, student.inputs, [*heads, output]) if heads else None


def _two_heads(outputs):
    """Returns [class logits, distillation logits] if `outputs` are both logits or their mean, otherwise []."""
    operation, _, inputs, _ = producing_call(outputs[0])
    if is_graph(operation):
        return _two_heads(operation.outputs)
    if len(outputs) == 1 and inputs and not operation.weights:
        return _two_heads(inputs)
    found = {producing_call(x)[0].name: x for x in outputs}
    return [found[name] for name in HEADS] if found.keys() == set(HEADS) else []


def _output(y_pred):
    """Returns the student's output. `y_pred` is this output, a pair with both heads' outputs, or a dict from `call`."""
    if isinstance(y_pred, dict):
        return y_pred["output"]
    return (y_pred[0] + y_pred[1]) / 2 if isinstance(y_pred, (list, tuple)) else y_pred
