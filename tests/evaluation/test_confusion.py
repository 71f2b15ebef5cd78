import keras
import numpy as np
import pytest

from keras_vit.evaluation import classification_report, plot_confusion_matrix, write_confusion_matrix
from tests.errors import refuses
from tests.tiny import build

IMAGES = np.linspace(0, 255, 5 * 16 * 16 * 3).reshape(5, 16, 16, 3)


@pytest.fixture
def model():
    """Predicts class 2 for all images, with probability 0.5."""
    model = build(num_classes=3, include_preprocessing=True, class_names=["ant", "bee", "cat"], head_init="zeros")
    model.get_layer("head").bias.assign(np.log([1.0, 1.0, 2.0]))
    return model


def test_indices_of_mistakes_count_broken_images(model):
    class Data(list):
        broken, file_paths, num_images = {"b": "truncated"}, ["a", "b", "c"], 3

    data = Data([(IMAGES[:2], np.array([2, 0]))])
    assert classification_report(model, data, num_mistakes=1, verbose=0)["mistakes"]["indices"].tolist() == [2]
    data.file_paths = []
    refuses("can all be read", classification_report, model, data, num_mistakes=1, verbose=0)


def test_report_counts_each_class(model):
    report = classification_report(model, (IMAGES, np.array([0, 2, 2, 0, 0])), num_mistakes=2, verbose=0)
    assert report["num_images"] == 5 and report["top_1"] == pytest.approx(0.4) and "top_5" not in report
    assert report["class_names"] == ["ant", "bee", "cat"] and report["per_class"] == [0.0, None, 1.0]
    assert report["confusion_matrix"].tolist() == [[0, 0, 3], [0, 0, 0], [0, 0, 2]]
    mistakes = report["mistakes"]
    assert mistakes["indices"].tolist() == [0, 3] and mistakes["labels"].tolist() == [0, 0]
    np.testing.assert_allclose(mistakes["images"], IMAGES[[0, 3]], atol=1e-3)
    np.testing.assert_allclose(mistakes["probabilities"], [[0.25, 0.25, 0.5]] * 2, atol=1e-6)


def test_mistakes_come_from_batches_in_pixels():
    model = build(num_classes=2, head_init="zeros")
    scaled = IMAGES.astype("float32") / 127.5 - 1
    batches = [(scaled[:2], np.array([0, 1])), (scaled[2:], np.array([0, 0, 1]))]
    mistakes = classification_report(model, batches, num_mistakes=9, verbose=0)["mistakes"]
    assert mistakes["indices"].tolist() == [1, 4]
    np.testing.assert_allclose(mistakes["images"], IMAGES[[1, 4]], atol=1e-2)


def test_mistakes_refuse_generator_that_is_read_once(model):
    batches = ((IMAGES[i : i + 1], np.array([i])) for i in range(3))
    refuses("read twice.*Received: 'a generator'", classification_report, model, batches, num_mistakes=1)
    assert classification_report(model, batches, verbose=0)["num_images"] == 3


@pytest.mark.parametrize("options", [{"task": "multi_label"}, {"task": "regression"}, {"num_classes": 1}])
def test_report_refuses_models_without_exclusive_classes(options):
    model = build(**{"num_classes": 3, **options})
    refuses("Expected a (classifier|model of)", classification_report, model, (IMAGES / 255, np.zeros(5, int)))


def test_confusion_matrix_is_written_and_plotted(tmp_path):
    write_confusion_matrix([[3, 1], [0, 2]], ["a,b", "c"], tmp_path / "a.csv")
    assert (tmp_path / "a.csv").read_text().splitlines() == ['true \\ predicted,"a,b",c', '"a,b",3,1', "c,0,2"]
    axes = plot_confusion_matrix([[3, 1], [0, 2]], ["a,b", "$0_$1"], tmp_path / "a.png").axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["a,b", r"\$0_\$1"]
    np.testing.assert_allclose(axes.images[0].get_array(), [[0.75, 0.25], [0, 1]])
    assert keras.utils.load_img(tmp_path / "a.png").size[0] > 100
    refuses(r"`matrix`. Expected counts of shape .* Received: shape \(1, 2\)", plot_confusion_matrix, [[1, 2]])
