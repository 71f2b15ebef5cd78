import json

import numpy as np
import pytest

import keras_vit
from keras_vit.prediction.classes import output_activation
from tests.tiny import TEST_VIT, build
from tests.weights.helpers import check_not_saved, without_facts

FLOWERS = ("daffodil", "sunflower", "tulip")
TASKS = [("multi_label_classification", "multi_label", "sigmoid"), ("regression", "regression", None)]
TASKS += [("single_label_classification", "single_label", "softmax"), (None, "single_label", "softmax")]
PREPROCESSING = [{}, {"value_range": (-1, 1), "mean": 0.2, "std": (0.1, 0.2, 0.3)}]
PREPROCESSING += [{"interpolation": "bicubic", "crop_fraction": 0.8}]
PREPROCESSING += [{"interpolation": "area", "crop_fraction": 0.8, "resize_mode": "squash"}]
PREPROCESSING += [{"interpolation": "lanczos3", "resize_mode": "crop"}, {"interpolation": "nearest"}]
TIMM_LABELS = [
    (["LABEL_0", "LABEL_1", "LABEL_2"], None),
    ({"0": "daffodil", "1": "sunflower", "2": "tulip"}, FLOWERS),
    ({"0": "daffodil", "5": "sunflower", "7": "tulip"}, None),
]


@pytest.fixture
def folder(tmp_path):
    """Returns a function that writes a folder of a format and changes its config.json."""

    def write(format, **changes):
        keras_vit.save_weights(build(**TEST_VIT, num_classes=3), tmp_path / format, format=format)
        path = tmp_path / format / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
        without_facts(tmp_path / format / "model.safetensors")
        return tmp_path / format

    return write


def load(folder, **options):
    return keras_vit.from_pretrained(folder, preprocessing=keras_vit.Preprocessing(), **options)


def test_id2label_gives_class_names(folder):
    path = folder("huggingface", id2label={str(i): name for i, name in reversed(list(enumerate(FLOWERS)))})
    model = load(path)
    assert model.config.class_names == FLOWERS
    assert keras_vit.decode_predictions(np.eye(3)[[2]], model, top=1)[0][0][1] == "tulip"
    assert load(path, num_classes=5).config.class_names is None
    # By default, the labels are placeholders.
    assert load(folder("huggingface")).config.class_names is None


@pytest.mark.parametrize("changes", [{"label_names": FLOWERS}, {"pretrained_cfg": {"label_names": FLOWERS}}])
def test_timm_label_names_give_class_names(folder, changes):
    assert load(folder("timm", **changes)).config.class_names == FLOWERS


@pytest.mark.parametrize("problem_type, task, activation", TASKS)
def test_problem_type_gives_the_task(folder, problem_type, task, activation):
    model = load(folder("huggingface", problem_type=problem_type))
    assert (model.config.task, output_activation(model)) == (task, activation)


def test_one_label_of_transformers_is_a_regression(tmp_path):
    for task, expected in ((..., "regression"), ("single_label_classification", "single_label")):
        keras_vit.save_weights(build(num_classes=1, layer_norm_epsilon=1e-6), tmp_path, format="huggingface")
        path = tmp_path / "config.json"
        config = json.loads(path.read_text())
        # The task of the model is stated, since transformers has another default.
        assert config["problem_type"] == "single_label_classification"
        config["problem_type"] = task
        path.write_text(json.dumps({key: value for key, value in config.items() if value is not ...}))
        without_facts(tmp_path / "model.safetensors")
        assert load(tmp_path).config.task == expected


@pytest.mark.parametrize("format", ["huggingface", "timm"])
@pytest.mark.parametrize("task", [{}, {"task": "multi_label"}, {"task": "regression"}])
def test_written_labels_are_read_back(tmp_path, format, task):
    model = build(**TEST_VIT, num_classes=3, class_names=FLOWERS, **task)
    keras_vit.save_weights(model, tmp_path / "out", format=format)
    without_facts(tmp_path / "out" / "model.safetensors")
    found = load(tmp_path / "out").config
    assert found.class_names == FLOWERS
    assert {name: getattr(found, name) for name in task} == task


@pytest.mark.parametrize("format", ["huggingface", "timm"])
@pytest.mark.parametrize("changes", PREPROCESSING)
def test_written_preprocessing_is_read_back(tmp_path, format, changes):
    # Pillow antialiases with all filters except "nearest".
    antialias = changes.get("interpolation") != "nearest"
    preprocessing = keras_vit.Preprocessing(**{"antialias": antialias, **changes})
    keras_vit.save_weights(build(**TEST_VIT, preprocessing=preprocessing), tmp_path / "out", format=format)
    without_facts(tmp_path / "out" / "model.safetensors")
    found = keras_vit.from_pretrained(tmp_path / "out").preprocessing
    for ours, theirs in zip(preprocessing.offset_and_scale, found.offset_and_scale, strict=True):
        np.testing.assert_allclose(np.broadcast_to(ours, 3), theirs, rtol=1e-6)
    for name in ("interpolation", "antialias", "crop_fraction", "resize_mode"):
        assert getattr(found, name) == getattr(preprocessing, name), name


def test_interpolation_without_a_word_is_refused(tmp_path):
    model = build(**TEST_VIT, preprocessing=keras_vit.Preprocessing(interpolation="lanczos5"))
    for format in ("huggingface", "timm"):
        check_not_saved("lanczos5", model, tmp_path / "out", format)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("labels, names", TIMM_LABELS)
def test_timm_labels_may_be_placeholders_or_numbered(folder, labels, names):
    model = load(folder("timm", label_names=labels, problem_type="multi_label_classification"))
    assert model.config.class_names == names and model.config.task == "multi_label"
