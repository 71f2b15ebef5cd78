import pytest

from keras_vit.training import recipe
from keras_vit.training.lengths import Lengths, batch_size_for, lengths


@pytest.mark.parametrize(
    ("images", "batch", "steps", "warmup"),
    [(100, 16, 500, 50), (1_000, 32, 500, 50), (10_000, 64, 1_250, 125), (100_000, 64, 12_500, 1_250)],
)
def test_fine_tuning_on_images_of_ones_own(images, batch, steps, warmup):
    assert batch_size_for(images) == batch
    found = lengths(recipe("finetune").replace({"batch_size": batch}), images, images // 4)
    assert (found.total, found.warmup) == (steps, warmup)
    assert found.epoch * (found.epochs - 1) < steps <= found.epoch * found.epochs


def test_lengths_in_steps_and_in_epochs():
    row = recipe("deit_tiny").replace({"batch_size": 10, "epochs": 2})
    assert lengths(row, 100, 10) == Lengths(20, 2, 10)
    assert lengths(row.replace({"steps": 7, "warmup_epochs": 0.2}), 100, 10) == Lengths(7, 2, 7)
    assert batch_size_for(1) == 16


def test_a_warm_up_longer_than_the_run_becomes_a_tenth_and_is_said_once(caplog):
    row = recipe("pretrain_imagenet21k").replace({"batch_size": 16, "steps": 40})
    assert lengths(row, 80, 20).warmup == 4
    assert len(caplog.messages) == 1 and "shorter than the run, 40 steps. Received: 10000 steps" in caplog.messages[0]
    assert lengths(row.replace({"steps": 1}), 80, 20).warmup == 0
    caplog.clear()
    assert lengths(row.replace({"warmup_steps": 39}), 80, 20).warmup == 39 and not caplog.messages
