import sys

import keras
import numpy as np
import pytest

from keras_vit.inspection import plot_history, plot_predictions
from tests import tiny
from tests.errors import refuses

matplotlib = pytest.importorskip("matplotlib", reason="plots need matplotlib")

HISTORY = {"accuracy": [0.3, 0.6, 0.8], "loss": [2.0, 1.0, 0.5], "learning_rate": [0.1, 0.1, 0.01]}
HISTORY |= {"val_accuracy": [0.2, 0.5, 0.6], "val_loss": [2.1, 1.3, 0.9]}
NAMES = ["cat", "dog", "sea horse"]
REFUSED = [
    (lambda x, y, p: (x[..., :2], y, p), "with 1, 3 or 4 channels"),
    (lambda x, y, p: (x, y, p[:, :2]), "`probabilities` of shape"),
    (lambda x, y, p: (x, y + 1, p), "integers of 0..2. Received: .1, 2, 3, 1"),
    (lambda x, y, p: (x, y, p * 10), "Apply keras.ops.softmax to logits first"),
]


def predictions(channels=3, number=4):
    images = np.random.default_rng(0).integers(0, 256, (number, 8, 12, channels), "uint8")
    labels = np.arange(number) % 3
    probabilities = np.full((number, 3), 0.1)
    # The last prediction is wrong.
    probabilities[np.arange(number), np.where(np.arange(number) == number - 1, (labels + 1) % 3, labels)] = 0.8
    return images, labels, probabilities


def test_history_plot_has_panels_for_loss_and_accuracy(tmp_path):
    history = keras.callbacks.History()
    history.history = HISTORY
    loss, accuracy = plot_history(history, tmp_path / "history.png").axes
    assert matplotlib.image.imread(tmp_path / "history.png").shape[1] > 900
    assert [loss.get_title(), accuracy.get_title()] == ["Loss", "Accuracy"]
    for axes in (loss, accuracy):
        name = axes.get_ylabel()
        train, validation = axes.lines
        np.testing.assert_array_equal(train.get_xydata(), np.c_[[1, 2, 3], HISTORY[name]])
        np.testing.assert_array_equal(validation.get_xydata(), np.c_[[1, 2, 3], HISTORY[f"val_{name}"]])
    (axes,) = plot_history({"loss": [1.0]}).axes
    assert axes.lines[0].get_marker() == "o", "a single epoch must be visible"
    refuses("at least one epoch of `loss`", plot_history, {"loss": []})


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_predictions_plot_has_panel_per_image(channels, tmp_path):
    images, labels, probabilities = predictions(channels)
    figure = plot_predictions(images, labels, probabilities, NAMES, tmp_path / "predictions.png")
    assert matplotlib.image.imread(tmp_path / "predictions.png").std() > 0.01
    pairs = [("cat", "cat"), ("dog", "dog"), ("sea horse", "sea horse"), ("dog", "cat")]
    titles = [f"{predicted} (80%)\ntrue: {true}" for predicted, true in pairs]
    assert [axes.get_title() for axes in figure.axes] == titles
    red = matplotlib.colors.to_rgb("#d62728")
    for axes, image, wrong in zip(figure.axes, images, [False, False, False, True], strict=True):
        np.testing.assert_array_equal(axes.images[0].get_array(), image[..., 0] if channels == 1 else image[..., :3])
        assert (matplotlib.colors.to_rgb(axes.title.get_color()) == red) == wrong


def test_predictions_plot_takes_names_of_model():
    images, labels, probabilities = predictions()
    model = tiny.build(num_classes=3, class_names=NAMES)
    figure = plot_predictions(images, [NAMES[label] for label in labels], probabilities, model)
    titles = [axes.get_title() for axes in figure.axes]
    assert titles[2:] == ["sea horse (80%)\ntrue: sea horse", "dog (80%)\ntrue: cat"]
    refuses("`labels`. Expected a name .*'seahorse'", plot_predictions, images, ["seahorse"] * 4, probabilities, model)


def test_failed_plot_keeps_old_file(tmp_path, monkeypatch):
    path = tmp_path / "history.png"
    path.write_bytes(b"the old picture")

    def half_written(self, file, **kwargs):
        with open(file, "wb") as half:
            half.write(b"\x89PNG")
        raise OSError("No space left on device")

    monkeypatch.setattr(matplotlib.figure.Figure, "savefig", half_written)
    refuses("No space left", plot_history, HISTORY, path, error=OSError)
    assert [file.read_bytes() for file in tmp_path.iterdir()] == [b"the old picture"]


@pytest.mark.parametrize("change, message", REFUSED)
def test_predictions_plot_refuses_invalid_arrays(change, message):
    refuses(message, plot_predictions, *change(*predictions()), NAMES)


def test_error_without_matplotlib_names_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    refuses("pip install matplotlib", plot_history, HISTORY, error=ImportError)
