import pytest

from keras_vit.export.labels import read_labels
from keras_vit.models.predictions import imagenet_classes


def test_labels_come_from_a_list_a_file_or_the_number_of_classes(tmp_path):
    (tmp_path / "labels.txt").write_text("a b\nc\n", encoding="utf-8")
    assert read_labels(tmp_path / "labels.txt", 2) == ["a b", "c"]
    assert read_labels(("x", "y"), 2) == ["x", "y"]
    assert read_labels(None, 3) == ["0", "1", "2"]
    assert read_labels(None, 1000)[285] == imagenet_classes()[285][1]


@pytest.mark.parametrize("labels", [["a"], ["a", ""], ["a", "b\rc"], ["a\n", "b"]])
def test_labels_that_are_not_lines_are_refused(labels):
    with pytest.raises(ValueError, match="labels"):
        read_labels(labels, 2)
