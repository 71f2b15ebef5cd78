import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from keras_vit import arguments
from keras_vit.data.pipelines import pipeline
from keras_vit.data.source import file_source, tf
from keras_vit.images.table import (
    TableRows,
    classes,
    empty,
    fail,
    floats,
    indicators,
    read_columns,
    several_classes,
    weights,
)


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
        frame: Path of a CSV file with a header, a DataFrame of pandas or of any other library whose DataFrames have
            `columns`, or a dict of columns.
        directory: The folder from which relative paths start; None: the CSV file's folder, or the current folder for
            other tables.
        path_column: The column of image paths.
        label_column: The column of labels: names, such as "cat" or "001", or integers counted from 0. A list of columns
            of 0 and 1, one per class, gives multi-hot labels. With `labels="float"`, pass a column of regression
            targets or a list of such columns; the labels are then float32 (batch, number of columns). None: images
            without labels, in the order of the table.
        label_separator: The text between two labels in a cell, such as " " for cells like "cat dog"; the labels are
            then multi-hot. None: one label per cell.
        weight_column: The column of sample weights of at least 0. The dataset then contains (images, labels, weights).
            None: no weights.
        extension: String such as ".jpg", appended to paths that do not end with it.
        class_names: The class names in label order; None: all names in the table, sorted.
        num_classes: Integer, the number of classes if labels are integers; None: the largest label + 1.
        **options: Other arguments of `keras_vit.data.pipeline`. Its documentation also describes the dataset that is
            returned. If there are no labels, `training` is False by default. The dataset has three more attributes:
            `file_paths` and `file_labels` are lists in the order of the table, and `table_columns` are the names of the
            columns of paths and labels. `file_labels` is None if there are no labels.

    Raises:
        FileNotFoundError: If the CSV file or an image does not exist.
        ValueError: If a column is missing, a row or label is invalid, or the number of classes cannot be inferred from
            integer labels.

    Example:
    >>> import keras, keras_vit.data, tempfile
    >>> path = tempfile.mkdtemp() + "/cat.png"
    >>> keras.utils.save_img(path, np.zeros((20, 20, 3)))
    >>> table = {"path": [path] * 2, "label": ["cat pet", "cat"]}
    >>> data = keras_vit.data.from_dataframe(table, label_separator=" ", image_size=16, training=False)
    >>> next(iter(data))[1].numpy().tolist()
    [[1.0, 1.0], [1.0, 0.0]]
    """
    columns, lines, base = read_columns(frame)
    arguments.each(arguments.text, path_column=path_column, extension=extension)
    arguments.each(arguments.text, optional=True, label_separator=label_separator, weight_column=weight_column)
    arguments.optional(arguments.path, "directory", directory)
    arguments.optional(arguments.positive_int, "num_classes", num_classes)
    several = label_column is not None and not isinstance(label_column, str)
    label_columns = arguments.several("label_column", label_column) if several else [label_column]
    wanted = [name for name in (path_column, *label_columns, weight_column) if name is not None]
    if missing := [name for name in wanted if name not in list(columns)]:
        raise ValueError(
            f"Expected the columns {wanted}. Received: {list(columns)}, without {missing}. Set the column names with "
            "`path_column` and `label_column` (--path-column and --label-column)"
        )
    unused = {"class_names": class_names, "num_classes": num_classes, "label_separator": label_separator}
    for name, value in unused.items() if several or label_column is None or options.get("labels") == "float" else ():
        if value is not None and not (isinstance(value, (list, tuple)) and list(value) == label_columns):
            raise arguments.invalid(name, "None if `label_column` is None or a list, or if labels='float'", value)
    if weight_column is not None and (label_column is None or options.get("labels") == "none"):
        received = "label_column=None" if label_column is None else "labels='none'"
        raise ValueError(f"Expected labels with weight_column={weight_column!r}. Received: {received}")
    base = base if directory is None else directory
    cells = columns[path_column]
    if not cells:
        raise ValueError("Expected at least one row. Received: a table without rows")
    fail("Expected a path", lines, [(i, repr(cell)) for i, cell in enumerate(cells) if empty(cell)])
    paths = [str(Path(base, str(cell))) for cell in cells]
    paths = [path if path.endswith(extension) else path + extension for path in paths]
    missing = [(i, path) for i, path in enumerate(paths) if not os.path.isfile(path)]
    expected = f"Expected image files in {str(base)!r}, the `directory` (--images), with `extension` (--extension)"
    fail(expected, lines, missing, FileNotFoundError)
    # A table from `folds` keeps the classes of the whole table, even if it has no images of a rare class.
    known = frame.unchanged(label_column) if isinstance(frame, TableRows) and isinstance(label_column, str) else ()
    if label_column is None:
        labels, kind, names, count = None, None, (), 0
    elif options.get("labels") == "float":
        labels, kind, names, count = floats(columns, label_columns, lines)
        options = {**options, "labels": None}
    elif several:
        labels, kind, names, count = indicators(columns, label_columns, lines)
    elif label_separator is not None:
        cells = columns[label_column]
        labels, kind, names, count = several_classes(cells, lines, class_names, num_classes, label_separator, known)
    else:
        labels, kind, names, count = classes(columns[label_column], lines, class_names, num_classes, known)
    if kind in ("int", "multi_hot") and count < 2:
        raise ValueError(f"Expected at least two classes in column {label_column!r}. Received: {list(names) or count}")
    if kind is None or options.get("labels") == "none":
        options = {"training": False, **options}
    sample_weights = None if weight_column is None else weights(columns[weight_column], lines)
    data = pipeline(file_source(paths, labels, kind, names, count, sample_weights), **options)
    data.file_paths, data.file_labels = paths, labels
    data.table_columns = [path_column, *label_columns]
    return data
