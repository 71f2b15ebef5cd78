import json

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit import evaluation
from keras_vit.evaluation import accuracy, imagenet_real_accuracy, knn_accuracy, top_k_accuracy
from tests.errors import not_found, refuses
from tests.tiny import build, randomize

RNG = np.random.default_rng(0)
IMAGES, LABELS = RNG.normal(size=(11, 16, 16, 3)).astype("float32"), RNG.integers(0, 5, 11)
PREDICTIONS = np.eye(5)[[0, 3, 1, 4, 2, 2]]
CLASSES = [[0], [1, 3], [], [2], [2, 0, 1], [0, 1]]


def test_accuracy_equals_keras_evaluate():
    model = randomize(build())
    metrics = ["sparse_categorical_accuracy", keras.metrics.SparseTopKCategoricalAccuracy(3, name="top")]
    model.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=metrics)
    expected = model.evaluate(IMAGES, LABELS, batch_size=4, verbose=0, return_dict=True)
    found = accuracy(model, (IMAGES, LABELS), k=(1, 3), batch_size=4, verbose=0)
    expected = {"top_1": expected["sparse_categorical_accuracy"], "top_3": expected["top"]}
    assert found == pytest.approx(expected, abs=1e-6)
    assert 0 < found["top_1"] < found["top_3"] < 1


def test_top_k_accuracy_matches_scikit_learn():
    metrics = pytest.importorskip("sklearn.metrics", reason="it counts the same")
    scores, labels = RNG.normal(size=(50, 8)), RNG.permutation(np.arange(50) % 8)
    for k in range(1, 8):
        expected = metrics.top_k_accuracy_score(labels, scores, k=k)
        assert top_k_accuracy(scores, labels, k=k) == pytest.approx(expected)
        assert top_k_accuracy(scores, np.eye(8)[labels], k=k) == pytest.approx(expected)
    assert top_k_accuracy(scores, labels, k=8) == 1


def test_accuracy_of_equal_logits_is_chance():
    found = accuracy(build(head_init="zeros", num_classes=10), (np.zeros((10, 16, 16, 3)), np.arange(10)), verbose=0)
    assert found == {"top_1": 0.1, "top_5": 0.5}
    few = build(head_init="zeros", num_classes=4), (np.zeros((4, 16, 16, 3)), [0, 1, 2, 3])
    assert accuracy(*few, verbose=0) == {"top_1": 0.25}


def test_accuracy_of_subclassed_model():
    class Binary(keras.Model):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def call(self, images):
            p = keras.ops.sigmoid(self.inner(images))
            return keras.ops.concatenate([1 - p, p], axis=-1)

    model = Binary(randomize(build(num_classes=1)))
    labels = keras.ops.convert_to_numpy(model.inner(IMAGES))[:, 0] > 0
    assert accuracy(model, (IMAGES, labels.astype(int)), verbose=0) == {"top_1": 1.0}


def test_accuracy_refuses_invalid_input(model):
    scores = np.eye(3)
    refuses("`labels`. Expected classes below 3, .*Received: 3", top_k_accuracy, scores, [0, 1, 3])
    refuses("`k`. Expected at most 3, .*Received: 4", top_k_accuracy, scores, [0, 1, 2], k=4)
    refuses("`labels`. Expected 3 labels, one per prediction. Received: 2", top_k_accuracy, scores, [0, 1])
    refuses("`predictions`. Expected finite", top_k_accuracy, scores * np.nan, [0, 1, 2])
    refuses("`k`", accuracy, None, None, k=0)
    refuses("`k`. Expected at most 5, the number of classes. Received: 6", accuracy, model, None, k=(1, 6))
    expected = "Expected two or more outputs, one for each class. Received: one output"
    refuses(f"`model`. {expected}", accuracy, build(num_classes=1), None)
    refuses(f"`predictions`. {expected}", top_k_accuracy, scores[:, :1], [0, 0, 0])
    refuses("two arrays, .images, labels.. Received: a tuple of 3 arrays", accuracy, model, (IMAGES, LABELS, LABELS))
    two = build(distillation_token=True, return_both_heads=True)
    refuses("a model with one output. Received: .* with 2", accuracy, two, (IMAGES, LABELS), verbose=0)


def write(folder, labels=CLASSES):
    path = folder / "real.json"
    path.write_text(json.dumps(labels))
    return path


def model_and_images():
    """Returns a model whose logits are the pixels of an image, and images."""
    model = keras.Sequential([keras.Input((1, 1, 5)), keras.layers.Reshape((5,))])
    return model, PREDICTIONS[:, None, None].astype("float32")


def test_imagenet_real_accuracy_of_model(tmp_path):
    assert imagenet_real_accuracy(None, PREDICTIONS, CLASSES) == 3 / 5
    model, images = model_and_images()
    data = (images, np.zeros(6, int))
    for own in (np.full(6, -1), np.full((6, 5), 0.2), np.array(["cat"] * 6)):
        assert imagenet_real_accuracy(model, (images, own), CLASSES, batch_size=4, verbose=0) == 3 / 5
    for labels in (write(tmp_path), str(tmp_path / "real.json"), CLASSES):
        assert imagenet_real_accuracy(model, data, labels, batch_size=4, verbose=0) == 3 / 5


def test_real_labels_follow_file_names(tmp_path):
    model, images = model_and_images()
    order = [4, 3, 2, 0]
    names = [f"/data/n0/ILSVRC2012_val_{i + 1:08d}_n01440764.JPEG" for i in order]
    data = (images[order], np.zeros(4, int))
    assert imagenet_real_accuracy(model, data, write(tmp_path), file_names=names, verbose=0) == 2 / 3
    refuses("4 lists, one per prediction. Received: 6.*file_names", imagenet_real_accuracy, model, data, CLASSES)
    for name in ("cat.jpg", "ILSVRC2012_val_00000007.JPEG", "ILSVRC2012_val_00000000.JPEG"):
        expected = f"`file_names`. Expected .* up to 6. Received: '{name}'"
        refuses(expected, imagenet_real_accuracy, None, PREDICTIONS, CLASSES, file_names=[name] * 6)


def test_read_real_labels_refuses_invalid_file(tmp_path):
    for content in ({"a": 1}, [0, 1], [[0], ["cat"]], [[-1]], [[True]], [[0.5]]):
        path = write(tmp_path, content)
        refuses("real.json.* to hold a list of classes", imagenet_real_accuracy, None, PREDICTIONS, path)
    not_found("nowhere.json", imagenet_real_accuracy, None, PREDICTIONS, tmp_path / "nowhere.json")
    (tmp_path / "broken.json").write_text("[[1], [2")
    refuses("Expected JSON in .*broken.json", imagenet_real_accuracy, None, PREDICTIONS, tmp_path / "broken.json")


def test_real_accuracy_refuses_invalid_labels():
    refuses("Expected classes below 5, .*Received: 5", imagenet_real_accuracy, None, PREDICTIONS, [[5]] * 6)
    refuses("at least one image with a class", imagenet_real_accuracy, None, PREDICTIONS, [[]] * 6)


class Named(list):
    """Batches with the names of their classes, as datasets of `keras_vit.data` have them."""

    def __init__(self, images, labels, class_names):
        super().__init__([(images, labels)])
        self.class_names = class_names


def test_accuracy_matches_classes_by_name():
    model, images = model_and_images()
    images = np.eye(5, dtype="float32")[:, None, None]
    scaled = keras_vit.layers.ImageNormalization(class_names=list("abcde"))
    named = keras.Sequential([keras.Input((1, 1, 5)), scaled, keras.layers.Reshape((5,))])
    # The test data lack class "b" and have another order.
    data = Named(images[[0, 4, 2, 3]], np.array([3, 0, 2, 1]), ["e", "d", "c", "a"])
    assert accuracy(named, data, k=1, verbose=0) == {"top_1": 1.0}
    assert evaluation.classification_report(named, data, verbose=0)["per_class"] == [1, None, 1, 1, 1]
    assert accuracy(model, data, k=1, verbose=0) == {"top_1": 0.25}, "without names of the model, places count"
    data.class_names = list("0123")
    assert accuracy(named, data, k=1, verbose=0) == {"top_1": 0.25}, "numbers are class indices"
    data.class_names = ["e", "d", "c", "z"]
    refuses(r"names that occur once in the model: \['a', .*Received: .*'z'", accuracy, named, data, k=1, verbose=0)
    data.class_names = ["e", "d", "c"]
    refuses("classes below 3, the number of class names of the data. Received: 3", accuracy, named, data, verbose=0)


def test_frozen_features_match_classes_by_name():
    images = RNG.normal(size=(6, 16, 16, 3)).astype("float32")
    model, labels = build(), np.array([0, 1, 2, 0, 1, 2])
    train = Named(images, labels, ["0", "1", "10"])
    # Places as integers would be 0 and 1.
    test = Named(images[[2, 5, 0]], np.array([1, 1, 0]), ["0", "10"])
    assert knn_accuracy(model, train, test, k=1, verbose=0) == 1
    assert evaluation.few_shot_accuracy(model, train, test, shots=None, l2=1e-3, verbose=0)["accuracy"] == 1
    assert evaluation.linear_probe_accuracy(model, train, test, l2=1e-3, verbose=0)["accuracy"] == 1
    test.class_names = ["0", "2"]
    refuses(r"names that occur once in the training data: .*\['2'\]", knn_accuracy, model, train, test, k=1, verbose=0)


def test_file_names_instead_of_images_are_refused():
    for function in (evaluation.predict, accuracy, evaluation.extract_features):
        for data in ("cat.jpg", ["cat.jpg", "dog.jpg"]):
            refuses("`data`. Expected arrays of images, as keras_vit.read_image.*'cat.jpg'", function, build(), data)


def test_models_of_two_inputs_are_refused():
    vit = build()
    extra = keras.Input((5,))
    model = keras.Model([vit.input, extra], keras.layers.Add()([vit.output, extra]))
    inputs = [IMAGES, np.zeros((11, 5), "float32")]
    labelled = inputs, LABELS
    for function, data in ((accuracy, labelled), (evaluation.predict, inputs), (evaluation.extract_features, labelled)):
        refuses("one input, images. Received: model .* with 2 inputs. Pass its outputs", function, model, data)
    assert 0 <= top_k_accuracy(model.predict(inputs, verbose=0), LABELS) <= 1
