import keras
import numpy as np
import pytest
from keras import ops

from keras_vit.activations import gelu_tanh
from keras_vit.inspection.gradients import gradients
from keras_vit.layers import cpu
from keras_vit.layers.cpu import COMPILED_WIDTH, activate, materialize

BACKEND = keras.backend.backend()
RANDOM = np.random.default_rng(0)
on_jax = pytest.mark.backends("jax")
on_tensorflow = pytest.mark.backends("tensorflow")


@on_jax
@pytest.mark.parametrize("first", [0.0, -0.0, 1.5, np.inf, np.nan])
def test_materialize_changes_nothing(first):
    x = RANDOM.normal(size=(2, 3, 4)).astype("float32")
    x[0, 0, 0], x[1, 1, 1], x[1, 2, 3] = first, 0, -np.inf
    # Compared as bits, for NaN and the sign of zero.
    outputs = ops.convert_to_numpy(materialize(ops.convert_to_tensor(x)))
    np.testing.assert_array_equal(outputs.view("int32"), x.view("int32"))


@on_jax
def test_materialize_passes_the_gradient_on():
    x, weights = ops.array(RANDOM.normal(size=(2, 2, 3, 4)).astype("float32"))
    for point in (x, ops.zeros_like(x)):
        np.testing.assert_array_equal(gradients(lambda x: ops.sum(materialize(x) * weights), point)[0], weights)


@on_jax
def test_materialize_takes_no_images():
    assert materialize(ops.zeros((0, 3, 4))).shape == (0, 3, 4)


@on_jax
def test_materialize_compiles_to_a_conditional(monkeypatch):
    import jax

    monkeypatch.setattr(cpu, "has_gpu", lambda: False)

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


@pytest.mark.backends("tensorflow", "jax")
@pytest.mark.parametrize(
    "activation, dtype, width",
    [
        (keras.activations.gelu, "float32", 3),
        (keras.activations.gelu, "float32", COMPILED_WIDTH),
        (keras.activations.gelu, "bfloat16", COMPILED_WIDTH),
        (gelu_tanh, "float32", COMPILED_WIDTH),
        (keras.activations.relu, "bfloat16", COMPILED_WIDTH),
    ],
)
def test_activate_is_the_activation_and_its_gradient(activation, dtype, width):
    x, weights = (ops.cast(RANDOM.uniform(-6, 6, (2, width)), dtype) for _ in range(2))
    tolerance, of_gradient = (2e-6, 4e-5) if dtype == "float32" else (0.04, 0.24)
    values, expected = (
        ops.convert_to_numpy(ops.cast(y, "float32")) for y in (activate(activation, x, training=True), activation(x))
    )
    np.testing.assert_allclose(values, expected, atol=tolerance)
    values = ops.convert_to_numpy(ops.cast(activate(activation, x), "float32"))
    # On JAX the exact GELU is another formula.
    exact = BACKEND == "jax" and dtype == "float32" and activation is keras.activations.gelu
    np.testing.assert_allclose(values, expected, rtol=0, atol=2e-6 if exact else 0)
    found, sought = (
        gradients(lambda x, f=f: ops.sum(ops.cast(f(x) * weights, "float32")), x)[0]
        for f in (lambda x: activate(activation, x, training=True), activation)
    )
    np.testing.assert_allclose(ops.cast(found, "float32"), ops.cast(sought, "float32"), rtol=1e-5, atol=of_gradient)


@on_tensorflow
def test_without_xla_or_tricks_nothing_is_compiled(monkeypatch):
    import tensorflow as tf

    def no_xla(*args, **kwargs):
        raise tf.errors.UnimplementedError(None, None, "no XLA here")

    x = ops.ones((1, COMPILED_WIDTH))
    assert cpu._has_xla()
    monkeypatch.setattr(cpu, "ENABLED", False)
    monkeypatch.setattr(cpu, "_compiled", None)
    activate(gelu_tanh, x, training=True)
    monkeypatch.setattr(cpu, "ENABLED", True)
    monkeypatch.setattr(tf, "function", no_xla)
    assert not cpu._has_xla.__wrapped__()
    monkeypatch.setattr(cpu, "_has_xla", lambda: False)
    activate(gelu_tanh, x, training=True)


@on_tensorflow
def test_activate_unknown_number_of_rows():
    import tensorflow as tf

    @tf.function(input_signature=[tf.TensorSpec((None, COMPILED_WIDTH))])
    def slope(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = activate(keras.activations.gelu, x, training=True)
        return tape.gradient(y, x)

    for rows in (0, 1, 5):
        np.testing.assert_allclose(
            slope(tf.zeros((rows, COMPILED_WIDTH))), np.full((rows, COMPILED_WIDTH), 0.5), atol=1e-6
        )


@on_tensorflow
def test_activate_has_a_second_derivative():
    x = ops.convert_to_tensor(np.linspace(-3, 3, COMPILED_WIDTH, dtype="float32")[None])

    def curvature(function):
        return gradients(lambda x: ops.sum(gradients(lambda x: ops.sum(function(x)), x)[0]), x)[0]

    of_gelu = curvature(keras.activations.gelu)
    found = curvature(lambda x: activate(keras.activations.gelu, x, training=True))
    np.testing.assert_allclose(found, of_gelu, atol=1e-5)


@on_jax
def test_xla_multiplies_bfloat16_without_widening_it(monkeypatch):
    import jax

    monkeypatch.setattr(cpu, "has_gpu", lambda: False)
    x, kernel = (ops.cast(RANDOM.normal(size=shape), "bfloat16") for shape in ((2, 64, 128), (128, 256)))
    program = jax.jit(lambda x, kernel: cpu.dense(x, kernel, None)).lower(x, kernel).as_text()
    assert "(tensor<128x128xbf16>, tensor<128x256xbf16>) -> tensor<128x256xf32>" in program
    assert cpu.dense(x, kernel, None).dtype == "bfloat16"


@on_jax
def test_dense_in_bfloat16_is_rounded_once(monkeypatch):
    """Not before the bias and before the activation."""
    monkeypatch.setattr(cpu, "has_gpu", lambda: False)
    x, kernel, bias = (ops.cast(RANDOM.normal(size=shape), "bfloat16") for shape in ((2, 3, 40), (40, 5), (5,)))
    exact = ops.matmul(ops.cast(x, "float32"), ops.cast(kernel, "float32")) + ops.cast(bias, "float32")
    exact = keras.activations.gelu(exact)
    y = ops.cast(cpu.dense(x, kernel, bias, keras.activations.gelu), "float32")
    # Half of the last of 8 bits.
    np.testing.assert_allclose(y, exact, rtol=2**-8, atol=1e-6)


@on_jax
def test_without_tricks_the_program_is_plain(monkeypatch):
    import jax

    monkeypatch.setattr(cpu, "ENABLED", False)
    assert "cond" not in str(jax.make_jaxpr(materialize)(ops.ones((2, 3))))
    assert "f32" not in str(jax.make_jaxpr(cpu.matmul)(*ops.ones((2, 3, 3), "bfloat16")))
    assert "erfc" in str(jax.make_jaxpr(lambda x: activate(keras.activations.gelu, x))(ops.ones((2, 3))))


@pytest.mark.backends("tensorflow", "jax")
def test_has_gpu_is_true_for_other_devices_than_cpus(monkeypatch):
    for device, expected in {"cpu:0": False, "gpu:0": True}.items():
        monkeypatch.setattr(keras.distribution, "list_devices", lambda device=device: [device])
        assert cpu.has_gpu.__wrapped__() is expected
