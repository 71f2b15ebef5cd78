import inspect

import keras
from keras import ops

from keras_vit import arguments
from keras_vit.config import find_normalization
from keras_vit.prediction.classes import output_activation
from keras_vit.prediction.preprocessing import require_normalization


def raw_images(images, model: keras.Model):
    """Undoes a model's preprocessing: returns images in [0, 255] as float32, NumPy if given NumPy.

    Args:
        images: Images as the model takes them: a NumPy array or a tensor of the backend.
        model: A model of this package. If it takes raw images, they are not changed.

    Raises:
        ValueError: If the model has no `normalization` layer of this package.

    Example:

    >>> student = keras_vit.ViTTi16(num_classes=10)
    >>> float(raw_images(np.ones((1, 1, 1, 3), "float32"), student)[0, 0, 0, 0])
    255.0
    >>> to_teacher = lambda images: keras.applications.resnet.preprocess_input(raw_images(images, student))
    """
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
        if from_logits and outputs and output_activation(teacher) is None:
            why = f"since {teacher.name!r} ends in a softmax or sigmoid"
            raise ValueError(f"Expected `teacher_from_logits=False`, {why}. Received: {from_logits!r}")
        self.input_shape = _input_shape(teacher)
        self._preprocessing = preprocessing or self._default_preprocessing(student)
        # A custom `call` may not have the argument `training`.
        takes_training = "training" in inspect.signature(teacher.call).parameters
        self._options = {"training": False} if takes_training else {}
        # `weights` omits the seeds of dropout. Inference does not read them, and they differ after a rebuild.
        self.copies = [
            keras.Variable(ops.copy(v), trainable=False, dtype=v.dtype, name=v.name) for v in teacher.weights
        ]

    def refresh(self):
        """Copies the teacher's weights again, in case they changed."""
        for copy, variable in zip(self.copies, self.model.weights, strict=True):
            # JAX donates the copies' arrays to the step, so they must not be shared with the teacher.
            copy.assign(ops.copy(variable))

    def logits(self, images):
        """Returns the teacher's logits, float32 (batch, num_classes), for the student's images."""
        images = self._resized(self._preprocessing(images))
        values = [ops.stop_gradient(ops.convert_to_tensor(copy)) for copy in self.copies]
        with keras.StatelessScope(state_mapping=list(zip(self.model.weights, values, strict=True))):
            logits = ops.cast(self.model(images, **self._options), "float32")
        if not self.from_logits:
            # This avoids log(0).
            logits = ops.log(ops.maximum(logits, keras.config.epsilon()))
        return ops.stop_gradient(logits)

    def _default_preprocessing(self, student):
        channels, expected = (s and s[-1] for s in (_input_shape(student), self.input_shape))
        repeat = (channels, expected) == (1, 3)
        if channels and expected and channels != expected and not repeat:
            why = f"since the student's images have {channels} channels and the teacher's {expected}"
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

    def _resized(self, images):
        size = tuple(self.input_shape[1:3]) if self.input_shape else (None, None)
        if None in size or tuple(images.shape[1:3]) == size:
            return images
        return ops.image.resize(ops.cast(images, "float32"), size, "bilinear", data_format="channels_last")


def _input_shape(model):
    """Returns (None, height, width, channels), or None if unknown."""
    inputs = getattr(model, "inputs", None)
    return tuple(inputs[0].shape) if inputs and len(inputs) == 1 and len(inputs[0].shape) == 4 else None


def _constants(layer):
    return (layer.apply, *(() if layer.apply else layer.preprocessing.offset_and_scale))
