import json
import shutil

import keras
import numpy as np
import pytest

from keras_vit import data, training
from keras_vit.config import find_normalization
from tests.distribution.children import write_images
from tests.tiny import Kill

pytestmark = pytest.mark.backends("tensorflow")
TINY = {"variant": "Ti/4", "image_size": 8, "batch_size": 4, "warmup_steps": 2}
TINY |= {"model.num_layers": 1, "model.hidden_dim": 12, "model.num_heads": 3, "model.mlp_dim": 16}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Returns a folder of dark cats and bright dogs."""
    return write_images(tmp_path_factory.mktemp("run"), ("cat", "dog"), 10, (12, 12))


@pytest.fixture
def images(folder):
    return data.splits(folder, holdout=0.4)


@pytest.mark.long
def test_interrupted_run_resumes_and_writes_its_results(images, folder, tmp_path):
    changes = {"steps": 7, "learning_rate": 0.5, "layer_decay": 0.9}
    changes["model.preprocessing"] = {"interpolation": "bicubic"}
    recipe = training.RECIPES["finetune_pets"].replace({**TINY, **changes})
    options = {"weights": "none", "verbose": 0, "save_every": 2}
    with pytest.raises(KeyboardInterrupt):
        training.run(recipe, images, tmp_path / "run", callbacks=[Kill(at=4)], **options)
    assert not (tmp_path / "run" / "results.json").exists()
    ran = training.run(recipe, images, tmp_path / "run", **options)
    assert ran.results["test"]["accuracy"] == 1.0 and ran.results["steps"] == 7 and ran.results["first_step"] >= 3
    # The last of three epochs has one step.
    assert len(ran.history.history["loss"]) == 3
    saved = json.loads((tmp_path / "run" / "results.json").read_text())
    assert saved["test"] == ran.results["test"] and saved["recipe"]["learning_rate"] == 0.5
    rows = (tmp_path / "run" / "history.csv").read_text().splitlines()
    assert rows[0].startswith("epoch,accuracy,loss") and [row.split(",")[0] for row in rows[1:]] == list("012")
    reloaded = keras.models.load_model(tmp_path / "run" / "model.keras")
    assert int(np.argmax(reloaded.predict(np.full((1, 8, 8, 3), 200.0), verbose=0))) == 1
    assert reloaded.get_layer("normalization").class_names == ["cat", "dog"]

    # A complete run trains no more, and the folder refuses other runs.
    again = training.run(recipe, images, tmp_path / "run", **options)
    assert again.results["test"] == ran.results["test"] and len(again.history.history["loss"]) == 3
    assert json.loads((tmp_path / "run" / "results.json").read_text()) == saved
    with pytest.raises(ValueError, match=r"a run with batch_size=4 and not 5"):
        training.run(recipe.replace({"batch_size": 5}), images, tmp_path / "run", **options)
    with pytest.raises(ValueError, match=r"a run with files=.*test_images=8 and not 4, train_images=12 and not 16"):
        training.run(recipe, data.splits(folder, holdout=0.2), tmp_path / "run", **options)


@pytest.mark.long
def test_run_with_lora_and_ema_saves_a_merged_model(images, tmp_path):
    changes = {**TINY, "steps": 3, "lora_rank": 2, "ema": 0.5, "dtype": "float32", "learning_rate": 0.1}
    recipe = training.RECIPES["lora_flowers17"].replace({**changes, "label_smoothing": 0.1})
    ran = training.run(recipe, images, tmp_path / "run", weights="none", verbose=0)
    assert not any("lora" in weight.path for weight in ran.model.weights)
    reloaded = keras.models.load_model(tmp_path / "run" / "model.keras")
    test = images("test", image_size=8, batch_size=4, normalize=False, training=False, labels="one_hot", seed=0)
    assert reloaded.evaluate(test, verbose=0)[0] == pytest.approx(ran.results["test"]["loss"], rel=1e-5)
    assert ran.results["test"]["loss"] < 0.66  # 0.69 before


def test_run_of_several_labels_names_broken_images(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "images")
    (tmp_path / "images" / "cat" / "5.png").write_bytes(b"no image")
    paths = sorted((tmp_path / "images").rglob("*.png"))
    table = {"path": paths, "label": [f"{path.parent.name} pet" for path in paths]}
    changes = {"steps": 3, "train": "head", "batch_size": None, "loss": "sigmoid"}
    recipe = training.RECIPES["finetune"].replace({**TINY, **changes})

    def make(part, **options):
        return data.from_dataframe(table, label_separator=" ", **options)

    stop = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, _: setattr(stop.model, "stop_training", True)
    )
    options = {"weights": "none", "verbose": 0}
    assert training.run(recipe, make, tmp_path / "run", callbacks=[stop], **options).results["steps"] == 1
    ran = training.run(recipe, make, tmp_path / "run", **options)
    assert (ran.results["first_step"], ran.results["steps"]) == (1, 3)
    # A submission of one class per image would not fit the table.
    assert ran.results["class_names"] == ["cat", "dog", "pet"] and ran.results["table_columns"] is None
    assert ran.results["broken_images"] == [str(tmp_path / "images" / "cat" / "5.png")]
    assert ran.results["recipe"]["batch_size"] == 16 and np.isfinite(ran.results["test"]["loss"])


def test_diverged_run_writes_no_results(images, tmp_path):
    changes = {"steps": 9, "learning_rate": 1e30, "clip": None, "warmup_steps": 0, "sam": 0.1}
    recipe = training.RECIPES["finetune_pets"].replace({**TINY, **changes})
    with pytest.raises(FloatingPointError, match="non-finite values at step .* of 9"):
        training.run(recipe, images, tmp_path / "run", weights="none", verbose=0)
    assert not (tmp_path / "run" / "model.keras").exists() and not (tmp_path / "run" / "results.json").exists()


def test_run_refuses_other_classes_and_scaled_images(images, tmp_path):
    def reordered(part, **options):
        dataset = images(part, **options)
        if part == "test":
            dataset.class_names = ["dog", "cat"]
        return dataset

    def scaled(part, **options):
        return images(part, **{**options, "normalize": True})

    message = "images of 0 to 255, as the model takes them. Received: values from -0.9"
    for make, match in ((reordered, "Expected test images with the classes"), (scaled, message)):
        with pytest.raises(ValueError, match=match):
            training.run(training.RECIPES["finetune_pets"].replace(TINY), make, tmp_path / "run", weights="none")
        assert not (tmp_path / "run").exists()


def test_run_requests_data_with_the_model_preprocessing(images, tmp_path):
    asked = []

    def make(part, **options):
        asked.append((part, options))
        # The first call reads the labels. After the calls for training and test images, the run is not needed.
        if len(asked) == 3:
            raise KeyboardInterrupt
        return images(part, **options)

    preprocessing = {"interpolation": "bicubic", "crop_fraction": 0.8, "mean": (0.4, 0.5, 0.6)}
    changes = {"model.preprocessing": preprocessing}
    recipe = training.RECIPES["finetune_pets"].replace({**TINY, **changes})
    with pytest.raises(KeyboardInterrupt):
        training.run(recipe, make, tmp_path / "run", weights="none", verbose=0)
    for _, options in asked[1:]:
        found = find_normalization(options["preprocessing"]).preprocessing
        assert (found.interpolation, found.antialias, found.crop_fraction) == ("bicubic", True, 0.8)
        assert found.mean == (0.4, 0.5, 0.6)
        # The model scales the images.
        assert options["normalize"] is False
    assert {part for part, _ in asked[1:]} == {"train", "test"}
