import keras
import numpy as np
import pytest

import keras_vit
from keras_vit import training
from keras_vit.data.source import tf
from keras_vit.training import RECIPES, settings
from keras_vit.training.settings import Lengths, batch_size_for, build, kind_of_labels, lengths, metrics, optimizer
from tests import tiny
from tests.errors import refuses
from tests.training.test_running import TINY


def test_optimizer_follows_the_recipe():
    recipe = training.RECIPES["deit_small"].replace({**TINY, "accumulate": 2, "ema": 0.9, "clip": 2.0})
    made = optimizer(recipe, None, 100, 10)
    config = made.get_config()
    assert config["weight_decay"] == 0.05 and config["global_clipnorm"] == 2.0 and config["use_ema"]
    assert made.gradient_accumulation_steps == 2
    schedule = config["learning_rate"]["config"]
    assert (schedule["peak"], schedule["total_steps"], schedule["warmup_steps"]) == (1e-3, 100, 10)
    recipe = training.RECIPES["finetune_pets"].replace({**TINY, "layer_decay": 0.5})
    layered = optimizer(recipe, build(recipe, 2), 100, 10)
    assert isinstance(layered, training.LayerDecay) and layered.multipliers["block_00"] == 0.5
    refuses("`warmup_steps`. Expected less than total_steps=50", optimizer, recipe, None, 50, 50)


def test_sigmoid_loss_is_summed_over_the_classes():
    recipe = training.RECIPES["pretrain_imagenet21k"].replace({"loss": "sigmoid"})
    logits, labels = np.array([[1.0, -2.0, 0.5]], "float32"), np.array([[1.0, 0.0, 0.0]], "float32")
    expected = np.sum(np.log1p(np.exp(logits)) - labels * logits)
    assert float(settings.loss(recipe, one_hot=True)(labels, logits)) == pytest.approx(expected, rel=1e-6)


def test_build_trains_only_the_head():
    recipe = training.RECIPES["finetune_pets"].replace({**TINY, "train": "head", "dtype": "mixed_bfloat16"})
    model = build(recipe, 2)
    assert {weight.path.split("/")[0] for weight in model.trainable_weights} == {"head"}
    assert model.get_layer("block_00").compute_dtype == "bfloat16" and keras.config.dtype_policy().name == "float32"


def test_kind_of_labels_follows_the_loss():
    softmax, sigmoid = (training.RECIPES["deit_tiny"].replace({"loss": name}) for name in ("softmax", "sigmoid"))
    images = tf.TensorSpec((None, 8, 8, 3))
    assert kind_of_labels(softmax, (images, tf.TensorSpec((None,)))) == "int"
    assert kind_of_labels(sigmoid, (images, tf.TensorSpec((None, 3)))) == "multi_hot"
    several = (images, tf.TensorSpec((None, 3)))
    refuses("Expected loss='sigmoid' for images with several labels", kind_of_labels, softmax, several)
    refuses("images with labels", kind_of_labels, softmax, images)


def test_metrics_of_several_labels_accept_logits():
    accuracy, auc = metrics(3, True, "multi_hot")
    labels, logits = np.array([[1, 0, 1], [0, 1, 0]]), np.array([[2.0, -1, -1], [-2, 1, -3]])
    accuracy.update_state(labels, logits)
    auc.update_state(labels, logits)
    assert float(accuracy.result()) == pytest.approx(5 / 6) and float(auc.result()) == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize(
    "images, batch, steps, warmup",
    [(100, 16, 500, 50), (1_000, 32, 500, 50), (10_000, 64, 1_250, 125), (100_000, 64, 12_500, 1_250)],
)
def test_finetune_lengths_follow_the_number_of_images(images, batch, steps, warmup):
    assert batch_size_for(images) == batch
    found = lengths(RECIPES["finetune"].replace({"batch_size": batch}), images, images // 4)
    assert (found.total, found.warmup) == (steps, warmup)
    assert found.epoch * (found.epochs - 1) < steps <= found.epoch * found.epochs


def test_lengths_of_steps_and_epochs():
    row = RECIPES["deit_tiny"].replace({"batch_size": 10, "epochs": 2})
    assert lengths(row, 100, 10) == Lengths(20, 2, 10)
    assert lengths(row.replace({"steps": 7, "warmup_epochs": 0.2}), 100, 10) == Lengths(7, 2, 7)
    assert batch_size_for(1) == 16


def test_lengths_warm_up_longer_than_the_run_is_a_tenth(caplog):
    row = RECIPES["pretrain_imagenet21k"].replace({"batch_size": 16, "steps": 40})
    assert lengths(row, 80, 20).warmup == 4
    assert len(caplog.messages) == 1 and "shorter than the run of 40 steps. Received: 10000 steps" in caplog.messages[0]
    assert lengths(row.replace({"steps": 1}), 80, 20).warmup == 0
    caplog.clear()
    assert lengths(row.replace({"warmup_steps": 39}), 80, 20).warmup == 39 and not caplog.messages


def test_file_of_weights_decides_the_architecture(tmp_path):
    model = tiny.randomize(tiny.build(num_layers=3, num_classes=4))
    keras_vit.save_weights(model, tmp_path / "model.npz")
    model.save(tmp_path / "model.keras")
    recipe = RECIPES["finetune"].replace({"variant": "B/32", "image_size": 24})
    for name in ("model.npz", "model.keras"):
        built = build(recipe, 2, str(tmp_path / name), ["cat", "dog"])
        assert (built.config.num_layers, built.config.patch_size, built.config.image_size) == (3, (4, 4), (24, 24))
        assert built.config.class_names == ("cat", "dog") and built.config.include_preprocessing
        np.testing.assert_array_equal(*(m.get_layer("block_02").mlp.dense_1.kernel for m in (model, built)))
