import inspect

import keras
import numpy as np
from keras import ops

from keras_vit.models.preprocessing import normalization_of


def raw_images(images, model):
    """Turns a model's input images back into images of 0..255.

    Args:
        images: Images as the model takes them: a NumPy array or a tensor of the backend.
        model: A model of this package. Where it takes raw images itself, they stay as they are.

    Returns:
        Float32 images of the same shape and kind.

    Raises:
        ValueError: If the model has no `normalization` layer of this package.

    Example:

    >>> student = keras_vit.ViTTi16(num_classes=10)
    >>> float(raw_images(np.ones((1, 1, 1, 3), "float32"), student)[0, 0, 0, 0])
    255.0
    >>> to_teacher = lambda images: keras.applications.resnet.preprocess_input(raw_images(images, student))
    """
    layer = normalization_of(model)
    in_numpy = isinstance(images, np.ndarray)
    images = images.astype("float32") if in_numpy else ops.cast(images, "float32")
    return images if layer.apply else layer.denormalize(images)


class FrozenTeacher:
    """A teacher's logits for the student's images, and nothing that a Keras model would track, train or save.

    The teacher computes with copies of its weights, in inference mode, under stop_gradient, and what it would write,
    as statistics of a batch, is dropped: whatever the student's training does, the teacher's own weights, statistics
    and `trainable` flags are as they were. On JAX the copies are passed to the compiled step, which would otherwise
    hold all weights as constants; and they, not the teacher's own, are given away there when a step is interrupted.

    Args:
        teacher: A built `keras.Model` from images, channels last, to one answer, (batch, num_classes).
        student: The `keras.Model` whose images come.
        preprocessing: Function from the student's images to the teacher's; None: as `Distiller` describes.
        from_logits: Bool, whether the teacher gives logits; False takes probabilities.

    Raises:
        ValueError: If the teacher cannot take the images, or does not give what is said.
    """

    def __init__(self, teacher, student, preprocessing=None, from_logits=True):
        self.model = teacher
        self.from_logits = from_logits
        if not isinstance(teacher, keras.Model) or not teacher.built:
            raise ValueError(
                f"Expected `teacher` to be a built keras.Model: call it on a batch first. Received: {teacher!r}"
            )
        if len(getattr(teacher, "outputs", None) or [0]) > 1:
            raise ValueError(
                f"Expected `teacher` to have one output. Received: {len(teacher.outputs)} outputs of {teacher.name!r}"
            )
        if from_logits and gives_probabilities(teacher):
            raise ValueError(
                f"Expected `teacher_from_logits=False`, since {teacher.name!r} ends in a softmax or sigmoid. Received: "
                f"teacher_from_logits={from_logits!r}"
            )
        self.input_shape = input_shape(teacher)
        if preprocessing is None:
            preprocessing = self._default_preprocessing(student)
        self._preprocessing = preprocessing
        # A model whose `call` is its user's own may have no such argument.
        takes_training = "training" in inspect.signature(teacher.call).parameters
        self._options = {"training": False} if takes_training else {}
        self.copies = [
            keras.Variable(ops.copy(v), trainable=False, dtype=v.dtype, name=v.name) for v in teacher.variables
        ]

    def refresh(self):
        """Copies the teacher's weights again, which may have been loaded or trained since."""
        for copy, variable in zip(self.copies, self.model.variables, strict=True):
            # Keras on JAX would share the array, and give it away with the copy.
            copy.assign(ops.copy(variable))

    def logits(self, images):
        """The teacher's logits, (batch, num_classes), float32, for a batch of the student's images."""
        images = self._resized(self._preprocessing(images))
        values = [ops.stop_gradient(ops.convert_to_tensor(copy)) for copy in self.copies]
        with keras.StatelessScope(state_mapping=list(zip(self.model.variables, values, strict=True))):
            logits = ops.cast(self.model(images, **self._options), "float32")
        if not self.from_logits:
            # Where a softmax has come out as 0 its logarithm shall be low and finite.
            logits = ops.log(ops.maximum(logits, keras.config.epsilon()))
        return ops.stop_gradient(logits)

    def _default_preprocessing(self, student):
        channels, expected = (s and s[-1] for s in (input_shape(student), self.input_shape))
        if channels and expected and channels != expected and (channels, expected) != (1, 3):
            raise ValueError(
                f"Expected `teacher_preprocessing`, since the student's images have {channels} channels and the "
                f"teacher's {expected}. Received: teacher_preprocessing=None"
            )
        theirs, ours = _normalization(self.model), _normalization(student)

        def convert(images):
            convert_range = theirs is not None and ours is not None and _constants(theirs) != _constants(ours)
            if convert_range:
                images = raw_images(images, student)
            if channels != expected and (channels, expected) == (1, 3):
                images = ops.repeat(images, 3, axis=-1)
            return theirs.normalize(images) if convert_range and not theirs.apply else images

        return convert

    def _resized(self, images):
        size = tuple(self.input_shape[1:3]) if self.input_shape else (None, None)
        if None in size or tuple(images.shape[1:3]) == size:
            return images
        return ops.image.resize(ops.cast(images, "float32"), size, "bilinear", data_format="channels_last")


def input_shape(model):
    """The shape of a model's images, (None, height, width, channels), or None where the model does not tell."""
    inputs = getattr(model, "inputs", None)
    return tuple(inputs[0].shape) if inputs and len(inputs) == 1 and len(inputs[0].shape) == 4 else None


def gives_probabilities(model, layers=()):
    """Whether one of the layers, or else a model's last, is surely a softmax or a sigmoid."""
    for layer in layers or model.layers[-1:]:
        activation = getattr(layer, "activation", None)
        if isinstance(layer, keras.layers.Softmax):
            return True
        if activation in (keras.activations.softmax, keras.activations.sigmoid):
            return True
    return False


def _normalization(model):
    try:
        return normalization_of(model)
    except ValueError:
        return None


def _constants(layer):
    return (layer.apply, *(() if layer.apply else layer.preprocessing.offset_and_scale))
