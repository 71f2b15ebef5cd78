import functools

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.training import optimizers
from keras_vit.training.optimizers import is_decayed
from tests import tiny
from tests.tiny import assert_close

RNG = np.random.default_rng(0)
IMAGES, LABELS = RNG.normal(size=(8, 16, 16, 3)).astype("float32"), np.arange(8) % 5
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
# These are the names of all weights except kernels.
KEPT = {"bias", "gamma", "beta", "tokens", "probe", "embeddings", "row_embeddings", "column_embeddings"}
KEPT |= {"relative_embeddings", "prefix_embeddings"}


def values(variables):
    return [keras.ops.convert_to_numpy(v).copy() for v in variables]


def fit(model, optimizer, epochs=1, batch_size=8, **kwargs):
    model.compile(optimizer, LOSS, **kwargs)
    model.fit(IMAGES, LABELS, batch_size=batch_size, epochs=epochs, shuffle=False, verbose=0)
    return model


def small():
    """Returns a network that compiles faster than a ViT."""
    layers = [keras.layers.Flatten(), keras.layers.Dense(8, "tanh"), keras.layers.Dense(5)]
    return keras.Sequential([keras.Input((16, 16, 3)), *layers])


def twins(build=small):
    """Returns two models with the same weights."""
    models = [build(), build()]
    models[1].set_weights(models[0].get_weights())
    return models


def test_default_settings_of_the_optimizers():
    adamw, sgd = optimizers.AdamW(1e-3), optimizers.SGD(0.03)
    assert (adamw.beta_1, adamw.beta_2, adamw.epsilon, adamw.weight_decay) == (0.9, 0.999, 1e-8, 0.05)
    assert (sgd.momentum, sgd.global_clipnorm, sgd.weight_decay, sgd.nesterov) == (0.9, 1.0, None, False)
    for options in ({"global_clipnorm": None}, {"clipnorm": 1.0}, {"clipvalue": 1.0}):
        assert optimizers.SGD.from_config(optimizers.SGD(**options).get_config()).global_clipnorm is None


def test_adamw_without_kernels_decays_nothing():
    model = tiny.randomize(tiny.build())
    for layer in model.layers:
        layer.trainable = layer.name == "norm"
    before, zeros = values(model.weights), [keras.ops.zeros(v.shape) for v in model.trainable_variables]
    optimizers.AdamW(1e-3).apply(zeros, model.trainable_variables)
    assert_close(model.weights, before)


def decay_groups(layer):
    """Returns the trainable variables with weight decay, and the others."""
    groups = [], []
    for variable in layer.trainable_variables:
        groups[not is_decayed(variable.path)].append(variable)
    return groups


@pytest.mark.every_backend
def test_adamw_steps_equal_numpy():
    layer = keras.layers.Dense(2, bias_initializer="ones")
    layer.build((None, 3))
    optimizer = optimizers.AdamW(0.01, weight_decay=0.1)
    kernel = values([layer.kernel])[0].astype("float64")
    mean = square = 0.0
    for t in (1, 2):
        gradient = RNG.normal(size=(3, 2))
        mean, square = 0.9 * mean + 0.1 * gradient, 0.999 * square + 0.001 * gradient**2
        update = (mean / (1 - 0.9**t)) / (np.sqrt(square / (1 - 0.999**t)) + 1e-8)
        kernel = kernel - 0.01 * (update + 0.1 * kernel)
        grads = [keras.ops.convert_to_tensor(g, "float32") for g in (gradient, np.zeros(2))]
        optimizer.apply(grads, layer.trainable_variables)
    np.testing.assert_allclose(values([layer.kernel])[0], kernel, atol=1e-6)
    np.testing.assert_array_equal(values([layer.bias])[0], 1)


def test_adamw_keeps_the_exclusions_of_the_user():
    names = ("kernel", "listed_kernel", "lora_kernel_a", "bias")
    variables = [keras.Variable(np.ones(2), name=name) for name in names]
    optimizer = optimizers.AdamW(0.1, weight_decay=0.5)
    optimizer.exclude_from_weight_decay(var_list=[variables[1]], var_names=["lora"])
    optimizer.apply([keras.ops.zeros(2)] * 4, variables)
    assert [float(value[0]) for value in values(variables)] == pytest.approx([0.95, 1, 1, 1])


# On JAX, Keras' own averages break the fit that follows.
@pytest.mark.backends("torch", "jax")
@pytest.mark.parametrize("build", [optimizers.AdamW, optimizers.SGD])
def test_moving_average_equals_numpy_and_can_be_reloaded(build, tmp_path):
    plain, averaged = twins()
    path = []
    callback = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: path.append(plain.get_weights()))
    plain.compile(build(0.01), LOSS)
    plain.fit(IMAGES, LABELS, batch_size=8, epochs=3, shuffle=False, verbose=0, callbacks=[callback])
    fit(averaged, build(0.01, use_ema=True, ema_momentum=0.6), epochs=3)
    expected = [0.36 * a + 0.24 * b + 0.4 * c for a, b, c in zip(*path, strict=True)]
    assert_close(averaged.get_weights(), expected, atol=1e-5)
    predictions = averaged.predict(IMAGES, verbose=0)
    averaged.evaluate(IMAGES, LABELS, verbose=0)
    averaged.save(tmp_path / "m.keras")
    reloaded = keras.models.load_model(tmp_path / "m.keras")
    np.testing.assert_allclose(reloaded.predict(IMAGES, verbose=0), predictions, atol=1e-6)
    for model in (averaged, reloaded):
        model.fit(IMAGES, LABELS, shuffle=False, verbose=0)
    assert_close(averaged.get_weights(), reloaded.get_weights(), atol=1e-6)


def test_ema_momentum_is_per_update():
    optimizer = optimizers.SGD(0.1, gradient_accumulation_steps=4, use_ema=True, ema_momentum=0.9)
    assert optimizer.ema_momentum**4 == pytest.approx(0.9)
    assert optimizers.SGD.from_config(optimizer.get_config()).ema_momentum == optimizer.ema_momentum
    optimizer = optimizers.SGD(0.1, gradient_accumulation_steps=4, use_ema=True)
    assert optimizer.ema_momentum**4 == pytest.approx(keras.optimizers.SGD().ema_momentum)
    assert optimizers.AdamW(0.1, gradient_accumulation_steps=4).ema_momentum == keras.optimizers.AdamW().ema_momentum


def test_optimizers_have_the_fused_step_of_pytorch():
    for ours, keras_own in ((optimizers.AdamW, keras.optimizers.AdamW), (optimizers.SGD, keras.optimizers.SGD)):
        assert isinstance(ours(0.1), type(keras_own(0.1)))


HYBRID = {"image_size": 32, "stages": (1,), "width_factor": 0.5, "patch_size": 2, "num_layers": 1}
MODELS = {
    "vit": lambda: tiny.build(representation_size=7, layer_scale_init=0.1, num_registers=2),
    "hybrid": lambda: keras_vit.ViT("R50+B/16", hidden_dim=12, num_heads=3, mlp_dim=20, num_classes=5, **HYBRID),
    "bit": lambda: keras_vit.BiT("R50x1", stages=(1, 1), width_factor=0.5, image_size=32, num_classes=5),
    "distilled": lambda: tiny.build(distillation_token=True),
    "map": lambda: tiny.build(pooling="map"),
    "learned2d": lambda: tiny.build(position_embedding="learned2d"),
    "relative": lambda: tiny.build(position_embedding="relative"),
    "qk_norm": lambda: tiny.build(qk_norm=True, norm_after_pooling=True),
}


@functools.cache
def built(name):
    """Returns one of MODELS, which no test may change."""
    return MODELS[name]()


def test_decay_groups_partition_the_variables():
    names = set()
    for name in MODELS:
        model = built(name)
        decayed, kept = decay_groups(model)
        ids = [id(v) for v in decayed + kept]
        assert len(set(ids)) == len(ids)
        assert set(ids) == {id(v) for v in model.trainable_variables}
        assert {v.path.split("/")[-1] for v in decayed} == {"kernel"}
        assert all(len(v.shape) > 1 for v in decayed)
        names |= {v.path.split("/")[-1] for v in kept}
    assert names == KEPT


def test_decay_groups_of_other_layers():
    layer = keras.layers.SeparableConv2D(2, 3)
    layer.build((None, 8, 8, 3))
    decayed, kept = decay_groups(layer)
    assert len(decayed) == 2 and len(kept) == 1
    assert not is_decayed("kernels/bias") and is_decayed("kernel")


@pytest.mark.parametrize("build", [optimizers.AdamW, optimizers.SGD])
def test_gradient_accumulation_equals_a_larger_batch(build):
    large, small = twins()
    fit(large, build(0.01), epochs=2, batch_size=8)
    fit(small, build(0.01, gradient_accumulation_steps=4), epochs=2, batch_size=2)
    assert_close(large.get_weights(), small.get_weights(), atol=2e-5)
