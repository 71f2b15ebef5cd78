import json

import keras
import numpy as np
import pytest

from keras_vit import data, training
from keras_vit.training.run import build, loss, optimizer

TINY = {
    "variant": "Ti/4",
    "image_size": 8,
    "model.num_layers": 1,
    "model.hidden_dim": 12,
    "model.num_heads": 3,
    "model.mlp_dim": 16,
    "batch_size": 4,
}


@pytest.fixture
def images(tmp_path):
    """A folder of dark cats and bright dogs."""
    rng = np.random.default_rng(0)
    for name, low in (("cat", 0), ("dog", 128)):
        (tmp_path / "images" / name).mkdir(parents=True)
        for i in range(10):
            pixels = rng.integers(low, low + 128, (12, 12, 3))
            keras.utils.save_img(tmp_path / "images" / name / f"{i}.png", pixels, scale=False)
    return data.splits(tmp_path / "images", holdout=0.4)


def test_a_run_learns_and_writes_what_it_says(images, tmp_path):
    recipe = training.recipe("finetune_pets").replace(
        {**TINY, "steps": 10, "learning_rate": 0.5, "warmup_steps": 2, "layer_decay": 0.9}
    )
    ran = training.run(recipe, images, tmp_path / "run", weights="none", verbose=0)
    assert ran.results["test"]["accuracy"] == 1.0 and ran.results["steps"] == 10
    assert len(ran.history.history["loss"]) == 4  # of 3 steps, the last of 1
    saved = json.loads((tmp_path / "run" / "results.json").read_text())
    assert saved["test"] == ran.results["test"] and saved["recipe"]["learning_rate"] == 0.5
    assert len((tmp_path / "run" / "history.csv").read_text().splitlines()) == 5
    reloaded = keras.models.load_model(tmp_path / "run" / "model.keras")
    bright = np.full((1, 8, 8, 3), 200.0)
    assert int(np.argmax(reloaded.predict(bright, verbose=0))) == 1

    # Again: there is nothing left to do, and another run is refused there.
    again = training.run(recipe, images, tmp_path / "run", weights="none", verbose=0)
    assert again.results["test"] == ran.results["test"] and len(again.history.history["loss"]) == 4
    with pytest.raises(ValueError, match=r"holds one with batch_size=4 and not 8"):
        training.run(recipe.replace({"batch_size": 8}), images, tmp_path / "run", weights="none")


def test_lora_is_merged_into_the_model_that_is_saved(images, tmp_path):
    recipe = training.recipe("lora_flowers17").replace({**TINY, "epochs": 1, "lora_rank": 2, "ema": 0.5})
    ran = training.run(recipe, images, tmp_path / "run", weights="none", verbose=0)
    plain = build(recipe.replace({"train": "all"}), 2)
    assert ran.model.count_params() == plain.count_params()
    assert not any("lora" in weight.path for weight in ran.model.weights)


def test_optimizers_follow_the_recipe():
    recipe = training.recipe("deit_small").replace({**TINY, "accumulate": 2, "ema": 0.9, "clip": 2.0})
    made = optimizer(recipe, None, 100, 10)
    config = made.get_config()
    assert config["weight_decay"] == 0.05 and config["global_clipnorm"] == 2.0 and config["use_ema"]
    assert made.gradient_accumulation_steps == 2
    schedule = made._learning_rate
    assert (schedule.peak, schedule.total_steps, schedule.warmup_steps) == (1e-3, 100, 10)
    recipe = training.recipe("finetune_pets").replace({**TINY, "layer_decay": 0.5})
    layered = optimizer(recipe, build(recipe, 2), 100, 10)
    assert isinstance(layered, training.LayerDecay) and layered.multipliers["block_00"] == 0.5


def test_sigmoid_loss_is_summed_over_the_classes():
    recipe = training.recipe("pretrain_imagenet21k").replace({"loss": "sigmoid"})
    logits, labels = np.array([[1.0, -2.0, 0.5]], "float32"), np.array([[1.0, 0.0, 0.0]], "float32")
    expected = np.sum(np.log1p(np.exp(logits)) - labels * logits)
    assert float(loss(recipe, one_hot=True)(labels, logits)) == pytest.approx(expected, rel=1e-6)


def test_other_classes_in_the_test_images_are_refused(images, tmp_path):
    def make(part, **options):
        dataset = images(part, **options)
        if part == "test":
            dataset.class_names = ["dog", "cat"]
        return dataset

    with pytest.raises(ValueError, match="in the test images as well"):
        training.run(training.recipe("finetune_pets").replace(TINY), make, tmp_path / "run")


def test_only_the_head_is_trained():
    recipe = training.recipe("finetune_pets").replace({**TINY, "train": "head", "dtype": "mixed_bfloat16"})
    model = build(recipe, 2)
    assert {weight.path.split("/")[0] for weight in model.trainable_weights} == {"head"}
    assert model.get_layer("block_00").compute_dtype == "bfloat16" and keras.config.dtype_policy().name == "float32"
