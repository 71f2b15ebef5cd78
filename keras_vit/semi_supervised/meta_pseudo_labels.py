import itertools
from types import SimpleNamespace

import keras
from keras import ops

from keras_vit import arguments
from keras_vit.distribution.processes import num_processes
from keras_vit.models.wrapper import TrainingWrapper
from keras_vit.prediction.classes import fitting_class_names, output_activation


class MetaTeacher(keras.Model):
    """Trains the teacher of `MetaPseudoLabels` with the train step of Keras.

    The input of a step is one array of all labelled, unlabelled and augmented images, in this order. The targets are
    (labels, drawn labels of the augmented images, feedback h, current factor of `uda_weight`).
    """

    def __init__(self, model, label_smoothing, uda_weight, uda_temperature, uda_threshold):
        super().__init__(dtype=model.dtype_policy, autocast=False)
        self.model = model
        self.label_smoothing = arguments.rate("label_smoothing", label_smoothing)
        self.uda_weight = arguments.non_negative_number("uda_weight", uda_weight)
        self.uda_temperature = arguments.positive_number("uda_temperature", uda_temperature)
        self.uda_threshold = arguments.rate("uda_threshold", uda_threshold)
        self._parts = [keras.metrics.Mean(name=name) for name in ("supervised_loss", "uda_loss", "feedback")]
        self.built = True

    @property
    def state(self):
        """The tuple of lists of variables that a train step on JAX takes and returns."""
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
        # Add the losses of the weight regularizers.
        return sum(self.losses, meta + self.uda_weight * growth * uda + supervised)

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        return self.get_metrics_result()


def cross_entropy(labels, logits, label_smoothing=0.0):
    """Returns the cross-entropy of each image, (batch,). `labels` are classes or rows of probabilities."""
    logits = ops.cast(logits, "float32")
    if len(labels.shape) == 1:
        labels = ops.one_hot(labels, logits.shape[-1], dtype="float32")
    options = {"from_logits": True, "label_smoothing": label_smoothing}
    return keras.losses.categorical_crossentropy(labels, logits, **options)


# The momentum of the moving mean of the feedback, as in the official code.
_MOMENTUM = 0.99


class MetaPseudoLabels(TrainingWrapper):
    """Trains a student on labels from a teacher, and trains the teacher to give labels that improve the student.

    Compile this model with two optimizers, and fit it on batches of ((images, unlabelled, augmented), labels) from
    `keras_vit.data.with_unlabelled`. In a batch, `images` are labelled images, and `labels` are their classes, integers
    (batch,). `unlabelled` are other images, and `augmented` are augmented versions of the unlabelled images. Each
    training step has four parts:

    1. The teacher predicts class probabilities for each augmented image. A hard label is drawn at random from these
       probabilities.
    2. The student takes an optimizer step on the cross-entropy of the augmented images with the drawn labels.
    3. The feedback h is the amount by which this step decreased the student's cross-entropy on the labelled images. To
       first order, h is the student's learning rate times the product of gradients in the paper.
    4. The teacher takes an optimizer step on the loss
       `h * cross-entropy(drawn labels) + uda_weight * uda + supervised cross-entropy`. The term uda (unsupervised data
       augmentation) is a cross-entropy that compares the teacher's outputs for augmented images with a target. The
       target is the teacher's probabilities for the same images without augmentation. Images without a confident target
       contribute 0.

    Both models are trained in place. `plain_model` is the student. `evaluate`, `predict` and calls use only the
    student, and `save`, `export` and `keras.callbacks.ModelCheckpoint` write only the student. `save_weights` and
    `keras_vit.training.fit` save both models and both optimizers. After training, you can fine-tune the student on the
    labelled images.

    In training, `loss` and the metrics of `compile` compare the student with the drawn labels. Training also logs the
    means of `teacher_loss`, of its terms `supervised_loss` and `uda_loss` (without `uda_weight`), and of `feedback`.

    Args:
        teacher, student: Two built `keras.Model`s that take the same images and return logits, (batch, num_classes).
        label_smoothing: Float in [0, 1), for the teacher's supervised cross-entropy.
        uda_weight: Float of at least 0, the weight of the uda loss.
        uda_temperature: Float above 0. The logits of the uda target are divided by it.
        uda_threshold: Float in [0, 1). If the largest target probability of an image is below this threshold, the image
            contributes 0 to the mean uda loss.
        uda_steps: Int of at least 0, the number of steps in which the weight of the uda loss grows linearly from 0 to
            `uda_weight`.
        baseline: Bool, whether to subtract the moving mean of the feedback from the feedback. This lowers the variance
            of the feedback. The official code subtracts the mean, and the paper's equation does not.
        seed: Int, the random seed for drawing labels, or None for a random seed.

    Raises:
        ValueError: If an argument is out of range, a model does not return logits, or the models or their class names
            do not match.
        RuntimeError: If `compile` is called with several replicas of TensorFlow or several processes of PyTorch. Each
            replica or process would train a different teacher.

    Example:
    >>> options = {"image_size": 32, "num_layers": 1, "num_classes": 2}
    >>> student = keras_vit.ViT("Ti/16", **options)
    >>> trainer = MetaPseudoLabels(keras_vit.ViT("Ti/16", **options), student, uda_steps=100)
    >>> trainer.compile(keras_vit.training.SGD(0.1), keras_vit.training.SGD(0.05), metrics=["accuracy"])
    >>> images = np.zeros((4, 32, 32, 3))
    >>> history = trainer.fit((images, images, images), np.array([0, 1, 0, 1]), verbose=0)
    >>> sorted(history.history)
    ['accuracy', 'feedback', 'loss', 'supervised_loss', 'teacher_loss', 'uda_loss']

    Reference: [arXiv 2003.10580](https://arxiv.org/abs/2003.10580), section 2 and appendix A. The defaults are from the
    official code for CIFAR-10 with 4,000 labels. The official code differs from the paper and from this class in two
    points. First, it draws no hard labels: its labels are the teacher's probabilities, as constants. The feedback then
    multiplies the cross-entropy of these constants and the teacher's output. The gradient of this cross-entropy is 0.
    Second, the feedback has the opposite sign. This class computes the student's loss before and after the step in
    inference mode, so that dropout does not hide the effect of the step.
    """

    def __init__(
        self,
        teacher: keras.Model,
        student: keras.Model,
        *,
        label_smoothing: float = 0.15,
        uda_weight: float = 8.0,
        uda_temperature: float = 0.7,
        uda_threshold: float = 0.6,
        uda_steps: int = 5000,
        baseline: bool = False,
        seed: int | None = None,
        **kwargs,
    ):
        for name, model in (("teacher", teacher), ("student", student)):
            if not isinstance(model, keras.Model) or not model.built or output_activation(model) != "softmax":
                raise arguments.invalid(name, "a built keras.Model that returns logits of classes", model)
        if student is teacher or student.output_shape != teacher.output_shape:
            expected = f"a separate model with the teacher's {teacher.output_shape[-1]} classes"
            raise arguments.invalid("student", expected, student)
        arguments.same_classes("teacher", *map(fitting_class_names, (teacher, student)), "`student`")
        super().__init__(student, **kwargs)
        self.uda_steps = arguments.non_negative_int("uda_steps", uda_steps)
        trainer = MetaTeacher(teacher, label_smoothing, uda_weight, uda_temperature, uda_threshold)
        # Keep the teacher in a namespace. Keras would train it with the student's optimizer if it were an attribute.
        self._hidden = SimpleNamespace(trainer=trainer)
        self.student = student
        self.seed_generator = keras.random.SeedGenerator(arguments.optional(arguments.non_negative_int, "seed", seed))
        with_baseline = arguments.boolean("baseline", baseline)
        self.baseline = self.add_weight((), "zeros", trainable=False, name="baseline") if with_baseline else None
        self.built = True

    @property
    def plain_model(self):
        return self.student

    @property
    def teacher(self) -> keras.Model:
        """The teacher, which is trained together with the student."""
        return self._hidden.trainer.model

    @property
    def teacher_optimizer(self) -> keras.optimizers.Optimizer | None:
        """The teacher's optimizer; None before `compile`."""
        return self._hidden.trainer.optimizer

    @property
    def variables(self):
        """Includes the variables of the teacher and its optimizer, so that checkpoints of a run contain them."""
        return [*super().variables, *itertools.chain(*self._hidden.trainer.state)]

    @property
    def trainable_variables(self):
        return self.student.trainable_variables

    @property
    def non_trainable_variables(self):
        trained = {id(v) for v in self.trainable_variables}
        return [v for v in self.variables if id(v) not in trained]

    def compile(self, optimizer, teacher_optimizer, **options):
        """Configures training.

        Args:
            optimizer: Keras optimizer of the student, or its name.
            teacher_optimizer: Keras optimizer of the teacher, or its name.
            **options: Other arguments of `keras.Model.compile`, except `loss`, which is always the cross-entropy.
        """
        if optimizer is teacher_optimizer and isinstance(optimizer, keras.optimizers.Optimizer):
            raise arguments.invalid("teacher_optimizer", "another optimizer than the student's", teacher_optimizer)
        backend = keras.backend.backend()
        if self.num_replicas > 1 or (backend == "torch" and num_processes() > 1):
            raise RuntimeError(
                f"Expected one device, or the JAX backend (KERAS_BACKEND=jax). Received: several devices with {backend}"
            )
        self._hidden.trainer.compile(teacher_optimizer)
        self._hidden.trainer.optimizer.build(self.teacher.trainable_variables)
        super().compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True), **options)

    def run_record(self):
        """Returns what `keras_vit.training.fit` compares on resuming, in addition to the public attributes."""
        trainer = self._hidden.trainer
        names = ("label_smoothing", "uda_weight", "uda_temperature", "uda_threshold")
        settings = {name: getattr(trainer, name) for name in names}
        return {"model": {"teacher": self.teacher, **settings}, "optimizer": {"teacher": self.teacher_optimizer}}

    def forward_passes(self):
        return [self.student, self.teacher]

    def call(self, inputs, training=None):
        # A training batch is (images, unlabelled, augmented). Use only the labelled images.
        return self.student(inputs[0] if isinstance(inputs, (tuple, list)) else inputs, training=training)

    def reset_metrics(self):
        super().reset_metrics()
        self._hidden.trainer.reset_metrics()

    def compute_loss(self, x=None, y=None, *args, **options):
        # Keras calls this method with the labels before the first step and in `evaluate`.
        if y is None or len(y.shape) != 1:
            raise _wrong_batch(x, y) if isinstance(x, (tuple, list)) else arguments.invalid("y", "integers (batch,)", y)
        return super().compute_loss(x, y, *args, **options)

    def train_step(self, *args):
        # On JAX, a step takes and returns the values of all variables, `state`. On other backends, `state` is None.
        state, data = args if len(args) == 2 else (None, *args)
        inputs, labels, weights = keras.utils.unpack_x_y_sample_weight(data)
        if weights is not None:
            raise ValueError("Expected training without `sample_weight` and `class_weight`. Received: weights")
        if not isinstance(inputs, (tuple, list)) or len(inputs) != 3 or labels is None or len(labels.shape) != 1:
            raise _wrong_batch(inputs, labels)
        images, unlabelled, augmented = inputs
        (drawn, before, growth), state = self._call(state, self._begin, images, labels, augmented)
        logs, state = _step(super().train_step, state, (augmented, drawn))
        feedback, state = self._call(state, self._feedback, images, labels, before)
        batch = ops.concatenate([images, unlabelled, augmented]), (labels, drawn, feedback, growth)
        teacher_logs, state = self._teach(state, batch)
        logs = {**logs, **teacher_logs}
        return logs if state is None else (logs, state)

    def _begin(self, images, labels, augmented):
        """Returns the drawn labels, the student's loss on labelled images, and the current factor of `uda_weight`."""
        logits = ops.cast(self.teacher(augmented, training=False), "float32")
        drawn = keras.random.categorical(ops.stop_gradient(logits), 1, dtype="int32", seed=self.seed_generator)
        steps = ops.cast(self.teacher_optimizer.iterations, "float32")
        growth = ops.minimum(steps / max(1, self.uda_steps), 1.0) if self.uda_steps else ops.ones(())
        return drawn[:, 0], self._labelled_loss(images, labels), growth

    def _feedback(self, images, labels, before):
        feedback = before - self._labelled_loss(images, labels)
        if self.baseline is not None:
            self.baseline.assign(_MOMENTUM * self.baseline + (1 - _MOMENTUM) * feedback)
            feedback = feedback - self.baseline
        return feedback

    def _labelled_loss(self, images, labels):
        logits = self.student(images, training=False)
        return ops.stop_gradient(ops.mean(cross_entropy(labels, logits)))

    def _call(self, state, function, *args):
        """Calls a function that changes variables; returns (result, new state). Only JAX has a state."""
        if state is None:
            return function(*args), None
        weights, others, *rest = state
        variables = self.non_trainable_variables
        mapping = [*zip(self.trainable_variables, weights, strict=True), *zip(variables, others, strict=True)]
        with keras.StatelessScope(state_mapping=mapping) as scope:
            result = function(*args)
        return result, (weights, [scope.get_current_value(v) for v in variables], *rest)

    def _teach(self, state, batch):
        """Takes a train step of the teacher; returns (logs, state). The teacher's variables come last in `state[1]`."""
        trainer = self._hidden.trainer
        if state is None:
            logs, _ = _step(trainer.train_step, None, batch)
        else:
            weights, others, *rest = state
            own = len(others) - sum(map(len, trainer.state))
            values = iter(others[own:])
            taught = tuple([next(values) for _ in group] for group in trainer.state)
            logs, taught = trainer.train_step(taught, batch)
            state = (weights, [*others[:own], *itertools.chain(*taught)], *rest)
        return {"teacher_loss" if name == "loss" else name: value for name, value in logs.items()}, state

    # Save the state of the random generator, which Keras does not save. A resumed run would otherwise repeat its draws.
    def save_own_variables(self, store):
        store["seed_generator"] = ops.convert_to_numpy(self.seed_generator.state).astype("int64")
        if self.baseline is not None:
            store["baseline"] = ops.convert_to_numpy(self.baseline)

    def load_own_variables(self, store):
        state = self.seed_generator.state
        state.assign(ops.cast(store["seed_generator"][:], state.dtype))
        if self.baseline is not None:
            self.baseline.assign(store["baseline"][()])


def _wrong_batch(inputs, labels):
    shapes = [getattr(part, "shape", None) for part in keras.tree.flatten((inputs, labels))]
    expected = "batches of ((images, unlabelled, augmented), labels), with integers (batch,) as labels"
    return ValueError(f"Expected {expected}. Received: shapes {shapes}")


def _step(step, state, data):
    return (step(data), None) if state is None else step(state, data)
