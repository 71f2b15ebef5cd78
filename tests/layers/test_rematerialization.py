import keras
import numpy as np
import pytest
from keras import ops

import keras_vit
from keras_vit.training import enable_lora
from tests.tiny import build, dtype_policy

IMAGES = np.random.default_rng(0).normal(size=(4, 16, 16, 3)).astype("float32")
LABELS = np.arange(4)
DROPOUT = {"dropout_rate": 0.2, "attention_dropout_rate": 0.2, "drop_path_rate": 0.3, "patch_dropout_rate": 0.2}
MODES = [
    {**DROPOUT, "layer_scale_init": 0.5, "qk_norm": True},
    pytest.param({"num_layers": 1, "token_merging": 3, "drop_path_rate": 0.3}, marks=pytest.mark.every_backend),
]


def trained(remat, lora=False, run_eagerly=False, **changes):
    """The losses of three steps and the weights after them."""
    # The seeds of the dropout layers are drawn from this seed.
    keras.utils.set_random_seed(0)
    model = build(remat=remat, **changes)
    if lora:
        enable_lora(model, rank=2)
    model.compile(
        keras.optimizers.SGD(0.1),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        # Compiling by XLA takes TensorFlow seconds and changes no gradient.
        jit_compile="auto" if keras.backend.backend() == "jax" else False,
        run_eagerly=run_eagerly,
    )
    return [model.train_on_batch(IMAGES, LABELS) for _ in range(3)], model


@pytest.mark.parametrize("changes", MODES, ids=["dropout", "merging"])
def test_remat_keeps_losses_and_weights(changes):
    losses, model = trained(False, **changes)
    again, recomputed = trained(True, **changes)
    np.testing.assert_allclose(again, losses, rtol=1e-5)
    for expected, actual in zip(model.weights, recomputed.weights, strict=True):
        np.testing.assert_allclose(
            ops.convert_to_numpy(actual), ops.convert_to_numpy(expected), rtol=1e-4, atol=1e-5, err_msg=expected.path
        )


@pytest.mark.backends("tensorflow")
def test_remat_keeps_losses_outside_a_graph():
    changes = {"run_eagerly": True, "num_layers": 1, "drop_path_rate": 0.3}
    np.testing.assert_allclose(trained(True, **changes)[0], trained(False, **changes)[0], rtol=1e-5)


def test_remat_keeps_losses_with_lora():
    np.testing.assert_allclose(trained(True, lora=True)[0], trained(False, lora=True)[0], rtol=1e-5)


@pytest.mark.backends("tensorflow")
def test_remat_compiled_by_xla_keeps_losses():
    losses = []
    for remat in (False, True):
        keras.utils.set_random_seed(0)
        model = build(remat=remat, num_layers=1, dropout_rate=0.2, token_merging=2)
        model.compile(keras.optimizers.SGD(0.1), "mse")
        losses.append(model.fit(IMAGES, np.eye(4, 5), batch_size=4, epochs=2, verbose=0).history["loss"])
    np.testing.assert_allclose(*losses, rtol=1e-4)


@pytest.mark.parametrize("again", ["same", "reloaded", "cloned"])
def test_remat_recomputes_only_in_training(monkeypatch, tmp_path, again):
    calls, remat = [], keras.remat
    monkeypatch.setattr(keras, "remat", lambda f: calls.append(f) or remat(f))
    model = build(remat=True, num_layers=3)
    if again == "reloaded":
        model.save(tmp_path / "model.keras")
        model = keras.saving.load_model(tmp_path / "model.keras")
    elif again == "cloned":
        model = keras.models.clone_model(model)
    model(IMAGES)
    model.predict(IMAGES, verbose=0)
    keras_vit.inspection.attention_rollout(model, IMAGES)
    assert not calls
    model(IMAGES, training=True)
    assert len(calls) == 3


def test_remat_in_mixed_precision_has_finite_losses():
    with dtype_policy("mixed_bfloat16"):
        losses, _ = trained(True, dropout_rate=0.1, token_merging=2)
    assert np.isfinite(losses).all()


def test_remat_scope_trains_a_block_in_mixed_precision():
    with keras.RematScope(mode="list_of_layers", layer_names=["block"]):
        block = keras_vit.layers.TransformerBlock(2, 16, layer_scale_init=0.1, dtype="mixed_bfloat16", name="block")
        inputs = keras.Input((5, 8))
        model = keras.Model(inputs, block(inputs))
        model.compile("sgd", "mse")
        assert np.isfinite(model.train_on_batch(np.ones((2, 5, 8)), np.zeros((2, 5, 8))))
