import csv
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from keras_vit.data.folder import check_arrays, file_source
from keras_vit.data.pipeline import pipeline


def from_dataframe(
    frame,
    *,
    directory=None,
    path_column="path",
    label_column="label",
    label_separator=None,
    class_names=None,
    num_classes=None,
    **options,
):
    """Makes (images, labels) out of a table of image paths and labels.

    Args:
        frame: The path of a CSV file with a header, a DataFrame (of pandas or any other library with `columns`), or a
            dict of columns.
        directory: The folder that relative paths start from; None: the CSV file's own folder, or the current one.
        path_column: The column of the images' paths.
        label_column: The column of the labels: names, or integers counted from 0. A list of columns that hold 0 or 1
            for their class makes multi-hot labels. None: no labels, as in a test set; the dataset gives images alone,
            in the frame's order.
        label_separator: What stands between the labels where one cell holds any number of them ("cat dog"), which makes
            multi-hot labels as well; None: each cell is one label.
        class_names: The names of the classes in the order of their labels; None: all that occur, sorted.
        num_classes: Integer, where the labels are integers; None: the largest one and 1.
        **options: The arguments of `keras_vit.data.pipeline`: `image_size`, `batch_size`, `policy`, ... Without
            labels, `training` is False by default.

    Returns:
        A dataset, as `keras_vit.data.pipeline` describes it. It also has `file_paths`, in the frame's order.

    Raises:
        FileNotFoundError: If the CSV file or an image does not exist.
        ValueError: If a column is missing, a row cannot be read, or a label is not one of the classes.

    Example:

    >>> import keras, keras_vit.data, tempfile
    >>> path = tempfile.mkdtemp() + "/cat.png"
    >>> keras.utils.save_img(path, np.zeros((20, 20, 3)))
    >>> table = {"path": [path] * 2, "label": ["cat pet", "cat"]}
    >>> data = keras_vit.data.from_dataframe(table, label_separator=" ", image_size=16, training=False)
    >>> next(iter(data))[1].numpy().tolist()
    [[1.0, 1.0], [1.0, 0.0]]
    """
    columns, first_line, base = _columns(frame)
    wanted = [path_column, *([] if label_column is None else _listed(label_column))]
    if missing := [name for name in wanted if name not in columns]:
        raise ValueError(f"Expected the columns {wanted}. There is no {missing} among {list(columns)}")
    paths = ["" if _empty(p) else os.fspath(p) for p in columns[path_column]]
    if not paths:
        raise ValueError("Expected a row or more. Received: a table without rows")
    _fail("Expected a path", first_line, [(i, repr(columns[path_column][i])) for i, p in enumerate(paths) if not p])
    paths = [str(Path(directory if directory is not None else base, p)) for p in paths]
    with ThreadPoolExecutor() as pool:
        absent = [
            (i, p) for i, (p, there) in enumerate(zip(paths, pool.map(os.path.isfile, paths), strict=True)) if not there
        ]
    _fail("Expected images", first_line, absent, FileNotFoundError)
    check_arrays(paths)

    if label_column is None:
        labels, kind, names, count = None, None, (), 0
        options = {"training": False, **options}
    elif isinstance(label_column, (list, tuple)):
        labels, kind, names, count = _indicators(columns, label_column, first_line)
    elif label_separator is not None:
        cells = [
            [] if _empty(c) else [part for part in str(c).split(label_separator) if part] for c in columns[label_column]
        ]
        lookup, names, count = _classes([part for cell in cells for part in cell], class_names, num_classes)
        numbers = _numbers(cells, lookup, count, first_line)
        labels = [[float(k in row) for k in range(count)] for row in map(set, numbers)]
        kind = "multi_hot"
    else:
        cells = columns[label_column]
        _fail("Expected a label", first_line, [(i, repr(c)) for i, c in enumerate(cells) if _empty(c)])
        lookup, names, count = _classes(cells, class_names, num_classes)
        labels, kind = [row[0] for row in _numbers([[c] for c in cells], lookup, count, first_line)], "int"
    if kind is not None and count < 2:
        raise ValueError(f"Expected two classes or more in column {label_column!r}. Received: {list(names) or count}")
    data = pipeline(file_source(paths, labels, kind, names, count), **options)
    data.file_paths = paths
    return data


def _columns(frame):
    """Returns ({name: values}, what the first row is called, the folder paths start from) of a table."""
    if isinstance(frame, Mapping):
        lengths = {name: len(column) for name, column in frame.items()}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"Expected columns of one length. Received: {lengths}")
        return {name: list(column) for name, column in frame.items()}, ("row", 0), "."
    if hasattr(frame, "columns"):
        return {name: list(frame[name]) for name in frame.columns}, ("row", 0), "."
    path = Path(frame)
    if not path.is_file():
        raise FileNotFoundError(f"Expected `frame` to be a CSV file or a DataFrame. There is no file {str(path)!r}")
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            rows = list(csv.reader(file, strict=True))
    except (csv.Error, UnicodeDecodeError) as error:
        raise ValueError(f"Expected `frame` to be a CSV file in UTF-8. {str(path)!r}: {error}") from error
    header, rows = (rows[0], rows[1:]) if rows else ([], [])
    bad = [(i, f"{len(row)} cells") for i, row in enumerate(rows) if len(row) != len(header)]
    _fail(f"Expected {len(header)} cells, as in the header of {str(path)!r}", ("line", 2), bad)
    return {name: [row[i] for row in rows] for i, name in enumerate(header)}, ("line", 2), path.parent


def _classes(values, class_names, num_classes):
    """Returns (function from a label to its number, or None for no class, the names, how many there are)."""
    if class_names is not None:
        index = {name: i for i, name in enumerate(class_names)}
        if num_classes not in (None, len(index)) or len(index) != len(list(class_names)):
            raise ValueError(f"Expected different `class_names`, as many as `num_classes`. Received: {class_names}")
        return (lambda v: index.get(v, index.get(str(v)))), tuple(class_names), len(index)
    integers = [_integer(v) for v in values]
    if None not in integers:
        return _integer, (), max(integers, default=-1) + 1 if num_classes is None else num_classes
    if num_classes is not None:
        raise ValueError(f"Expected integers as labels for `num_classes`. Received: {values[integers.index(None)]!r}")
    names = sorted({str(v) for v in values})
    return (
        (lambda v: names.index(str(v))) if len(names) < 2 else {n: i for i, n in enumerate(names)}.get,
        tuple(names),
        len(names),
    )


def _numbers(cells, lookup, count, first_line):
    """The numbers of each row's labels."""
    rows = [[lookup(value) for value in cell] for cell in cells]
    bad = [
        (i, repr(value))
        for i, (row, cell) in enumerate(zip(rows, cells, strict=True))
        for number, value in zip(row, cell, strict=True)
        if number is None or not 0 <= number < count
    ]
    _fail(f"Expected labels of one of the {count} classes", first_line, bad)
    return rows


def _indicators(columns, label_columns, first_line):
    """Multi-hot labels from one column of 0 and 1 a class."""
    rows = list(zip(*(columns[name] for name in label_columns), strict=True))
    numbers = [[_integer(value) for value in row] for row in rows]
    bad = [(i, repr(rows[i])) for i, row in enumerate(numbers) if any(v not in (0, 1) for v in row)]
    _fail(f"Expected 0 or 1 in each of the columns {list(label_columns)}", first_line, bad)
    return numbers, "multi_hot", tuple(label_columns), len(label_columns)


def _integer(value):
    """The integer that a cell holds, also one written as 3 or 3.0; None if it is none."""
    try:
        return int(value) if float(value) == int(float(value)) else None
    except (TypeError, ValueError, OverflowError):
        return None


def _listed(value):
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _empty(cell):
    """Whether a cell holds nothing; a DataFrame's missing values differ from themselves."""
    return cell is None or cell == "" or cell != cell


def _fail(expected, first_line, bad, error=ValueError):
    """Raises for the rows of `bad`, pairs of (row from 0, what is there), if there are any."""
    if bad:
        what, first = first_line
        shown = "; ".join(f"{what} {i + first}: {received}" for i, received in bad[:10])
        more = f"; and {len(bad) - 10} more" if len(bad) > 10 else ""
        raise error(f"{expected}. Received: {shown}{more}")
