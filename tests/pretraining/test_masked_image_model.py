from types import SimpleNamespace

import keras
import numpy as np
import pytest

from keras_vit.pretraining import MAE, MaskedPatchPrediction, SimMIM
from tests import tiny
from tests.errors import refuses
from tests.pretraining.images import raw_images
from tests.tiny import assert_close

METHODS = {
    "masked_patch": (MaskedPatchPrediction, {}),
    "simmim": (SimMIM, {"mask_unit": 8}),
    "mae": (MAE, {"decoder_num_layers": 1, "decoder_hidden_dim": 8}),
}
each_method = pytest.mark.parametrize("method", METHODS)


def build(method, seed=0, **changes):
    cls, options = METHODS[method]
    return cls(tiny.build(**{"include_preprocessing": True, "num_layers": 1, **changes}), seed=seed, **options)


def numpy(tensors):
    return [keras.ops.convert_to_numpy(t) for t in tensors]


@pytest.mark.every_backend
@each_method
def test_training_step_loss_and_trained_weights(method):
    images = raw_images(2)
    model = build(method)
    # The first masks of a model depend on its seed only.
    twin = keras.models.clone_model(model.backbone)
    twin.set_weights(model.backbone.get_weights())
    twin = METHODS[method][0](twin, seed=0, **METHODS[method][1])
    twin.set_weights(model.get_weights())
    # Weight decay would change weights without a gradient.
    optimizer = keras.optimizers.AdamW(1e-2, weight_decay=0.1)
    backend = keras.backend.backend()
    # MAE has the most layers; one graph is enough on TensorFlow.
    eager = backend == "tensorflow" and method != "mae"
    model.compile(optimizer, jit_compile=backend == "jax", run_eagerly=eager)
    before = numpy(model.backbone.weights)
    # Labels are ignored.
    loss = model.train_on_batch(images, np.zeros(2))
    assert float(loss) == pytest.approx(float(twin.compute_loss(images, None, twin(images))), rel=1e-4)
    for weight, old in zip(model.backbone.weights, before, strict=True):
        trained = "head" not in weight.path
        assert (numpy([weight])[0] != old).any() == trained, weight.path
        assert weight.trainable


@each_method
def test_gradients_of_visible_predictions_are_zero(method):
    model = build(method)
    images = raw_images(2)
    outputs = model(images)
    mask = keras.ops.convert_to_numpy(outputs["mask"])
    assert mask.any() and not mask.all()
    prediction = outputs["prediction"].detach().clone().requires_grad_()
    model.compute_loss(images, None, {**outputs, "prediction": prediction}).backward()
    found = prediction.grad.cpu().numpy().reshape(*mask.shape, -1)
    assert (found[~mask] == 0).all()
    assert (np.abs(found[mask]).max(axis=-1) > 0).all()


@each_method
def test_reloaded_weights_continue_the_run(method, tmp_path):
    images = raw_images(4, 24, 18)

    def compiled(seed):
        model = build(method, seed, image_size=(24, 18))
        model.compile(keras.optimizers.AdamW(1e-2))
        model.optimizer.build(model.trainable_variables)
        return model

    model, reloaded = compiled(0), compiled(5)
    model.train_on_batch(images)
    model.save_weights(tmp_path / "run.weights.h5")
    reloaded.load_weights(tmp_path / "run.weights.h5")
    # The seed generator is one of the variables.
    assert_close(model.variables, reloaded.variables)
    assert int(reloaded.optimizer.iterations) == 1
    losses = [float(each.train_on_batch(images)) for each in (model, reloaded)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    assert_close(model.weights, reloaded.weights, atol=1e-5)
    for part in reloaded.reconstruct(images[:2]):
        # The last two columns of pixels are less than a patch.
        assert part.shape == (2, 24, 16, 3) and part.min() >= 0 and part.max() <= 255


@each_method
def test_seed_determines_the_stream_of_masks(method):
    def masks(seed):
        model = build(method, seed, image_size=32)
        assert model.seed == seed
        return numpy([model(images)["mask"] for _ in range(2)])

    images = raw_images(2, 32, 32)
    first, again, other = masks(7), masks(7), masks(8)
    assert_close(first, again)
    assert (first[0] != first[1]).any(), "the masks of one model repeat"
    assert all((a != b).any() for a, b in zip(first, other, strict=True)), "another seed draws the same masks"


@each_method
def test_reconstruct_draws_masks_from_its_seed_only(method):
    model = build(method)
    state = numpy([model.seed_generator.state])
    images = raw_images(2)
    default, same, other = (model.reconstruct(images, *seed) for seed in ((), (np.int64(0),), (4,)))
    np.testing.assert_array_equal(default.masked, same.masked)
    assert (default.masked != other.masked).any()
    assert_close([model.seed_generator.state], state)


@each_method
def test_dropout_is_only_active_in_training(method):
    model, images = build(method, dropout_rate=0.5), raw_images(2)
    hidden = model.draw(2, 0)
    for training in (False, True):
        first, second = numpy(model(images, training=training, hidden=hidden)["prediction"] for _ in range(2))
        assert (first != second).any() == training


def test_saved_file_contains_only_the_backbone(tmp_path):
    model = build("simmim")
    assert model.plain_model is model.backbone
    model.save(tmp_path / "model.keras")
    reloaded = keras.saving.load_model(tmp_path / "model.keras")
    assert type(reloaded) is type(model.backbone)
    assert_close(reloaded.weights, model.backbone.weights)
    refuses("SimMIM has no config", model.get_config, error=NotImplementedError)


@pytest.mark.parametrize(
    "method, dtype, channels",
    [("masked_patch", "mixed_bfloat16", 4), ("simmim", "mixed_float16", 1), ("mae", "mixed_bfloat16", 1)],
)
def test_mixed_precision_with_other_channels(method, dtype, channels):
    with tiny.dtype_policy(dtype):
        model = build(method, image_size=(12, 16), in_channels=channels)
    assert model.dtype_policy.name == dtype
    images = raw_images(4, 12, 16, channels)
    assert keras.backend.standardize_dtype(model(images)["prediction"].dtype) == "float32"
    model.compile("adam")
    assert ("LossScale" in type(model.optimizer).__name__) == (dtype == "mixed_float16")
    assert np.isfinite(model.train_on_batch(images))
    assert np.isfinite(np.concatenate([w.ravel() for w in model.get_weights()])).all()
    assert all(np.isfinite(part).all() for part in model.reconstruct(images))


def test_loss_adds_regularizers_and_is_divided_by_replicas():
    model = build("simmim")
    images = raw_images(2)
    outputs = model(images)
    plain = float(model.compute_loss(images, None, outputs))
    model.head.kernel.regularizer = keras.regularizers.L2(1.0)
    regularized = plain + (numpy([model.head.kernel])[0] ** 2).sum()
    assert float(model.compute_loss(images, None, outputs)) == pytest.approx(regularized, rel=1e-4)
    model.distribute_strategy = SimpleNamespace(num_replicas_in_sync=2)
    assert float(model.compute_loss(images, None, outputs)) == pytest.approx(regularized / 2, rel=1e-4)


def test_a_loss_and_sample_weights_are_refused():
    model = build("simmim")
    refuses("without sample weights", model.compute_loss, raw_images(2), None, None, sample_weight=np.ones(2))
    model.compile("adam", "mse")
    refuses("compiled without a loss", model.fit, raw_images(2), np.zeros(2), verbose=0)
