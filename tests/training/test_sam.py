import keras
import numpy as np
import pytest

from keras_vit.layers import DropPath, PatchDropout, TransformerBlock
from keras_vit.training import optimizers
from keras_vit.training.sam import SAM
from tests import tiny
from tests.tiny import assert_close

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(16, 3)), RNG.normal(size=(16, 2))
IMAGES, LABELS = RNG.normal(size=(8, 16, 16, 3)).astype("float32"), np.arange(8) % 5
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def linear():
    return keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])


def gradients(kernel, bias):
    """Returns the gradients of the mean squared error of a linear model."""
    error = X @ kernel + bias - Y
    return X.T @ error * 2 / Y.size, error.sum(axis=0) * 2 / Y.size


def numpy_sam(kernel, bias, rho, learning_rate, steps=1):
    for _ in range(steps):
        g, h = gradients(kernel, bias)
        scale = rho / np.sqrt((g**2).sum() + (h**2).sum())
        g, h = gradients(kernel + scale * g, bias + scale * h)
        kernel, bias = kernel - learning_rate * g, bias - learning_rate * h
    return kernel, bias


@pytest.mark.every_backend
def test_sam_steps_equal_numpy():
    model = linear()
    start = [w.astype("float64") for w in model.get_weights()]
    trainer = SAM(model, rho=0.5)
    trainer.compile(keras.optimizers.SGD(0.3), "mse")
    history = trainer.fit(X, Y, batch_size=16, epochs=3, shuffle=False, verbose=0)
    expected = numpy_sam(*start, rho=0.5, learning_rate=0.3, steps=3)
    plain = numpy_sam(*start, rho=1e-9, learning_rate=0.3, steps=3)
    for found, weight, other in zip(model.get_weights(), expected, plain, strict=True):
        np.testing.assert_allclose(found, weight, atol=1e-5)
        assert np.abs(weight - other).max() > 1e-2
    # The logged loss is the loss before each step, and not the loss at the worst point.
    kernel, bias = numpy_sam(*start, rho=0.5, learning_rate=0.3, steps=2)
    assert history.history["loss"][2] == pytest.approx(((X @ kernel + bias - Y) ** 2).mean(), rel=1e-4)


def test_sam_counts_each_batch_and_image_once():
    trainer = SAM(linear())
    counter = keras.metrics.MeanMetricWrapper(lambda y, y_pred: keras.ops.ones_like(y[:, 0]), name="ones")
    trainer.compile(optimizers.SGD(0.1, gradient_accumulation_steps=2), "mse", metrics=[counter])
    trainer.fit(X, Y, batch_size=4, verbose=0)
    assert int(trainer.optimizer._iterations) == 4 and trainer.optimizer.momentum == 0.9
    assert float(counter.count) == 16


TOKENS = RNG.normal(size=(16, 4, 3)).astype("float32")


# Without a seed, Keras' Dropout draws from PyTorch's global generator.
RANDOM = {
    "seeded": lambda: keras.layers.Dropout(0.5, seed=1),
    "Dropout": lambda: keras.layers.Dropout(0.5),
    "DropPath": lambda: DropPath(0.5),
    "PatchDropout": lambda: PatchDropout(0.5),
    "block": lambda: TransformerBlock(1, 8, dropout_rate=0.5, attention_dropout_rate=0.5, drop_path_rate=0.5),
}
NAMES = [pytest.param(name, marks=pytest.mark.every_backend) if name == "block" else name for name in RANDOM]


@pytest.mark.parametrize("name", NAMES)
def test_both_sam_gradients_use_the_same_random_masks(name):
    """If the second gradient used other masks, even a tiny neighborhood would change the weights."""
    results = []
    for rho in (1e-6, None):
        keras.utils.set_random_seed(0)
        layers = [keras.Input((4, 3)), RANDOM[name](), keras.layers.GlobalAveragePooling1D(), keras.layers.Dense(2)]
        model = keras.Sequential(layers)
        trainer = model if rho is None else SAM(model, rho=rho)
        trainer.compile(keras.optimizers.SGD(0.1), "mse", jit_compile=keras.backend.backend() == "jax")
        trainer.fit(TOKENS, Y, batch_size=4, epochs=1, shuffle=False, verbose=0)
        state = [*model.variables, *trainer.metrics_variables]
        results.append([keras.ops.convert_to_numpy(v) for v in state])
    assert_close(*results, atol=1e-4)


def test_sam_zero_gradients_change_nothing():
    inputs = keras.Input((3,))
    model = keras.Model(inputs, keras.layers.Dense(1, kernel_initializer="zeros")(inputs))
    trainer = SAM(model)
    trainer.compile(keras.optimizers.SGD(0.1), "mse")
    trainer.fit(X, np.zeros((16, 1)), verbose=0)
    assert not np.any(model.get_weights()[0]) and np.isfinite(model.get_weights()[1]).all()


def test_sam_trains_a_vit_and_saves_the_plain_model(tmp_path):
    model = tiny.build(num_layers=1, dropout_rate=0.1)
    frozen = model.get_layer("patch_embedding")
    frozen.trainable = False
    before = [keras.ops.convert_to_numpy(w).copy() for w in frozen.weights]
    assert SAM(model).rho == 0.05
    trainer = SAM(model, rho=0.1)
    trainer.compile(optimizers.AdamW(0.01), LOSS)
    history = trainer.fit(
        IMAGES, LABELS, batch_size=8, epochs=20, verbose=0, validation_data=(IMAGES, LABELS), shuffle=False
    )
    assert history.history["loss"][-1] < 0.6 * history.history["loss"][0]
    assert history.history["val_loss"][-1] < 0.6 * history.history["loss"][0]
    assert_close(before, frozen.weights)
    trainer.save(tmp_path / "m.keras")
    reloaded = keras.models.load_model(tmp_path / "m.keras")
    assert type(reloaded) is type(model)
    np.testing.assert_allclose(reloaded.predict(IMAGES, verbose=0), trainer.predict(IMAGES, verbose=0), atol=1e-5)


def test_sam_mixed_precision_keeps_pixels_in_float32():
    """If SAM casted the images to its compute dtype, they would be rounded before the model normalizes them."""
    model = tiny.build(num_layers=1, include_preprocessing=True, dtype="mixed_bfloat16")
    images = RNG.uniform(0, 255, (4, 16, 16, 3)).astype("float32")
    assert SAM(model).compute_dtype != "float32"
    found, expected = (keras.ops.convert_to_numpy(keras.ops.cast(m(images), "float32")) for m in (SAM(model), model))
    np.testing.assert_array_equal(found, expected)


def test_sam_loss_scaling_in_float16():
    with tiny.dtype_policy("mixed_float16"):
        trainer = SAM(linear(), rho=0.5)
        start = [w.astype("float64") for w in trainer.model.get_weights()]
        trainer.compile(keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.3), initial_scale=8.0), "mse")
        trainer.fit(X, Y, batch_size=16, verbose=0)
    assert_close(trainer.model.get_weights(), numpy_sam(*start, 0.5, 0.3), atol=5e-3)
