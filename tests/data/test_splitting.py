import keras
import numpy as np
import pytest

from keras_vit import data
from tests.errors import not_found, refuses

OPTIONS = {"image_size": 8, "batch_size": 4, "normalize": False}
PARTS = ("train", "test")
FOLDS_HAVE_ALL_CLASSES_OF_THEIR_TABLE = [
    (list("baac"), None, ["a", "b", "c"]),
    pytest.param([0, 1, 1, 2], None, ["0", "1", "2"], marks=pytest.mark.long),
    pytest.param(["a b", "a", "a", "c"], " ", ["a", "b", "c"], marks=pytest.mark.long),
]


def fill(folder, count, value):
    for name in ("cat", "dog"):
        (folder / name).mkdir(parents=True)
        for i in range(count):
            keras.utils.save_img(folder / name / f"{i}.png", np.full((8, 8, 3), value), scale=False)


def values(dataset):
    return sorted(float(v) for images, _ in dataset for v in images[:, 0, 0, 0])


def test_splits_of_train_and_val_folders(tmp_path):
    fill(tmp_path / "train", 3, 10)
    fill(tmp_path / "val", 2, 20)
    # Images without labels, as in many competitions.
    (tmp_path / "test").mkdir()
    (tmp_path / "test" / "0.png").touch()
    make = data.splits(tmp_path, holdout=0.5)
    assert values(make("train", training=True, **OPTIONS)) == [10.0] * 6
    assert values(make("test", training=False, **OPTIONS)) == [20.0] * 4


@pytest.mark.parametrize("name", ["", "a.csv"])
def test_test_images_are_not_augmented_by_default(tmp_path, name):
    rng = np.random.default_rng(0)
    rows = [f"val/{label}/{i}.png,{label}" for label in ("cat", "dog") for i in range(4)]
    (tmp_path / "a.csv").write_text("\n".join(["path,label", *rows]))
    fill(tmp_path / "train", 1, 10)
    fill(tmp_path / "val", 4, 10)
    for path in (tmp_path / "val").rglob("*.png"):
        keras.utils.save_img(path, rng.uniform(0, 255, (8, 8, 3)), scale=False)
    make = data.splits(tmp_path / name, holdout=0.5)
    images, labels = next(iter(make("test", augment="strong1", crop="pretrain", repeat=True, **OPTIONS)))
    plain, classes = next(iter(make("test", training=False, labels="one_hot", **OPTIONS)))
    np.testing.assert_array_equal(images, plain)
    np.testing.assert_array_equal(labels, classes)


def test_splits_of_class_folders_depend_on_seed(tmp_path):
    fill(tmp_path, 5, 10)
    make = data.splits(tmp_path, holdout=0.4)
    files = [[make(part, seed=seed, **OPTIONS).file_paths for part in PARTS] for seed in (0, 0, 1)]
    assert [len(part) for part in files[0]] == [6, 4] and len({*files[0][0], *files[0][1]}) == 10
    assert files[0] == files[1] != files[2]
    assert files[0] == [make(part, labels="none", **OPTIONS).file_paths for part in PARTS]
    for count, held in ((1, 0), (2, 1)):
        (tmp_path / f"{count}.png").touch()
        unlabelled = make("test", labels="none", **OPTIONS).file_paths
        assert unlabelled[:4] == files[0][1] and len(unlabelled) == 4 + held


def test_splits_refuse_invalid_data(tmp_path):
    not_found("nowhere', which does not exist", data.splits, tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match="There is no folder 'cifar10'. As the name"):
        data.splits("cifar10", data_dir=tmp_path)("train", **OPTIONS)
    (tmp_path / "labels.txt").write_text("path,label")
    not_found("labels.txt', which is a file$", data.splits, tmp_path / "labels.txt")
    fill(tmp_path / "train", 1, 10)
    (tmp_path / "Tests").mkdir()
    refuses(
        r"a folder test or val or .* of class folders next to .*train.*'Tests'.*pass .*train' itself",
        data.splits,
        tmp_path,
    )


def test_splits_of_table_are_stratified_and_depend_on_seed(tmp_path):
    fill(tmp_path / "images", 5, 10)
    rows = [f"{name}/{i}.png,{name}" for i in range(5) for name in ("dog", "cat")]
    (tmp_path / "train.csv").write_text("\n".join(["file,animal", *rows]))
    columns = {"images": tmp_path / "images", "path_column": "file", "label_column": "animal"}
    make = data.splits(tmp_path / "train.csv", holdout=0.4, **columns)
    (train, test), *others = [[make(part, seed=seed, **OPTIONS) for part in PARTS] for seed in (0, 0, 1)]
    assert train.file_labels.count(0) == 3 and test.file_labels.count(1) == 2
    assert train.class_names == test.class_names == ["cat", "dog"]
    assert len({*train.file_paths, *test.file_paths}) == 10
    files = [train.file_paths, test.file_paths]
    assert [[part.file_paths for part in parts] == files for parts in others] == [True, False]
    refuses("the column 'label' of labels in .*train.csv.*'animal'", data.splits, tmp_path / "train.csv")
    refuses("`part`.*'train'.*'test'.*'validation'", make, "validation")
    (tmp_path / "train.csv").write_text("\n".join(["path,label", *rows, "cat/0.png,lion"]))
    with pytest.raises(ValueError, match="at least two images per class to split. Received: only one image of .'lion'"):
        data.splits(tmp_path / "train.csv")
    (tmp_path / "train.csv").write_text("\n".join(["path,label", *rows, "cat/0.png,"]))
    refuses("Expected a label. Received: line 12: ''", data.splits, tmp_path / "train.csv")
    refuses("`images` only with a CSV file", data.splits, tmp_path / "images", images=tmp_path)
    with pytest.raises(ValueError, match="`label_column` only with a CSV file. Received: label_column='animal' with"):
        data.splits(tmp_path / "images", label_column="animal")
    not_found("a folder, a CSV file or .*nowhere.csv", data.splits, "nowhere.csv")


def test_labels_follow_classes_of_training_folder(tmp_path, caplog):
    for name, value in (("a", 10), ("b", 20), ("c", 30)):
        for part in ("train", "test"):
            if (part, name) != ("test", "b"):
                (tmp_path / part / name).mkdir(parents=True)
                keras.utils.save_img(tmp_path / part / name / "0.png", np.full((8, 8, 3), value), scale=False)
    make = data.splits(tmp_path)
    assert [record.getMessage() for record in caplog.records] == [
        f"{str(tmp_path / 'test')!r} has no images of 1 of the 3 classes: ['b']"
    ]
    for part, expected in (("train", {10: 0, 20: 1, 30: 2}), ("test", {10: 0, 30: 2})):
        dataset = make(part, **OPTIONS)
        found = [(int(x[0, 0, 0]), int(y)) for xs, ys in dataset for x, y in zip(xs, ys, strict=True)]
        assert dict(found) == expected and dataset.class_names == ["a", "b", "c"]
    (tmp_path / "test" / "d").mkdir()
    refuses(r"the classes of .*train', \['a', 'b', 'c'\]. Received: \['d'\]", data.splits, tmp_path)


def test_errors_of_parts_name_line_of_file(tmp_path):
    fill(tmp_path, 5, 10)
    rows = [f"{name}/{i}.png,{name}" for i in range(5) for name in ("dog", "cat")]
    rows[7] = "dog/none.png,dog"
    (tmp_path / "train.csv").write_text("\n".join(["path,label", *rows]))
    make, errors = data.splits(tmp_path / "train.csv", holdout=0.4), []
    for part in PARTS:
        try:
            make(part, **OPTIONS)
        except FileNotFoundError as error:
            errors.append(str(error))
    assert len(errors) == 1 and "Received: line 9: " in errors[0]
    table = {"path": [tmp_path / row.split(",")[0] for row in rows], "label": [row.split(",")[1] for row in rows]}
    with pytest.raises(FileNotFoundError, match="Received: row 7: "):
        for training, _ in data.folds(table, 2):
            data.from_dataframe(training, **OPTIONS)
    for training, _ in data.folds({"path": table["path"][:7], "label": table["label"][:7]}, 2):
        training["label"] = [int(name == "dog") for name in training["label"]]
        assert data.from_dataframe(training, **OPTIONS).class_names == ["0", "1"]
    # The rows of a changed part are counted anew.
    training, _ = next(data.folds({"path": table["path"][:7], "label": table["label"][:7]}, 2))
    for column, cell in (("path", tmp_path / "gone.png"), ("label", "cat")):
        training[column].append(cell)
    not_found(f"Received: row {len(training['path']) - 1}: ", data.from_dataframe, training, **OPTIONS)


@pytest.mark.parametrize("labels", [list("abcabcabcab"), [i % 3 for i in range(11)], [str(i % 3) for i in range(11)]])
def test_folds_validate_each_row_once_and_are_stratified(labels):
    table = {"path": [f"{i}.jpg" for i in range(11)], "label": labels}
    made = list(data.folds(table, 3))
    assert sorted(path for _, validation in made for path in validation["path"]) == sorted(table["path"])
    for training, validation in made:
        assert sorted(training["path"] + validation["path"]) == sorted(table["path"])
        assert [labels[table["path"].index(path)] for path in validation["path"]] == validation["label"]
        assert all(1 <= validation["label"].count(label) <= 2 for label in set(labels))
    assert made == list(data.folds(table, np.int64(3))) and made != list(data.folds(table, 3, seed=1))


@pytest.mark.parametrize("labels, separator, names", FOLDS_HAVE_ALL_CLASSES_OF_THEIR_TABLE)
def test_folds_have_all_classes_of_their_table(tmp_path, labels, separator, names):
    fill(tmp_path, 2, 10)
    paths = [tmp_path / name for name in ("cat/0.png", "cat/1.png", "dog/0.png", "dog/1.png")]
    for parts in data.folds({"path": paths, "label": labels}, 2):
        made = [data.from_dataframe(part, label_separator=separator, **OPTIONS) for part in parts]
        assert made[0].class_names == made[1].class_names == names


def test_folds_of_regression_targets_and_unlabelled_rows(tmp_path, caplog):
    values = np.random.default_rng(0).normal(size=40).tolist()
    for _, validation in data.folds({"path": range(40), "age": values}, 4, label_column="age"):
        assert sum(value < np.median(values) for value in validation["age"]) == 5
    (tmp_path / "a.csv").write_text("path\n1\n2\n3\n")
    assert [len(validation["path"]) for _, validation in data.folds(tmp_path / "a.csv", 2, label_column=None)] == [2, 1]
    assert not caplog.records
    list(data.folds({"label": list("aaaaaaab")}, 2))
    assert [record.getMessage() for record in caplog.records] == [
        "1 of the 2 labels have fewer rows than there are folds (2)"
    ]


def test_folds_refuse_invalid_k_or_label_column():
    table = {"label": [0, 1, 0]}
    refuses("`k` to be an integer from 2 to 3, the number of rows. Received: 1", data.folds, table, 1)
    refuses("`k` to be an integer from 2 to 3, the number of rows. Received: 4", data.folds, table, 4)
    refuses(r"`label_column` to be one of \['label'\]. Received: 'x'", data.folds, table, 2, label_column="x")
    for columns in (["label"], np.array(["label", "x"])):
        refuses("`label_column`. Expected a string. Received: ", data.folds, table, 2, label_column=columns)
