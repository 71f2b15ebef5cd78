"""Converts augmentation layers of Keras and keras-cv to functions of (inputs, seed) in tf.data, on any backend."""

import keras

from keras_vit import arguments
from keras_vit.data.source import tf

# Names of layers that mix several images of a batch, and also mix the labels of these images.
MIXERS = ("MixUp", "CutMix", "Mosaic", "FourierMix")
# If a random operation of TensorFlow takes no seed tensor, its name begins with one of these words.
_UNSEEDED = ("Random", "Rng", "StatefulUniform", "StatefulStandardNormal", "TruncatedNormal", "Multinomial")


def mixes(layer):
    """Returns True if a layer mixes several images of a batch."""
    return type(layer).__name__ in MIXERS


def seeded(layer, inputs):
    """Returns a function of (inputs, seed) that calls a copy of `layer`. The seed determines all random numbers.

    `inputs` is a `tf.TensorSpec` of images of 0..255, or a dict {"images": spec, "labels": spec}.
    """
    name = f"{type(layer).__module__.partition('.')[0]}'s {type(layer).__name__}"
    if type(layer) is keras.layers.AugMix:
        expected = "keras_cv.layers.AugMix, because keras.layers.AugMix draws its operations once for all images"
        raise arguments.invalid("augment", expected, name)
    try:
        # Layers of keras-cv use `if` with tensors, so they need AutoGraph.
        traced = tf.function(unchecked(layer, name), [inputs, tf.TensorSpec((2,), "int64")])
        concrete = traced.get_concrete_function()
    except (AttributeError, NotImplementedError, TypeError, ValueError) as error:
        expected = "a layer that takes a batch of images, or images and labels if the layer mixes images"
        raise ValueError(f"`augment`: Expected {expected}. Received: {name}. {error}") from error
    given, made = ([x.shape for x in tf.nest.flatten(part)] for part in (inputs, concrete.structured_outputs))
    if len(given) != len(made) or not all(map(tf.TensorShape.is_compatible_with, given, made)):
        raise arguments.invalid("augment", f"layers that keep the shapes {[*map(str, given)]}", f"{name}: {made}")
    graph = concrete.graph.as_graph_def()
    nodes = [*graph.node, *(node for function in graph.library.function for node in function.node_def)]
    if unseeded := sorted({node.op for node in nodes if node.op.startswith(_UNSEEDED)}):
        expected = "layers that draw random numbers from keras.random or from a tf.random.Generator in the layer"
        raise arguments.invalid("augment", expected, f"{name}, with {', '.join(unseeded)}")
    if not isinstance(inputs, dict):
        pixels = tf.reshape(tf.linspace(0.0, 255.0, inputs.shape.num_elements()), inputs.shape)
        if (largest := float(tf.reduce_max(traced(pixels, tf.zeros(2, "int64"))))) <= 2:
            received = f"{name}, whose largest output is {largest:.2g}"
            raise arguments.invalid("augment", "layers for pixels of 0..255", received)

    def call_seeded(inputs, seed):
        outputs = traced(inputs, tf.cast(seed, "int64"))
        return tf.nest.map_structure(lambda x, y: tf.ensure_shape(tf.cast(x, y.dtype), y.shape), outputs, inputs)

    return call_seeded


def unchecked(layer, name="keras's layer"):
    """Does the same as `seeded` for inputs of any shape, without checks. `name` is the layer's name in errors."""
    draws = _Draws()
    layer = _replaced(layer, draws, name)

    def call(inputs, seed):
        draws.restart(seed)
        # Layers draw random numbers in Keras' floatx, but compute in float32.
        floatx = keras.config.floatx()
        keras.config.set_floatx("float32")
        try:
            return layer(inputs, training=True)
        finally:
            keras.config.set_floatx(floatx)

    return call


class _Draws:
    """Replaces a tf.random.Generator. The random numbers of a `_Draws` depend only on one seed tensor."""

    def restart(self, seed):
        """Sets the tensor that all later random numbers depend on."""
        self.seed, self.drawn = seed, 0

    def next(self):
        self.drawn += 1
        return tf.random.fold_in(self.seed, self.drawn)

    def uniform(self, shape, minval=0, maxval=None, dtype="float32", name=None):
        maxval = 1 if maxval is None else maxval
        return tf.random.stateless_uniform(shape, self.next(), minval, maxval, dtype)

    def normal(self, shape, mean=0.0, stddev=1.0, dtype="float32", name=None):
        return tf.random.stateless_normal(shape, self.next(), mean, stddev, dtype)

    random_normal = normal

    def beta(self, alpha, beta, shape=()):
        first, second = (tf.random.stateless_gamma(shape, self.next(), x) for x in (alpha, beta))
        return first / (first + second)

    def dirichlet(self, alpha):
        sample = tf.random.stateless_gamma(tf.shape(alpha), self.next(), alpha)
        return sample / tf.reduce_sum(sample, axis=-1, keepdims=True)


class _Seeds(keras.random.SeedGenerator):
    """A Keras seed generator whose seeds come from a `_Draws`, so they do not depend on the order of threads."""

    def __init__(self, draws):
        # Do not call `super().__init__`, which would create a variable for the state.
        self.draws = draws

    def next(self, ordered=True):
        return self.draws.next()


class _Factor:
    """Wraps a factor sampler of keras-cv. Its random numbers come from `draws`, a `_Draws`."""

    def __init__(self, sampler, draws):
        self.sampler, self.draws = sampler, draws

    def __call__(self, shape=(), dtype="float32"):
        sampler = self.sampler
        if hasattr(sampler, "stddev"):
            drawn = self.draws.normal(shape, sampler.mean, sampler.stddev, dtype)
            return tf.clip_by_value(drawn, sampler.min_value, sampler.max_value)
        return self.draws.uniform(shape, sampler.lower, sampler.upper, dtype)


def _copied(value):
    """Returns a copy of a layer. Copies the layers in its config first, because keras-cv's `from_config` does not."""
    if isinstance(value, keras.layers.Layer):
        return type(value).from_config({key: _copied(part) for key, part in value.get_config().items()})
    return [_copied(part) for part in value] if isinstance(value, list) else value


def _replaced(layer, draws, name):
    """Returns a float32 copy of a layer. The copy and its inner layers take random numbers from `draws`, a `_Draws`."""
    if type(layer).__module__.startswith("keras_cv") and type(layer).__name__ in ("MixUp", "CutMix"):
        # MixUp and CutMix of keras-cv use TensorFlow's global seed. Keras' layers with these names mix in the same way.
        options = {"dtype": "float32", "data_format": "channels_last"}
        strength = {"alpha": layer.alpha} if type(layer).__name__ == "MixUp" else {"factor": (layer.alpha,) * 2}
        layer = getattr(keras.layers, type(layer).__name__)(**strength, **options)
    else:
        layer = _copied(layer)
    seeds, seen, waiting = _Seeds(draws), set(), [layer]
    while waiting:
        part = waiting.pop()
        if isinstance(part, (list, tuple)):
            waiting += part
        if not isinstance(part, keras.layers.Layer) or id(part) in seen:
            continue
        seen.add(id(part))
        if (pixels := tuple(getattr(part, "value_range", (0, 255)))) != (0, 255):
            raise arguments.invalid("augment", "layers with value_range=(0, 255)", f"{name}, with {pixels}")
        if getattr(part, "data_format", None) == "channels_first":
            raise arguments.invalid("augment", "layers with data_format='channels_last'", f"{name}, channels_first")
        part.dtype_policy = "float32"
        # Keras documents `_get_seed_generator` as the source of a layer's seeds in tf.data.
        part._get_seed_generator = lambda backend=None: seeds
        for key, method in (("_sample_from_beta", draws.beta), ("_sample_from_dirichlet", draws.dirichlet)):
            if type(part).__module__.startswith("keras_cv") and hasattr(part, key):
                setattr(part, key, method)
        for key, value in list(vars(part).items()):
            if isinstance(value, tf.random.Generator):
                setattr(part, key, draws)
            elif type(value).__name__ in ("UniformFactorSampler", "NormalFactorSampler"):
                setattr(part, key, _Factor(value, draws))
            else:
                waiting.append(value)
    return layer
