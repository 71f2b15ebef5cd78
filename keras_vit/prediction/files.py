"""Finds image files, predicts them, and writes files of predictions."""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import keras

from keras_vit import arguments
from keras_vit.console import printable
from keras_vit.images.files import NOT_READ, visible_files
from keras_vit.images.table import csv_rows, empty, read_columns, write_rows
from keras_vit.prediction.classes import distinct_names, outputs_named
from keras_vit.prediction.classify import predict_paths

if TYPE_CHECKING:
    import pandas


def predict_images(
    model: keras.Model,
    images: str | os.PathLike | Sequence[str | os.PathLike] | Mapping[str, Sequence],
    *,
    path_column: str | None = None,
    directory: str | os.PathLike | None = None,
    extension: str = "",
    tta: str | None = None,
    batch_size: int = 32,
    verbose: int = 1,
) -> "pandas.DataFrame":
    """Predicts image files; returns a DataFrame with a row per image and a float32 column per class.

    The index contains paths, or the cells of a table's `path_column`. The values are probabilities, or the outputs of a
    model with `task="regression"`, as in `keras_vit.evaluation.predict`. So `frame.idxmax(axis=1)` returns the classes,
    and `frame.to_csv("submission.csv")` writes a probability per class. If several classes have the same name, their
    columns also contain the id, as in "crane (n02012849)". Images are resized and scaled by the model's
    `preprocessing`. An unreadable image gets a warning and a row of NaN, for which `idxmax` fails or returns NaN.
    After `fillna(0)`, the class of such an image is the first class.

    Args:
        model: A model of this package, or a model that contains one, with one output (batch, num_outputs).
        images: A folder (with its subfolders), an image file, a CSV file of paths, or a list of these; or a DataFrame
            or dict of columns.
        path_column: The column of paths in a table. None means "path", or the only column.
        directory: The folder from which a table's relative paths start. None means the folder of a CSV file, or the
            current folder for other tables.
        extension: Suffix such as ".jpg", appended to a table's paths that do not end with it.
        tta, batch_size, verbose: As in `keras_vit.evaluation.predict`. If `tta` uses crops, images are read with 8/7 of
            the model's height and width.

    Raises:
        FileNotFoundError: If an image or table does not exist.
        ValueError: If a table has no column of paths, a path is missing in a row, there are no images, no image is
            readable, or an argument does not fit the model.
        ImportError: If pandas is not installed.

    Example:

    >>> model = keras_vit.from_pretrained("flowers.keras")  # doctest: +SKIP
    >>> frame = keras_vit.predict_images(model, "test.csv", directory="images", tta="flip")  # doctest: +SKIP
    >>> frame.fillna(0).idxmax(axis=1).to_csv("submission.csv", header=["label"])  # doctest: +SKIP
    """
    try:
        import pandas
    except ImportError as error:
        raise ImportError("A DataFrame of predictions needs pandas: pip install pandas") from error
    columns = distinct_names(outputs_named(model))
    arguments.text("extension", extension)
    one = isinstance(images, (str, os.PathLike, Mapping)) or hasattr(images, "columns")
    images = [images] if one else arguments.several("images", images)
    header, found = find_images(images, path_column, directory, extension)
    names, paths = zip(*found, strict=True)
    predictions = predict_paths(model, paths, tta=tta, broken="skip", batch_size=batch_size, verbose=verbose)
    return pandas.DataFrame(predictions, index=pandas.Index(names, name=header), columns=columns)


def find_images(inputs: Sequence[Any], column=None, folder=None, extension=""):
    """Returns a header and a list of (name as given, path) of the images in `inputs`: files, folders and tables.

    A table is a CSV file, a DataFrame or a dict of columns. The header is the name of the column of paths if the input
    is a single table, and "path" if not. `column`, `folder` and `extension` are `path_column`, `directory` and
    `extension` of `predict_images`.
    """
    found, headers = [], []
    for item in inputs:
        is_path = isinstance(item, (str, os.PathLike))
        item = os.fspath(item) if is_path else item
        if is_path and os.path.isdir(item):
            found += [(path, path) for path in _images_in_folder(item)]
        elif not is_path or item.lower().endswith(".csv"):
            header, names, base = _paths_in_table(item, column)
            headers.append(header)
            paths = [str(Path(base if folder is None else folder, str(name))) for name in names]
            paths = [path if path.endswith(extension) else path + extension for path in paths]
            found += zip(names, paths, strict=True)
        else:
            found.append((item, item))
    if not headers and (column is not None or folder is not None or extension):
        expected = "a table of paths, because `path_column`, `directory` or `extension` was passed"
        raise ValueError(f"Expected {expected}. Received: only images and folders.")
    if not found:
        raise ValueError("Expected images, folders of images or tables of image paths. Received: none")
    if missing := [path for _, path in found if not os.path.isfile(path)]:
        more = f" and {len(missing) - 10} more" if len(missing) > 10 else ""
        advice = ". Change a table's paths by `directory` (--images) or `extension` (--extension)" if headers else ""
        raise FileNotFoundError(f"Expected image files. There are none at {', '.join(missing[:10])}{more}{advice}")
    return headers[0] if len(headers) == len(list(inputs)) == 1 else "path", found


def _images_in_folder(folder):
    from PIL import Image

    # Pillow can write some formats that it cannot read. Leave out files of these formats.
    kinds = Image.registered_extensions()
    endings = {ending for ending, kind in kinds.items() if kind in Image.OPEN and kind not in NOT_READ}
    # Hidden folders, such as .ipynb_checkpoints, may contain copies of images.
    files = visible_files(Path(folder))
    images = [str(path) for path in files if path.suffix.lower() in endings]
    others = sorted({*map(str, files)} - {*images})
    if not images:
        raise ValueError(
            f"Expected a folder of images. Received: {folder!r}, with no images and {len(others)} other files"
        )
    if others:
        skipped = f"Skipped {len(others)} files in {folder} that are not images, such as {others[0]}"
        print(printable(skipped), file=sys.stderr)
    return images


def _paths_in_table(table, column):
    """Returns the name of a table's column of paths, its cells, and the folder that relative paths start from."""
    if isinstance(table, str):
        name, base = repr(table), Path(table).parent
        header, *rows = [row for row in csv_rows(table) if row] or [[]]
        columns = {key: [row[i] if i < len(row) else "" for row in rows] for i, key in enumerate(header)}
    else:
        name, (columns, _, base) = "the table", read_columns(table, "images")
    chosen = column or (next(iter(columns)) if len(columns) == 1 else "path")
    if chosen not in columns:
        advice = "Pass the name of the column of paths as `path_column` (--path-column)."
        raise ValueError(f"Expected a column {chosen!r} of paths in {name}. Received: {list(columns)}. {advice}")
    cells = columns[chosen]
    without = [i for i, cell in enumerate(cells) if empty(cell)]
    if not cells or without:
        where = f"none in row {without[0] + 1} after the header" if cells else "no rows"
        raise ValueError(f"Expected a path in each row of {name}. Received: {where}")
    return chosen, cells, base


def table_columns(weights):
    """Returns the names of the path and label columns in the results.json of a run's folder, or None if unknown."""
    try:
        results = json.loads(Path(weights, "results.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    columns = results.get("table_columns") if isinstance(results, dict) else None
    # If the table has several columns of labels, a submission with one predicted class per image would not fit it.
    return columns if columns and len(columns) == 2 else None


def write_csv(path, header, names, predictions, escape_formulas=False):
    """Writes the results of `classify` as a CSV file, one row per image; cells of unreadable images are empty."""
    top = max(map(len, predictions))
    endings = ["", *(f"_{i}" for i in range(2, top + 1))]
    rows = [[header, *(column + ending for ending in endings for column in ("label", "probability"))]]
    for name, classes in zip(names, predictions, strict=True):
        cells = [cell for _, label, probability in classes for cell in (label, f"{probability:.6g}")]
        rows.append([name, *cells, *[""] * (2 * top - len(cells))])
    write_rows(path, rows, escape_formulas)


def check_submission(model):
    """Raises if a model has only one output, because `write_submission` would write the same class for each image."""
    if model.output_shape[-1] == 1:
        raise ValueError(
            "Expected two or more classes, to write the most probable class of each image. Received: a model with the "
            f"output shape {model.output_shape}. To write its probability, pass --top 1 without --id-column and "
            "--label-column"
        )


def write_submission(path, id_column, label_column, names, predictions, escape_formulas=False):
    """Writes a CSV file with the most probable class of each image; the label of an unreadable image is empty."""
    pairs = zip(names, predictions, strict=True)
    rows = [(name, classes[0][1] if classes else "") for name, classes in pairs]
    write_rows(path, [(id_column, label_column), *rows], escape_formulas)


def as_json(names, predictions):
    """Returns the results of `classify` as JSON, one object per image; "classes" is [] for an unreadable image."""
    rows = []
    for name, classes in zip(names, predictions, strict=True):
        found = [{"id": i, "label": label, "probability": probability} for i, label, probability in classes]
        rows.append({"path": name, "classes": found})
    return json.dumps(rows, indent=1)
