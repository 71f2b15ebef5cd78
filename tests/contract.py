"""What every layer and every model must keep: one call each, at the head of its test file."""

import functools
import inspect
import json
import tempfile
from pathlib import Path

import keras
import numpy as np
from keras import ops

# The tolerances relative to the largest output: three times the rounding error of a few matrix products.
LOW_PRECISION = {"mixed_bfloat16": ("bfloat16", 4e-2), "mixed_float16": ("float16", 1e-2)}
# The long run checks each of these policies.
POLICIES = ("mixed_bfloat16",)


def check_layer(
    cls,
    init_kwargs,
    input_shape,
    *,
    output_shape,
    num_weights=0,
    num_non_trainable=0,
    num_seeds=0,
    symbolic_shape=None,
    training_shape=None,
    always_float32=False,
    no_gradient=(),
):
    """Checks all that a layer of this package promises, whatever it computes.

    Args:
        cls: The layer's class.
        init_kwargs: Dict, its arguments.
        input_shape: Shape of its input with the batch, or a list of one shape a positional input.
        output_shape: The shape that must come out.
        num_weights: How many weights it must have, and `num_non_trainable` how many of them do not train.
        num_seeds: How many seed generators it must own.
        symbolic_shape: The shape inferred from the input's shape, where a shape cannot say as much as `output_shape`.
        training_shape: The shape that comes out in training, where it is another.
        always_float32: Whether its output is float32 under any dtype policy.
        no_gradient: Ends of the paths of weights whose gradient is zero by the mathematics.

    Returns:
        The layer, built, with the random weights of the check.
    """
    shapes = input_shape if isinstance(input_shape, list) else [input_shape]
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal(shape).astype("float32") for shape in shapes]

    layer = cls(**init_kwargs)
    if keras.backend.backend() == "jax":
        # A symbolic call builds the layer. An eager call would compile each of its ops.
        layer(*(keras.Input(batch_shape=shape) for shape in shapes))
    y = _numpy(_call(layer, *inputs))
    assert y.shape == output_shape
    assert np.isfinite(y).all()
    assert len(layer.weights) == num_weights
    assert len(layer.trainable_weights) == num_weights - num_non_trainable
    # The states of seed generators are variables, but not weights.
    assert len(layer.variables) - len(layer.weights) == num_seeds
    assert len({weight.path for weight in layer.weights}) == num_weights
    randomize(layer, rng)
    y = _numpy(_call(layer, *inputs))

    _check_config(layer, init_kwargs)
    _check_shapes(cls, init_kwargs, shapes, symbolic_shape or output_shape)
    state = layer.get_weights()
    training = _numpy(_call(layer, *inputs, training=True))
    assert training.shape == (training_shape or output_shape)
    assert np.isfinite(training).all()
    # Training changes the statistics of batch normalization.
    layer.set_weights(state)
    for i in range(shapes[0][0]):
        np.testing.assert_allclose(_numpy(_call(layer, *(x[i : i + 1] for x in inputs)))[0], y[i], atol=1e-5, rtol=1e-5)
    for policy in POLICIES:
        _check_mixed_precision(cls, init_kwargs, policy, layer.get_weights(), inputs, y, always_float32)

    symbolic = [keras.Input(shape[1:]) for shape in shapes]
    model = keras.Model(symbolic[0] if len(symbolic) == 1 else symbolic, layer(*symbolic))
    _check_reload(model, inputs)
    if layer.trainable_weights:
        _check_gradients(model, inputs, no_gradient)
    return layer


def check_model(model, images, *, no_gradient=()):
    """Checks all that a model of this package promises; the model itself is left as it was.

    Args:
        model: A functional model from images to one output.
        images: Float images, at least two of them.
        no_gradient: Ends of the paths of weights whose gradient is zero by the mathematics.
    """
    before = model.get_weights()
    # A new head has zeros as weights, so its outputs would not depend on the layers before it.
    clone = keras.models.clone_model(model)
    assert clone.get_config() == model.get_config()
    assert [w.path for w in clone.weights] == [w.path for w in model.weights]
    assert len({w.path for w in model.weights}) == len(model.weights)
    randomize(clone, np.random.default_rng(0))
    y = _numpy(_call(clone, images))
    assert y.shape == (len(images), *clone.output_shape[1:])
    assert np.isfinite(y).all()
    for i in range(len(images)):
        np.testing.assert_allclose(_numpy(_call(clone, images[i : i + 1]))[0], y[i], atol=1e-5, rtol=1e-5)

    twin = keras.models.clone_model(clone)
    twin.set_weights(clone.get_weights())
    np.testing.assert_array_equal(_numpy(_call(twin, images)), y)
    _check_reload(clone, [images])
    _check_gradients(clone, [images], no_gradient)
    for weight, value in zip(model.weights, before, strict=True):
        np.testing.assert_array_equal(_numpy(weight), value, err_msg=weight.path)


def randomize(layer, rng, scale=0.1):
    """Moves each weight of a layer or model away from its initial value, which is often zero or one."""
    layer.set_weights([w + scale * rng.standard_normal(w.shape).astype("float32") for w in map(_numpy, layer.weights)])


def _call(layer, *inputs, training=False):
    """Calls a built layer or model. On JAX, compiles the call, because each operation would be compiled separately."""
    if keras.backend.backend() != "jax":
        return layer(*inputs, training=training)
    return _compiled(layer, training)([variable.value for variable in layer.variables], inputs)


@functools.lru_cache(maxsize=4)
def _compiled(layer, training):
    import jax

    def call(state, inputs):
        with keras.StatelessScope(state_mapping=list(zip(layer.variables, state, strict=True))):
            return layer(*inputs, training=training)

    return jax.jit(call)


def _numpy(x):
    return ops.convert_to_numpy(x)


def _check_config(layer, init_kwargs):
    config = layer.get_config()
    arguments = {
        name
        for name, parameter in inspect.signature(type(layer).__init__).parameters.items()
        if name != "self" and parameter.kind is not inspect.Parameter.VAR_KEYWORD
    }
    assert set(config) == arguments | set(_Bare().get_config())
    plain = json.loads(json.dumps(config))
    for name, value in init_kwargs.items():
        if isinstance(value, (bool, int, float, str)) and not isinstance(plain[name], (list, dict)):
            assert plain[name] == value, name
    for again in (config, plain):
        assert type(layer).from_config(dict(again)).get_config() == config


class _Bare(keras.layers.Layer):
    """A layer whose config has only the keys of the base class."""

    def get_config(self):
        return super().get_config()


def _check_shapes(cls, init_kwargs, shapes, expected):
    for batch in (expected[0], None):
        batch_shapes = [(batch, *shape[1:]) for shape in shapes]
        assert tuple(cls(**init_kwargs).compute_output_shape(*batch_shapes)) == (batch, *expected[1:])
        output = cls(**init_kwargs)(*(keras.Input(batch_shape=shape) for shape in batch_shapes))
        assert output.shape == (batch, *expected[1:])


def _check_mixed_precision(cls, init_kwargs, policy, weights, inputs, expected, always_float32):
    dtype, tolerance = LOW_PRECISION[policy]
    if always_float32:
        dtype, tolerance = "float32", 0
    layer = cls(**init_kwargs, dtype=policy)
    output = layer(*(keras.Input(x.shape[1:]) for x in inputs))
    assert keras.backend.standardize_dtype(output.dtype) == dtype
    layer.set_weights(weights)
    assert {w.dtype for w in layer.weights} <= {"float32"}
    assert {sublayer.compute_dtype for sublayer in layer._flatten_layers()} == {dtype}
    output = _call(layer, *inputs)
    assert keras.backend.standardize_dtype(output.dtype) == dtype
    output = _numpy(ops.cast(output, "float32"))
    assert np.isfinite(output).all()
    assert np.abs(output - expected).max() <= tolerance * np.abs(expected).max()
    assert np.isfinite(_numpy(ops.cast(_call(layer, *inputs, training=True), "float32"))).all()


def _check_reload(model, inputs):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.keras"
        model.save(path)
        again = keras.saving.load_model(path, safe_mode=True)
    arguments = inputs[0] if len(inputs) == 1 else inputs
    np.testing.assert_array_equal(_numpy(_call(again, arguments)), _numpy(_call(model, arguments)))


def _check_gradients(model, inputs, no_gradient):
    """Checks that one step of gradient descent, compiled as in `fit`, changes every weight."""
    rng = np.random.default_rng(1)
    before = [_numpy(w) for w in model.trainable_weights]
    # On TensorFlow, XLA would take seconds and give the same gradients. JAX can only trace with XLA.
    jit_compile = "auto" if keras.backend.backend() == "jax" else False
    model.compile(keras.optimizers.SGD(1.0), "mse", jit_compile=jit_compile)
    targets = rng.standard_normal((len(inputs[0]), *model.output_shape[1:])).astype("float32")
    model.train_on_batch(inputs[0] if len(inputs) == 1 else inputs, targets)
    for weight, old in zip(model.trainable_weights, before, strict=True):
        new = _numpy(weight)
        assert np.isfinite(new).all(), weight.path
        if not weight.path.endswith(tuple(no_gradient)):
            assert not np.array_equal(new, old), f"No gradient reaches {weight.path}"


def check_nan(model):
    """Checks that all logits of an image with NaN are NaN, and that other images of the batch have none."""
    randomize(model, np.random.default_rng(0))
    x = np.random.default_rng(1).normal(size=(3, *model.input_shape[1:])).astype("float32")
    x[1, 0, 0, 0] = x[2] = np.nan
    assert np.isnan(model.predict(x, verbose=0)).all(axis=1).tolist() == [False, True, True]
