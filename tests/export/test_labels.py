import keras
import pytest

from keras_vit.export.labels import activation_of, read_labels
from keras_vit.models.predictions import imagenet_classes
from tests.tiny import build


def test_labels_come_from_a_list_a_file_or_the_number_of_classes(tmp_path):
    (tmp_path / "labels.txt").write_text("a b\nc\n", encoding="utf-8")
    assert read_labels(tmp_path / "labels.txt", 2) == ["a b", "c"]
    assert read_labels(("x", "y"), 2) == ["x", "y"]
    assert read_labels(None, 3) == ["0", "1", "2"]
    assert read_labels(None, 1000)[285] == imagenet_classes()[285][1]


@pytest.mark.parametrize("labels", [["a"], ["a", ""], ["a", "b\rc"]])
def test_labels_that_are_not_lines_are_refused(labels):
    with pytest.raises(ValueError, match="labels"):
        read_labels(labels, 2)


@pytest.mark.parametrize(
    ("activation", "postprocess", "expected"),
    [
        (None, "classify", "softmax"),
        (None, "multi_label", "sigmoid"),
        ("softmax", "classify", None),
        ("sigmoid", "multi_label", None),
    ],
)
def test_a_models_own_activation_is_not_applied_twice(activation, postprocess, expected):
    model = build(classifier_activation=activation)
    assert activation_of(model, postprocess) == expected
    assert activation_of(keras.Sequential([keras.Input((16, 16, 3)), model]), postprocess) == expected
    softmax = keras.Sequential([keras.Input((16, 16, 3)), model, keras.layers.Softmax()])
    assert activation_of(softmax, postprocess) is None


def test_one_class_is_a_probability_of_its_own():
    assert activation_of(build(num_classes=1), "classify") == "sigmoid"


def test_features_and_two_heads_are_no_classes():
    for model in (build(pooling=None), build(distillation_token=True, return_both_heads=True)):
        with pytest.raises(ValueError, match="one output"):
            activation_of(model, "classify")
