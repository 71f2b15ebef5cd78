import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.pretraining import MAE, MaskedPatchPrediction, SimMIM
from keras_vit.training import Resume
from tests import tiny

RNG = np.random.default_rng(0)
METHODS = {
    "masked_patch": (MaskedPatchPrediction, {}),
    "simmim": (SimMIM, {"mask_unit": 8}),
    "mae": (MAE, {"decoder_num_layers": 1, "decoder_hidden_dim": 8}),
}
# A graph takes seconds to make. JAX is slow without one, and MAE's test of fit and reload makes it on each backend.
EAGERLY = keras.backend.backend() != "jax"
each_method = pytest.mark.parametrize("method", METHODS)
# JAX compiles each step for half a minute, and has one of a kind below.
not_on_jax = pytest.mark.backends("tensorflow", "torch")


def build(method, seed=0, dtype=None, **changes):
    cls, options = METHODS[method]
    policy = keras.config.dtype_policy()
    if dtype is not None:
        keras.config.set_dtype_policy(dtype)
    try:
        return cls(tiny.build(**{"include_preprocessing": True, **changes}), seed=seed, **options)
    finally:
        keras.config.set_dtype_policy(policy)


def raw_images(number, height=16, width=16, channels=3):
    return RNG.integers(0, 256, (number, height, width, channels)).astype("uint8")


def numpy(tensors):
    return [keras.ops.convert_to_numpy(t) for t in tensors]


def gradient(function, x):
    """The gradient of a scalar function of one tensor."""
    if keras.backend.backend() == "jax":
        import jax

        return jax.grad(function)(x)
    x = keras.ops.convert_to_tensor(x)
    if keras.backend.backend() == "torch":
        x = x.detach().clone().requires_grad_()
        function(x).backward()
        return x.grad
    import tensorflow as tf

    with tf.GradientTape() as tape:
        tape.watch(x)
        value = function(x)
    return tape.gradient(value, x)


@each_method
def test_gradients_of_outputs_that_are_not_masked_are_exactly_zero(method):
    model = build(method)
    images = raw_images(2)
    outputs = model(images)
    mask = keras.ops.convert_to_numpy(outputs["mask"])
    assert mask.any() and not mask.all()

    def loss(prediction):
        return model.compute_loss(images, None, {**outputs, "prediction": prediction})

    (found,) = numpy([gradient(loss, outputs["prediction"])])
    found = found.reshape(*mask.shape, -1)
    assert (found[~mask] == 0).all()
    assert (np.abs(found[mask]).max(axis=-1) > 0).all()


@pytest.mark.parametrize(
    "method", [pytest.param("masked_patch", marks=not_on_jax), pytest.param("simmim", marks=not_on_jax), "mae"]
)
def test_fits_and_goes_on_from_its_weights(method, tmp_path):
    """Trained on, the reloaded run does what the run itself would have done, its masks included."""
    images = raw_images(8, 24, 18)

    def compiled(seed, run_eagerly):
        model = build(method, seed=seed, image_size=(24, 18), num_layers=1)
        # Weight decay would shrink what takes no part.
        model.compile(keras.optimizers.AdamW(1e-2, weight_decay=0.1), run_eagerly=run_eagerly)
        return model

    model = compiled(seed=0, run_eagerly=EAGERLY and method != "mae")
    before = model.backbone.get_layer("block_00").get_weights()
    head = model.backbone.get_layer("head").get_weights()
    # Labels are ignored.
    history = model.fit(images, np.zeros(8), batch_size=4, epochs=2, shuffle=False, verbose=0)
    assert np.isfinite(history.history["loss"]).all()
    model.save_weights(tmp_path / "run.weights.h5")
    reloaded = compiled(seed=5, run_eagerly=EAGERLY)
    reloaded.optimizer.build(reloaded.trainable_variables)
    reloaded.load_weights(tmp_path / "run.weights.h5")
    for a, b in zip(numpy(model.variables), numpy(reloaded.variables), strict=True):
        np.testing.assert_array_equal(a, b)
    assert int(reloaded.optimizer.iterations) == 4
    for a, b in zip(head, reloaded.backbone.get_layer("head").get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)
    losses = [m.fit(images, batch_size=4, shuffle=False, verbose=0).history["loss"] for m in (model, reloaded)]
    np.testing.assert_allclose(*losses, rtol=1e-5)
    for a, b in zip(model.get_weights(), reloaded.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)
    after = model.backbone.get_layer("block_00").get_weights()
    assert all((a != b).any() for a, b in zip(before, after, strict=True)), "all weights of a block are trained"
    for a, b in zip(head, model.backbone.get_layer("head").get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)
    assert all(v.trainable for v in model.backbone.variables if "seed" not in v.path)

    for part in reloaded.reconstruct(images[:2]):
        # Two columns of pixels fill no patch.
        assert part.shape == (2, 24, 16, 3) and part.min() >= 0 and part.max() <= 255


def test_its_file_is_the_backbones(tmp_path):
    model = build("simmim", num_layers=1)
    assert model.plain_model is model.backbone
    model.save(tmp_path / "model.keras")
    reloaded = keras.saving.load_model(tmp_path / "model.keras")
    assert type(reloaded) is type(model.backbone)
    for a, b in zip(reloaded.get_weights(), model.backbone.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    ("method", "dtype", "channels"),
    [
        pytest.param("masked_patch", "mixed_bfloat16", 4, marks=not_on_jax),
        ("simmim", "mixed_float16", 1),
        ("mae", "mixed_bfloat16", 1),
    ],
)
def test_fits_in_mixed_precision_with_other_channels(method, dtype, channels):
    model = build(method, dtype=dtype, image_size=(12, 16), in_channels=channels, num_layers=1)
    assert model.dtype_policy.name == dtype
    images = raw_images(4, 12, 16, channels)
    outputs = model(images)
    assert keras.backend.standardize_dtype(outputs["prediction"].dtype) == "float32"
    model.compile("adam", run_eagerly=EAGERLY)
    assert ("LossScale" in type(model.optimizer).__name__) == (dtype == "mixed_float16")
    history = model.fit(images, batch_size=4, verbose=0)
    assert np.isfinite(history.history["loss"]).all()
    assert np.isfinite(np.concatenate([w.ravel() for w in model.get_weights()])).all()
    assert all(np.isfinite(part).all() for part in model.reconstruct(images))


@not_on_jax
def test_resume_goes_on_where_the_run_was(tmp_path):
    images = raw_images(8)
    weights = []
    for parts in ((2,), (1, 2)):
        for epochs in parts:
            # Each process starts with the same weights.
            keras.utils.set_random_seed(0)
            model = build("simmim", num_layers=1)
            model.compile("adam", run_eagerly=EAGERLY)
            folder = tmp_path / str(len(parts))
            model.fit(images, batch_size=4, epochs=epochs, shuffle=False, verbose=0, callbacks=[Resume(folder)])
        weights.append(numpy(model.variables))
    for a, b in zip(*weights, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)


def test_backbone_is_fine_tuned_as_any_vit(tmp_path):
    model = build("simmim", num_classes=0)
    tiny.randomize(model.backbone)
    model.backbone.save_weights(tmp_path / "backbone.weights.h5")
    keras_vit.save_weights(model.backbone, tmp_path / "backbone.npz")
    images = raw_images(2)
    expected = model.backbone.predict(images, verbose=0)
    for name in ("backbone.weights.h5", "backbone.npz"):
        classifier = tiny.build(num_classes=10, include_preprocessing=True, weights=tmp_path / name)
        features = keras.Model(classifier.input, classifier.get_layer("pre_logits").output)
        np.testing.assert_allclose(features.predict(images, verbose=0), expected, atol=1e-5)
        assert not np.any(classifier.get_layer("head").get_weights()[0]), "a new head starts at zero"
    logits = keras.layers.Dense(10)(model.backbone.output)
    assert keras.Model(model.backbone.input, logits).predict(images, verbose=0).shape == (2, 10)


def test_reconstructions_draw_nothing_from_the_run():
    model = build("mae")
    state = numpy([model.seed_generator.state])[0]
    images = raw_images(2)
    first, second = model.reconstruct(images, seed=3), model.reconstruct(images, seed=3)
    np.testing.assert_array_equal(first.masked, second.masked)
    np.testing.assert_array_equal(numpy([model.seed_generator.state])[0], state)
    assert (model.reconstruct(images, seed=4).masked != first.masked).any()


def test_weight_regularizers_count():
    model = build("simmim")
    images = raw_images(2)
    outputs = model(images)
    plain = float(model.compute_loss(images, None, outputs))
    model.head.kernel_regularizer = keras.regularizers.L2(1.0)
    model.head.kernel.regularizer = model.head.kernel_regularizer
    kernel = numpy([model.head.kernel])[0]
    np.testing.assert_allclose(float(model.compute_loss(images, None, outputs)), plain + (kernel**2).sum(), rtol=1e-4)


def test_a_loss_and_sample_weights_are_refused():
    model = build("simmim")
    model.compile("adam", "mse", run_eagerly=EAGERLY)
    with pytest.raises(ValueError, match="compiled without a loss"):
        model.fit(raw_images(2), np.zeros(2), verbose=0)
    model = build("simmim")
    with pytest.raises(ValueError, match="without sample weights"):
        model.compute_loss(raw_images(2), None, None, sample_weight=np.ones(2))


def test_one_backbone_goes_through_several_methods():
    backbone = build("simmim").backbone
    nested = keras.Sequential([keras.Input((16, 16, 3)), backbone, keras.layers.Dense(2)])
    images = raw_images(2)
    for cls, options in METHODS.values():
        model = cls(backbone, **options)
        # A symbolic call too, as JAX makes one before it trains.
        keras.Model(inputs := keras.Input((16, 16, 3)), model(inputs)["prediction"])
        assert np.isfinite(float(model.compute_loss(images, None, model(images))))
    assert nested.predict(images, verbose=0).shape == (2, 2)
