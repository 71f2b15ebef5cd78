import shutil

import numpy as np
import pytest

from keras_vit.data import Policy, from_dataframe, from_directory
from tests.data.images import write_classes
from tests.errors import not_found, refuses


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("images")
    write_classes(folder, 6, num_classes=2)
    return folder


PATHS = [f"class{i % 2}/{i:03d}.jpg" for i in range(6)]
NAMES = ["cat", "dog"] * 3


class Frame:
    """The parts of a DataFrame that the package uses."""

    def __init__(self, columns):
        self.content, self.columns = columns, list(columns)

    def __getitem__(self, name):
        return np.array(self.content[name], object)


def make(table, folder, **options):
    return from_dataframe(table, directory=folder, **{"image_size": 8, "batch_size": 6, "training": False, **options})


def labels(data):
    return np.asarray(data.file_labels).tolist()


def test_csv_file_frame_and_dict_give_same_batches(folder, tmp_path):
    (tmp_path / "a.csv").write_text("path,label\n" + "".join(f"{p},{n}\n" for p, n in zip(PATHS, NAMES, strict=True)))
    table = {"path": PATHS, "label": NAMES}
    for data in (make(t, folder) for t in (tmp_path / "a.csv", Frame(table), table)):
        assert labels(data) == [0, 1] * 3 and data.class_names == ["cat", "dog"]
        assert data.file_paths == [str(folder / p) for p in PATHS]


def test_paths_are_relative_to_csv_file(folder):
    (folder / "train.csv").write_text("path,label\nclass0/000.jpg,1\nclass1/001.jpg,0\n")
    data = from_dataframe(folder / "train.csv", image_size=8, training=False)
    assert labels(data) == [1, 0] and data.num_classes == 2 and data.class_names == ["0", "1"]


def test_integer_named_and_multi_hot_labels(folder):
    def of(column, **options):
        return make({"path": PATHS, "label": column}, folder, **options)

    assert next(iter(of([0, 2, 1, 0, 0, 2], num_classes=4, labels="one_hot")))[1].numpy()[1].tolist() == [0, 0, 1, 0]
    assert labels(of(NAMES, class_names=["dog", "cat"])) == [1, 0] * 3
    multi = of(["cat dog", "", None, "dog", "bird", float("nan")], label_separator=" ")
    assert multi.class_names == ["bird", "cat", "dog"]
    assert labels(multi) == [[0, 1, 1], [0, 0, 0], [0, 0, 0], [0, 0, 1], [1, 0, 0], [0, 0, 0]]
    columns = {"path": PATHS, "cat": [0, 1, 1, 0, 1, 0], "dog": ["1", "0", "1", "0", "1", "1"]}
    multi, of_array = (make(columns, folder, label_column=kind(["cat", "dog"])) for kind in (list, np.array))
    assert labels(of_array) == labels(multi) and of_array.class_names == multi.class_names
    refuses("`label_column`. Expected a sequence", make, columns, folder, label_column={"cat", "dog"})
    refuses("`class_names`", make, columns, folder, label_column=["cat", "dog"], class_names=["dog", "cat"])
    assert labels(multi)[:3] == [[0, 1], [1, 0], [1, 1]] and multi.class_names == ["cat", "dog"]
    assert multi.element_spec[1].dtype == "float32" and next(iter(multi))[1].numpy().tolist() == labels(multi)


def test_missing_values_in_nullable_pandas_columns(folder):
    pandas = pytest.importorskip("pandas")
    for column in (pandas.array([0, 1, None, 1, 0, 1], dtype="Int64"), pandas.array(["a", "b", None] * 2, "string")):
        table = pandas.DataFrame({"path": PATHS, "label": column})
        refuses("a label. Received: row 2: <NA>", make, table, folder)
    assert labels(make(table, folder, label_separator=" "))[:3] == [[1, 0], [0, 1], [0, 0]]


def test_unlabelled_images_keep_order_of_frame(folder):
    options = {"directory": folder, "label_column": None, "image_size": 8, "batch_size": 6}
    images, reverse = (next(iter(from_dataframe({"path": p}, **options))).numpy() for p in (PATHS, PATHS[::-1]))
    assert images.shape == (6, 8, 8, 3)
    np.testing.assert_array_equal(reverse, images[::-1])


@pytest.mark.parametrize(
    ("table", "options", "message"),
    [
        ("path,label\na.jpg,0\nb.jpg\nc.jpg,1,2\n", {}, "2 cells, as in the header.* line 3: 1 cells; line 4: 3 cells"),
        (b"path,label\n\xff\xfe\x00,0\n", {}, "a CSV file in UTF-8"),
        ("", {}, r"Received: \[\], without \['path', 'label'\]"),
        ("path,label\n", {}, "at least one row"),
        ("file,label\na.jpg,0\n", {}, r"Received: \['file', 'label'\], without \['path'\].*`path_column`"),
        ({"path": ["", None], "label": [0, 1]}, {}, "Expected a path. Received: row 0: ''; row 1: None"),
        ({"path": PATHS, "a": [0, 1, 2, 0, 0, 0]}, {"label_column": ["a"]}, r"0 or 1 in each .*row 2: \(2,\)"),
        ("path,label,label\na,b,c\n", {}, r"columns of different names .* Received twice: \['label'\]"),
        ({"path": PATHS}, {"label_column": None, "augment": "light2"}, "one-hot labels for `augment`"),
        ({"path": PATHS}, {"label_column": None, "labels": "one_hot"}, "labels='none' for images without labels"),
        ({"path": PATHS}, {"label_column": None, "class_names": NAMES}, "`class_names`. Expected None if `label"),
    ],
)
def test_from_dataframe_refuses_invalid_table(folder, tmp_path, table, options, message):
    if not isinstance(table, dict):
        (tmp_path / "a.csv").write_bytes(table if isinstance(table, bytes) else table.encode())
        table = tmp_path / "a.csv"
    refuses(message, make, table, folder, **options)


@pytest.mark.parametrize(
    ("column", "options", "message"),
    [
        (NAMES[:5], {}, "columns of one length"),
        ([0, 1, 5, -1, 0, 1], {"num_classes": 5}, "5 classes. Received: row 2: 5; row 3: -1"),
        (NAMES, {"class_names": ["cat", "bird"]}, "2 classes. Received: row 1: 'dog'; row 3"),
        (["cat", "", None, "dog", "cat", "cat"], {}, "a label. Received: row 1: ''; row 2: None"),
        (["None", "cat", "cot", "cat ", 3, 1], {"class_names": ["None", "cat"]}, "row 2: 'cot'"),
        ([["cat"], "cat", "a", "a", "a", np.ones(2)], {}, r"row 0: \['cat'\]; row 5: array"),
        ([["cat"]] * 6, {"label_separator": " "}, "joined by `label_separator`.*row 0"),
        (NAMES, {"label_separator": ""}, "`label_separator` to be at least one character"),
        (NAMES, {"class_names": {"cat", "dog"}}, "`class_names`. Expected a sequence of values"),
        (["cat", "cat ", "dog"] * 2, {}, "differ in more than spaces. Received: .'cat ', 'cat'"),
        (["cat, dog", "dog"] * 3, {"label_separator": ","}, "Received: .' dog', 'dog'"),
        (["cat"] * 6, {}, r"at least two classes in column 'label'. Received: \['cat'\]"),
        (NAMES, {"num_classes": 2}, "integers if `num_classes` is given. Received: 'cat'"),
        (NAMES, {"label_separator": " ", "augment": "deit"}, "multi-label data and"),
    ],
)
def test_from_dataframe_refuses_invalid_labels(folder, column, options, message):
    refuses(message, make, {"path": PATHS, "label": column}, folder, **options)


@pytest.mark.parametrize("column", [[2010, 2101, 2011, 2010, 2050, 2101], [0, 255, 0, 255, 0, 0], [1.5, 2, 3, 4, 5, 6]])
def test_numbers_need_class_names_unless_counted_from_0(folder, column):
    table = {"path": PATHS, "label": column}
    refuses("class numbers from 0|labels='float' for regression targets", make, table, folder)
    names = sorted(set(column))
    data = make(table, folder, class_names=names)
    assert labels(data) == [names.index(value) for value in column] and data.class_names == [*map(str, names)]


def test_labels_counted_from_1_cause_warning(folder, caplog):
    table = {"path": PATHS, "label": ["1", "2", "3.0", 1, 2, 3.0]}
    assert make(table, folder).num_classes == 4
    expected = "No image is labelled with [0] of the 4 classes 0 to 3."
    assert [record.getMessage()[: len(expected)] for record in caplog.records] == [expected]
    assert labels(make(table, folder, class_names=[1, 2, 3])) == [0, 1, 2, 0, 1, 2]
    assert make(table, folder, num_classes=4).class_names == ["0", "1", "2", "3"] and len(caplog.records) == 1


def test_csv_cells_are_text_with_quotes_and_no_missing_values(folder, tmp_path):
    names = ["NA", "null", 'a "b"', "x, y", "two\nlines", "1e2"]
    lines = [f'{path},"{name.replace(chr(34), chr(34) * 2)}"' for path, name in zip(PATHS, names, strict=True)]
    (tmp_path / "a.csv").write_text("\n".join(["path,label", *lines]))
    data = make(tmp_path / "a.csv", folder)
    assert data.class_names == sorted(names) and labels(data) == [sorted(names).index(name) for name in names]


def test_numbers_with_leading_zeros_or_underscores_are_names(folder, tmp_path):
    for i, path in enumerate(write_classes(tmp_path, 6, num_classes=3)[:3]):
        path.parent.rename(tmp_path / ["001", "003", "010"][i])
    assert from_directory(tmp_path, image_size=8).class_names == ["001", "003", "010"]
    data = make({"path": PATHS, "label": ["001", "003", "010", "001", "003", "010"]}, folder)
    assert data.class_names == ["001", "003", "010"] and labels(data) == [0, 1, 2] * 2
    data = make({"path": PATHS, "label": ["1", "0", "0_1"] * 2}, folder)
    assert data.class_names == ["0", "0_1", "1"] and labels(data) == [2, 0, 1] * 2
    assert make({"path": PATHS, "label": ["1", "0", "2"] * 2}, folder).class_names == ["0", "1", "2"]
    refuses("row 0: '01'", make, {"path": PATHS, "label": ["01", "1"] * 3}, folder, class_names=["1", "2"])


def test_regression_targets(folder):
    table = {"path": PATHS, "age": ["1.5", 2, -3.0, 0, 1e3, 7], "size": range(6)}
    one = make(table, folder, label_column="age", labels="float")
    assert labels(one) == [[1.5], [2], [-3], [0], [1000], [7]] and one.element_spec[1].dtype == "float32"
    two = make(table, folder, label_column=["size", "age"], labels="float", augment=Policy(mixup=0.2))
    assert two.element_spec[1].shape == (None, 2) and (two.num_classes, two.class_names) == (2, [])
    table["age"][2] = "nan"
    with pytest.raises(ValueError, match=r"a finite number in each of the columns \['age'\]. Received: row 2"):
        make(table, folder, label_column="age", labels="float")
    with pytest.raises(ValueError, match="regression targets. Label smoothing needs soft or integer labels"):
        make(table, folder, label_column="size", labels="float", augment=Policy(label_smoothing=0.1))


def test_sample_weights(folder):
    table = {"path": PATHS, "label": NAMES, "w": ["1", 0.5, 2, 0, 1, 1]}
    images, found, weights = next(iter(make(table, folder, weight_column="w")))
    assert weights.numpy().tolist() == [1, 0.5, 2, 0, 1, 1] and weights.dtype == "float32"
    assert images.shape == (6, 8, 8, 3) and found.numpy().tolist() == [0, 1] * 3
    refuses("no sample weights with `augment` that mixes", make, table, folder, weight_column="w", augment="light2")
    with pytest.raises(ValueError, match="a weight of at least 0. Received: row 0: -1; row 1: None"):
        make({**table, "w": [-1, None, 1, 1, 1, 1]}, folder, weight_column="w")
    refuses(r"without \['v'\]", make, table, folder, weight_column="v")
    refuses("labels with weight_column='w'.*'none'", make, table, folder, weight_column="w", labels="none")


def test_extension_is_appended_to_names(folder):
    names = [path.removesuffix(".jpg") for path in PATHS[:5]] + PATHS[5:]
    data = make({"path": names, "label": NAMES}, folder, extension=".jpg")
    assert data.file_paths == [str(folder / path) for path in PATHS]
    for i in range(2):
        shutil.copy(folder / PATHS[i], folder / f"{i}.jpg")
    data = make({"path": [0, np.int64(1)], "label": NAMES[:2]}, folder, extension=".jpg")
    assert data.file_paths == [str(folder / "0.jpg"), str(folder / "1.jpg")]


def test_error_names_missing_or_broken_files(folder, tmp_path):
    with pytest.raises(FileNotFoundError, match="the `directory` .*Received: row 1: .*nowhere.jpg"):
        make({"path": [PATHS[0], "nowhere.jpg"], "label": [0, 1]}, folder)
    not_found("none.csv', which does not exist", from_dataframe, tmp_path / "none.csv")
    (tmp_path / "a.jpg").write_bytes(b"text")
    with pytest.raises(ValueError, match="images that can be decoded. Received: 2 broken images. .*a.jpg: .*identify"):
        make({"path": ["a.jpg", "a.jpg"], "label": [0, 1]}, tmp_path)
