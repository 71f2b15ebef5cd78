import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from keras_vit.data.pipelines import pipeline
from keras_vit.data.source import file_source, tf
from keras_vit.data.table import classes, columns_of, empty, fail, floats, indicators, several_classes, weights


def from_dataframe(
    frame: str | os.PathLike | Mapping[str, Sequence],
    *,
    directory: str | os.PathLike | None = None,
    path_column: str = "path",
    label_column: str | Sequence[str] | None = "label",
    label_separator: str | None = None,
    weight_column: str | None = None,
    extension: str = "",
    class_names: Sequence[str] | None = None,
    num_classes: int | None = None,
    **options: Any,
) -> "tf.data.Dataset":
    """Makes a dataset of (images, labels) from a table of image paths and labels.

    Args:
        frame: The path of a CSV file with a header, a DataFrame (of pandas or any other library with `columns`), or a
            dict of columns.
        directory: The folder of relative paths; None: the CSV file's folder, or the current one.
        path_column: The column of the images' paths.
        label_column: The column of the labels: names, or integers counted from 0. A list of columns of 0 and 1, one for
            each class, makes multi-hot labels. With `labels="float"` it is the column, or a list of columns, of numbers
            to predict; labels are then float32 (batch, columns). None: a test set without labels; the dataset gives
            images alone, in the frame's order.
        label_separator: The string between the labels of a cell ("cat dog"), which makes multi-hot labels; None: each
            cell is one label.
        weight_column: The column of sample weights of at least 0, for (images, labels, weights); or None.
        extension: Appended to paths that do not end with it, such as ".jpg".
        class_names: The names of the classes in the order of their labels; None: all that occur, sorted.
        num_classes: Integer, for labels that are integers; None: one more than the largest.
        **options: The arguments of `keras_vit.data.pipeline`: `image_size`, `batch_size`, `policy`, ... Without
            labels, `training` is False by default.

    Returns:
        A dataset, as `keras_vit.data.pipeline` describes it. It also has `file_paths` and `file_labels`,
        None without labels, in the frame's order.

    Raises:
        FileNotFoundError: If the CSV file or an image does not exist.
        ValueError: If a column is missing, a row cannot be read, a label is not one of the classes, or the classes
            cannot be told from integer labels.

    Example:

    >>> import keras, keras_vit.data, tempfile
    >>> path = tempfile.mkdtemp() + "/cat.png"
    >>> keras.utils.save_img(path, np.zeros((20, 20, 3)))
    >>> table = {"path": [path] * 2, "label": ["cat pet", "cat"]}
    >>> data = keras_vit.data.from_dataframe(table, label_separator=" ", image_size=16, training=False)
    >>> next(iter(data))[1].numpy().tolist()
    [[1.0, 1.0], [1.0, 0.0]]
    """
    columns, first_line, base = columns_of(frame)
    several = isinstance(label_column, (list, tuple))
    label_columns = list(label_column) if several else [label_column]
    wanted = [name for name in (path_column, *label_columns, weight_column) if name is not None]
    if missing := [name for name in wanted if name not in columns]:
        raise ValueError(f"Expected the columns {wanted}. There is no {missing} among {list(columns)}")
    if weight_column is not None and label_column is None:
        raise ValueError(f"Expected labels to weigh with weight_column={weight_column!r}. Received: label_column=None")
    paths = _paths(columns[path_column], first_line, base if directory is None else directory, extension)

    if label_column is None:
        labels, kind, names, count = None, None, (), 0
    elif options.get("labels") == "float":
        labels, kind, names, count = floats(columns, label_columns, first_line)
        options = {**options, "labels": None}
    elif several:
        labels, kind, names, count = indicators(columns, label_columns, first_line)
    elif label_separator is not None:
        cells = columns[label_column]
        labels, kind, names, count = several_classes(cells, first_line, class_names, num_classes, label_separator)
    else:
        labels, kind, names, count = classes(columns[label_column], first_line, class_names, num_classes)
    if kind in ("int", "multi_hot") and count < 2:
        raise ValueError(f"Expected two classes or more in column {label_column!r}. Received: {list(names) or count}")
    if kind is None or options.get("labels") == "none":
        options = {"training": False, **options}
    sample_weights = None if weight_column is None else weights(columns[weight_column], first_line)
    data = pipeline(file_source(paths, labels, kind, names, count, sample_weights), **options)
    data.file_paths, data.file_labels = paths, labels
    return data


def _paths(cells, first_line, base, extension):
    """The paths of the images, all of which exist."""
    if not cells:
        raise ValueError("Expected a row or more. Received: a table without rows")
    fail("Expected a path", first_line, [(i, repr(cell)) for i, cell in enumerate(cells) if empty(cell)])
    paths = [str(Path(base, str(cell))) for cell in cells]
    paths = [path if path.endswith(extension) else path + extension for path in paths]
    with ThreadPoolExecutor() as pool:
        exist = list(pool.map(os.path.isfile, paths))
    missing = [(i, path) for i, path in enumerate(paths) if not exist[i]]
    fail("Expected images", first_line, missing, FileNotFoundError)
    return paths
