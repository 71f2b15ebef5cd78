import numpy as np
import pytest

from keras_vit.data import folds


@pytest.mark.parametrize("labels", [list("abcabcabcab"), [i % 3 for i in range(11)], [str(i % 3) for i in range(11)]])
def test_each_row_is_validated_once_and_each_label_has_its_share(labels):
    table = {"path": [f"{i}.jpg" for i in range(11)], "label": labels}
    made = list(folds(table, 3))
    assert sorted(path for _, validation in made for path in validation["path"]) == sorted(table["path"])
    for training, validation in made:
        assert sorted(training["path"] + validation["path"]) == sorted(table["path"])
        assert [labels[table["path"].index(path)] for path in validation["path"]] == validation["label"]
        assert all(1 <= validation["label"].count(label) <= 2 for label in set(labels))
    assert made == list(folds(table, 3)) and made != list(folds(table, 3, seed=1))


def test_numbers_to_predict_and_no_labels(tmp_path, caplog):
    values = np.random.default_rng(0).normal(size=40).tolist()
    for _, validation in folds({"path": range(40), "age": values}, 4, label_column="age"):
        assert sum(value < np.median(values) for value in validation["age"]) == 5
    (tmp_path / "a.csv").write_text("path\n1\n2\n3\n")
    assert [len(validation["path"]) for _, validation in folds(tmp_path / "a.csv", 2, label_column=None)] == [2, 1]
    assert not caplog.records


def test_a_rare_label_is_said(caplog):
    list(folds({"label": list("aaaaaaab")}, 2))
    assert [record.getMessage() for record in caplog.records] == ["1 of the 2 labels have fewer rows than the 2 folds"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"k": 1}, "`k` to be an integer from 2 to the 3 rows. Received: 1"),
        ({"k": 4}, "Received: 4"),
        ({"k": 2, "label_column": "x"}, r"`label_column` to be one of \['label'\]. Received: 'x'"),
    ],
)
def test_refuses(options, message):
    with pytest.raises(ValueError, match=message):
        folds({"label": [0, 1, 0]}, **options)
