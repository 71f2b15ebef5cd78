import keras
import numpy as np
import pytest

from tests.examples import scripts

pytest.importorskip("tensorflow", reason="the examples feed the model through tf.data")
pytest.importorskip("sklearn", reason="the digits come with scikit-learn")
pytest.importorskip("matplotlib", reason="the examples draw figures")


@pytest.mark.long
def test_train_saves_model_and_figures(tmp_path):
    output = scripts.run("train.py", "--epochs", 2, "--out", tmp_path / "run", "--seed", 3)
    assert "accuracy:" in output and "━" in output, "no progress bar"
    files = ["history.png", "model.keras", "predictions.png"]
    assert sorted(file.name for file in (tmp_path / "run").iterdir()) == files
    train = scripts.load("train.py")
    images, labels = train.load_images(seed=3)["test"]
    images = train.enlarge(images, labels)[0].numpy()
    logits = keras.models.load_model(tmp_path / "run" / "model.keras").predict(images, verbose=0)
    accuracy = np.mean(logits.argmax(axis=1) == labels)
    assert accuracy > 0.15, "two epochs must do better than chance"
    # The batches of the script differ, so the class of one image may change by rounding.
    assert scripts.last_accuracy(output) == pytest.approx(accuracy, abs=1.5 / len(labels))


def test_splits_are_disjoint_and_hold_each_class():
    splits = scripts.load("train.py").load_images(seed=0)
    assert [len(labels) for _, labels in splits.values()] == [1257, 180, 360]
    for images, labels in splits.values():
        assert images.dtype == "uint8" and images.shape[1:] == (8, 8, 1) and images.max() == 255
        assert np.bincount(labels, minlength=10).min() >= len(labels) // 11
    from sklearn.datasets import load_digits

    # The splits together hold each image as often as the source.
    together = np.concatenate([images for images, _ in splits.values()]).reshape(1797, -1)
    source = np.round(load_digits().data * (255 / 16)).astype("uint8")
    np.testing.assert_array_equal(np.sort(together.view("S64").ravel()), np.sort(source.view("S64").ravel()))


def test_augmentation_keeps_shape_range_and_labels():
    train = scripts.load("train.py")
    images, labels = train.load_images(seed=0)["validation"]
    images, labels = train.enlarge(images[:16], labels[:16])
    changed, same = train.make_augment()(images, labels)
    changed = keras.ops.convert_to_numpy(changed)
    assert changed.shape == (16, 16, 16, 1) and changed.min() >= 0 and changed.max() <= 255
    assert np.abs(changed - images.numpy()).max(axis=(1, 2, 3)).min() > 1, "each image must change"
    assert same is labels
