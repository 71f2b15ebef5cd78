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


def test_count_below_one_is_refused(finetune, capsys):
    for option in ("--epochs", "--batch-size", "--image-size"):
        with pytest.raises(SystemExit):
            finetune.main(options("weights.npz", "folder", "run", option, 0))
        assert f"argument {option}: expected a whole number of at least 1, received '0'" in capsys.readouterr().err


def test_missing_or_unsuitable_weights_are_refused(finetune, weights, folder, tmp_path):
    with pytest.raises(SystemExit, match="absent.npz., which does not exist"):
        finetune.main(options(tmp_path / "absent.npz", folder, tmp_path / "run"))
    with pytest.raises(SystemExit, match="does not fit model"):
        finetune.main([*options(weights, folder, tmp_path / "run"), "--variant", "S/16"])
    with pytest.raises(SystemExit, match="There is no folder 'mnist'"):
        finetune.main(options(weights, "mnist", tmp_path / "run", "--data-dir", tmp_path))
    assert not (tmp_path / "run").exists()
