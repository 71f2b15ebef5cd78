import keras
import numpy as np
import pytest
from keras import ops

from keras_vit.inspection.gradients import gradients
from keras_vit.layers import activations, backpropagation
from keras_vit.layers.backpropagation import materialize, recomputed

BACKEND = keras.backend.backend()
RANDOM = np.random.default_rng(0)
on_jax = pytest.mark.skipif(BACKEND != "jax", reason="JAX alone computes sums again")
on_tensorflow = pytest.mark.skipif(BACKEND != "tensorflow", reason="TensorFlow alone has another way")


@pytest.mark.parametrize("first", [0.0, -0.0, 1.5, np.inf, np.nan])
def test_materialize_changes_nothing(first):
    x = RANDOM.normal(size=(2, 3, 4)).astype("float32")
    x[0, 0, 0], x[1, 1, 1], x[1, 2, 3] = first, 0, -np.inf
    # Compared as bits, for NaN and the sign of zero.
    outputs = ops.convert_to_numpy(materialize(ops.convert_to_tensor(x)))
    np.testing.assert_array_equal(outputs.view("int32"), x.view("int32"))


def test_materialize_passes_the_gradient_on():
    x, weights = ops.array(RANDOM.normal(size=(2, 2, 3, 4)).astype("float32"))
    for point in (x, ops.zeros_like(x)):
        np.testing.assert_array_equal(gradients(lambda x: ops.sum(materialize(x) * weights), point)[0], weights)


def test_materialize_takes_no_images():
    assert materialize(ops.zeros((0, 3, 4))).shape == (0, 3, 4)


@on_jax
def test_xla_sums_in_one_place(monkeypatch):
    import jax

    monkeypatch.setattr(backpropagation, "has_gpu", lambda: False)

    def function(x):
        return ops.sum(ops.sin(materialize(x) + x))

    x = ops.ones((2, 3, 4))
    assert "conditional(" in jax.jit(jax.grad(function)).lower(x).compile().as_text()


@on_jax
def test_materialize_in_other_transformations():
    import jax

    x = ops.array(RANDOM.normal(size=(2, 3, 4)).astype("float32"))
    np.testing.assert_array_equal(jax.vmap(materialize)(x), x)
    np.testing.assert_array_equal(jax.jvp(materialize, (x,), (2 * x,))[1], 2 * x)


@on_tensorflow
@pytest.mark.parametrize("activation", [keras.activations.gelu, activations.gelu_tanh])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_recomputed_is_the_function_and_its_gradient(activation, dtype):
    x, weights = (ops.cast(RANDOM.uniform(-6, 6, (5, 7)), dtype) for _ in range(2))
    values, expected = (
        ops.convert_to_numpy(ops.cast(y, "float32")) for y in (recomputed(activation, x), activation(x))
    )
    tolerance = 2e-6 if dtype == "float32" else 0.04
    np.testing.assert_allclose(values, expected, atol=tolerance)
    found, sought = (
        gradients(lambda x, f=f: ops.sum(ops.cast(f(x) * weights, "float32")), x)[0]
        for f in (lambda x: recomputed(activation, x), activation)
    )
    np.testing.assert_allclose(ops.cast(found, "float32"), ops.cast(sought, "float32"), rtol=1e-5, atol=6 * tolerance)


@on_tensorflow
def test_a_tensorflow_without_xla_runs_the_function_as_it_is(monkeypatch):
    import tensorflow as tf

    def no_xla(*args, **kwargs):
        raise tf.errors.UnimplementedError(None, None, "no XLA here")

    assert backpropagation._has_xla()
    monkeypatch.setattr(tf, "function", no_xla)
    assert not backpropagation._has_xla.__wrapped__()
    monkeypatch.setattr(backpropagation, "_has_xla", lambda: False)
    assert recomputed(lambda x: x, "anything") == "anything"


@pytest.mark.skipif(BACKEND == "tensorflow", reason="there it is compiled")
def test_other_backends_run_the_function_as_it_is():
    assert recomputed(lambda x: x, "anything") == "anything"


@on_tensorflow
def test_recomputed_of_a_number_of_rows_that_is_not_known():
    import tensorflow as tf

    @tf.function(input_signature=[tf.TensorSpec((None, 3))])
    def slope(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = recomputed(keras.activations.gelu, x)
        return tape.gradient(y, x)

    for rows in (0, 1, 5):
        np.testing.assert_allclose(slope(tf.zeros((rows, 3))), np.full((rows, 3), 0.5), atol=1e-6)


@on_tensorflow
def test_recomputed_has_a_second_derivative():
    import tensorflow as tf

    x = tf.constant([[-1.0, 0.0, 2.0]])

    def curvature(function):
        return gradients(lambda x: ops.sum(gradients(lambda x: ops.sum(function(x)), x)[0]), x)[0]

    of_gelu = curvature(keras.activations.gelu)
    np.testing.assert_allclose(curvature(lambda x: recomputed(keras.activations.gelu, x)), of_gelu, atol=1e-5)
