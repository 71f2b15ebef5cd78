import json

import keras
import numpy as np
import pytest

from keras_vit.evaluation import imagenet_real_accuracy, read_real_labels, real_accuracy

PREDICTIONS = np.eye(5)[[0, 3, 1, 4, 2, 2]]
LABELS = [[0], [1, 3], [], [2], [2, 0, 1], [0, 1]]


def write(folder, labels=LABELS):
    path = folder / "real.json"
    path.write_text(json.dumps(labels))
    return path


def model_and_images():
    """A model whose logits are what its images hold."""
    model = keras.Sequential([keras.Input((1, 1, 5)), keras.layers.Reshape((5,))])
    return model, PREDICTIONS[:, None, None].astype("float32")


def test_right_is_any_class_and_images_without_one_are_left_out():
    assert real_accuracy(PREDICTIONS, LABELS) == 3 / 5


def test_of_a_model_and_a_file(tmp_path):
    model, images = model_and_images()
    data = (images, np.zeros(6, int))
    for own in (np.full(6, -1), np.full((6, 5), 0.2), np.array(["cat"] * 6)):
        assert imagenet_real_accuracy(model, (images, own), LABELS, batch_size=4, verbose=0) == 3 / 5
    for labels in (write(tmp_path), str(tmp_path / "real.json"), LABELS):
        assert imagenet_real_accuracy(model, data, labels, batch_size=4, verbose=0) == 3 / 5


def test_images_in_another_order_and_fewer(tmp_path):
    model, images = model_and_images()
    order = [4, 3, 2, 0]
    names = [f"/data/n0/ILSVRC2012_val_{i + 1:08d}_n01440764.JPEG" for i in order]
    data = (images[order], np.zeros(4, int))
    assert imagenet_real_accuracy(model, data, write(tmp_path), file_names=names, verbose=0) == 2 / 3
    with pytest.raises(ValueError, match="one list a prediction, 4. Received: 6.*file_names"):
        imagenet_real_accuracy(model, data, write(tmp_path), verbose=0)


@pytest.mark.parametrize("name", ["cat.jpg", "ILSVRC2012_val_00000007.JPEG", "ILSVRC2012_val_00000000.JPEG"])
def test_names_that_tell_no_number(name):
    model, images = model_and_images()
    with pytest.raises(ValueError, match=f"`file_names`. Expected .* up to 6. Received: '{name}'"):
        imagenet_real_accuracy(model, (images, np.zeros(6)), LABELS, file_names=[name] * 6, verbose=0)


@pytest.mark.parametrize("content", [{"a": 1}, [0, 1], [[0], ["cat"]], [[-1]], [[True]], [[0.5]]])
def test_other_content(content, tmp_path):
    with pytest.raises(ValueError, match="real.json.* to hold a list of classes"):
        read_real_labels(write(tmp_path, content))


def test_no_file_and_no_json(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere.json"):
        read_real_labels(tmp_path / "nowhere.json")
    (tmp_path / "broken.json").write_text("[[1], [2")
    with pytest.raises(ValueError, match="Expected JSON in .*broken.json"):
        read_real_labels(tmp_path / "broken.json")


def test_labels_that_do_not_fit():
    with pytest.raises(ValueError, match="Expected classes below 5, .*Received: 5"):
        real_accuracy(PREDICTIONS, [[5]] * 6)
    with pytest.raises(ValueError, match="a class of any image"):
        real_accuracy(PREDICTIONS, [[]] * 6)
