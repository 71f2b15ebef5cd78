import keras
import numpy as np
import pytest

import keras_vit
from tests.examples import scripts

tf = pytest.importorskip("tensorflow", reason="the examples feed the model through tf.data")
pytest.importorskip("matplotlib", reason="the examples draw figures")

COLORS = {"blue": (0, 0, 200), "green": (0, 200, 0), "red": (200, 0, 0)}
SIZES = ("--variant", "Ti/16", "--image-size", 32)


@pytest.fixture(scope="module")
def finetune():
    return scripts.load("finetune.py")


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    """A checkpoint of the smallest variant, with random weights, for images of 16 x 16 and 5 classes."""
    keras.utils.set_random_seed(0)
    path = tmp_path_factory.mktemp("weights") / "ViT-Ti_16.npz"
    keras_vit.save_weights(keras_vit.ViTTi16(image_size=16, num_classes=5), path)
    return path


@pytest.fixture
def folder(tmp_path):
    """A folder of three classes with six noisy images of one color, in several sizes, as JPEG and PNG."""
    rng = np.random.default_rng(0)
    for name, color in COLORS.items():
        (tmp_path / "images" / name).mkdir(parents=True)
        for i in range(6):
            image = np.clip(np.array(color) + rng.integers(-40, 40, (24 + 8 * i, 40, 3)), 0, 255).astype("uint8")
            encoded = tf.io.encode_png(image) if i % 2 else tf.io.encode_jpeg(image)
            (tmp_path / "images" / name / f"{i}.{'png' if i % 2 else 'jpg'}").write_bytes(encoded.numpy())
    (tmp_path / "images" / "red" / ".hidden").write_text("no image")
    return tmp_path / "images"


def options(weights, dataset, out, *more):
    return list(map(str, ("--weights", weights, "--dataset", dataset, "--out", out, *SIZES, *more)))


def test_finetune_trains_only_the_head_and_saves_it(finetune, weights, folder, tmp_path, capsys):
    out = tmp_path / "run"
    finetune.main(options(weights, folder, out, "--holdout", 0.34, "--epochs", 30, "--batch-size", 6))
    output = capsys.readouterr().out
    assert "12 images of 3 classes to train on, 6 to test on" in output
    files = ["classes.txt", "history.png", "model.keras", "predictions.png"]
    assert sorted(file.name for file in out.iterdir()) == files
    assert (out / "classes.txt").read_text().split() == ["blue", "green", "red"]
    # Random features are enough to separate three colors.
    assert scripts.last_accuracy(output) == 1.0

    model = keras.models.load_model(out / "model.keras")
    images = np.stack([np.full((32, 32, 3), color, "float32") for color in COLORS.values()])
    logits = model.predict(images, verbose=0)
    np.testing.assert_array_equal(logits.argmax(axis=1), [0, 1, 2], "the saved model takes raw images of 0..255")
    frozen = keras_vit.ViTTi16(image_size=32, num_classes=3, weights=weights)
    for here, there in zip(frozen.weights, model.weights, strict=True):
        if "head" not in here.path:
            np.testing.assert_array_equal(*(keras.ops.convert_to_numpy(w) for w in (here, there)), here.path)


def prepare_tfds(data_dir, splits):
    """Writes colored images as the TFDS dataset "colors"."""
    tfds = pytest.importorskip("tensorflow_datasets", reason="the dataset is in TFDS' format")
    rng = np.random.default_rng(0)

    def rows(count):
        for i in range(count):
            image = np.array(list(COLORS.values())[i % 3]) + rng.integers(0, 40, (20, 20, 3))
            yield {"image": image.astype("uint8"), "label": i % 3}

    features = {"image": tfds.features.Image(shape=(20, 20, 3)), "label": tfds.features.ClassLabel(names=list(COLORS))}
    signature = {"image": tf.TensorSpec((20, 20, 3), tf.uint8), "label": tf.TensorSpec((), tf.int64)}
    datasets = {
        name: tf.data.Dataset.from_generator(lambda count=count: rows(count), output_signature=signature)
        for name, count in splits.items()
    }
    names = {"name": "colors", "version": "1.0.0", "data_dir": str(data_dir)}
    features = tfds.features.FeaturesDict(features)
    tfds.dataset_builders.store_as_tfds_dataset(**names, features=features, split_datasets=datasets)


@pytest.mark.long
def test_finetune_on_tfds_dataset_uses_its_test_split(finetune, weights, tmp_path, capsys):
    prepare_tfds(tmp_path, {"train": 18, "test": 9})
    finetune.main(options(weights, "colors", tmp_path / "run", "--data-dir", tmp_path, "--epochs", 20))
    printed = capsys.readouterr().out
    assert "18 images of 3 classes to train on, 9 to test on" in printed and scripts.last_accuracy(printed) == 1.0


def test_folder_without_two_full_classes_is_refused(finetune, weights, folder, tmp_path):
    (folder / "violet").mkdir()
    with pytest.raises(SystemExit, match=r"None found in .*violet"):
        finetune.main(options(weights, folder, tmp_path / "run"))
    for name in ("green", "red", "violet"):
        (folder / name).rename(tmp_path / name)
    with pytest.raises(SystemExit, match=r"two classes or more in .*\['blue'\]"):
        finetune.main(options(weights, folder, tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_count_below_one_is_refused(finetune, capsys):
    for option in ("--epochs", "--batch-size", "--image-size"):
        with pytest.raises(SystemExit):
            finetune.main(options("weights.npz", "folder", "run", option, 0))
        assert f"argument {option}: expected a whole number of at least 1, received '0'" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["mnist", "no_such_dataset"])
def test_unprepared_tfds_dataset_is_refused(name, finetune, weights, tmp_path):
    pytest.importorskip("tensorflow_datasets", reason="it says what is missing")
    with pytest.raises(SystemExit, match=f"There is no folder '{name}'"):
        finetune.main(options(weights, name, tmp_path / "run", "--data-dir", tmp_path))


def test_missing_or_unsuitable_weights_are_refused(finetune, weights, folder, tmp_path):
    with pytest.raises(SystemExit, match="absent.npz., which does not exist"):
        finetune.main(options(tmp_path / "absent.npz", folder, tmp_path / "run"))
    with pytest.raises(SystemExit, match="does not fit model"):
        finetune.main([*options(weights, folder, tmp_path / "run"), "--variant", "S/16"])
