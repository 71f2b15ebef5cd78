"""Which images are to be predicted, and the files of what is said of them."""

import csv
import json
import os
import sys
from pathlib import Path

from keras_vit.data.table import csv_rows


def find_images(inputs, column=None, folder=None, extension=""):
    """Finds the images that files, folders and tables stand for.

    Args:
        inputs: Paths of image files; of folders, whose images are taken in the order of their names, those in folders
            within them as well; and of CSV files with a header and a column of paths.
        column: The name of that column. None takes "path", or the only one.
        folder: The folder that relative paths of CSV files start from. None takes the CSV file's own.
        extension: What those paths lack at their end, as ".jpg".

    Returns:
        What heads a column of their names, "path" or, of a single CSV file, its own; and a list of (name as it was
        given, path).

    Raises:
        FileNotFoundError: If something does not exist.
        ValueError: If a folder holds no image, or a CSV file no such column.

    Example:

    >>> import pathlib, tempfile
    >>> from keras_vit.prediction_files import find_images
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> _ = (folder / "test.csv").write_text("image\\ncat.png\\n")
    >>> _ = (folder / "cat.png").write_bytes(b"...")
    >>> header, images = find_images([folder / "test.csv"])
    >>> header, [name for name, _ in images]
    ('image', ['cat.png'])
    """
    found, headers = [], []
    for item in map(os.fspath, inputs):
        if os.path.isdir(item):
            found += [(path, path) for path in _of_folder(item)]
        elif item.lower().endswith(".csv"):
            header, names = _of_csv(item, column)
            headers.append(header)
            base = Path(item).parent if folder is None else folder
            found += [(name, str(Path(base, name + extension))) for name in names]
        else:
            found.append((item, item))
    if not headers and (column is not None or folder is not None or extension):
        raise ValueError(
            "Expected a CSV file of paths with a column, a folder or an extension of its paths. Received: images and "
            "folders alone"
        )
    if missing := [path for _, path in found if not os.path.isfile(path)]:
        more = f" and {len(missing) - 10} more" if len(missing) > 10 else ""
        raise FileNotFoundError(f"Expected image files. There are none at {', '.join(missing[:10])}{more}")
    return headers[0] if len(headers) == len(list(inputs)) == 1 else "path", found


def _of_folder(folder):
    from PIL import Image

    # Without those that Pillow writes alone, or knows by name alone.
    kinds = Image.registered_extensions()
    endings = {ending for ending, kind in kinds.items() if kind in Image.OPEN and kind not in ("BUFR", "GRIB", "HDF5")}
    files = sorted(str(path) for path in Path(folder).rglob("*") if path.is_file())
    images = [file for file in files if Path(file).suffix.lower() in endings and not Path(file).name.startswith(".")]
    if not images:
        raise ValueError(f"Expected a folder of images. Received: {folder!r}, with {len(files)} files, none an image's")
    others = [file for file in files if file not in set(images)]
    if others:
        print(f"Passed over {len(others)} files in {folder} that are no images, as {others[0]}", file=sys.stderr)
    return images


def _of_csv(path, column):
    header, *rows = [row for row in csv_rows(path) if row] or [[]]
    chosen = column or (header[0] if len(header) == 1 else "path")
    if chosen not in header:
        raise ValueError(f"Expected a column {chosen!r} of paths in {path!r}, or --path-column. Received: {header}")
    place = header.index(chosen)
    cells = [row[place] if place < len(row) else "" for row in rows]
    if not cells or "" in cells:
        where = f"none in row {cells.index('') + 1} after the header" if cells else "no rows"
        raise ValueError(f"Expected a path in each row of {path!r}. Received: {where}")
    return chosen, cells


def write_csv(path, header, names, predictions):
    """Writes one row an image, in their order; of one that could not be read the classes are empty.

    Args:
        path: Path of the file.
        header: What heads the column of names.
        names: The images' names.
        predictions: What `classify` returned for them.

    Example:

    >>> import pathlib, tempfile
    >>> from keras_vit.prediction_files import write_csv
    >>> path = pathlib.Path(tempfile.mkdtemp(), "submission.csv")
    >>> write_csv(path, "path", ["a.png", "b.png"], [[("0", "cat", 0.75)], []])
    >>> path.read_text().splitlines()
    ['path,label,probability', 'a.png,cat,0.75', 'b.png,,']
    """
    top = max(map(len, predictions))
    endings = ["", *(f"_{i}" for i in range(2, top + 1))]
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow([header, *(column + ending for ending in endings for column in ("label", "probability"))])
        for name, classes in zip(names, predictions, strict=True):
            cells = [cell for _, label, probability in classes for cell in (label, f"{probability:.6g}")]
            writer.writerow([name, *cells, *[""] * (2 * top - len(cells))])


def as_json(names, predictions):
    """Predictions as JSON: a list of one object an image, whose classes are [] where it could not be read.

    Args:
        names: The images' names.
        predictions: What `classify` returned for them.

    Example:

    >>> import json
    >>> from keras_vit.prediction_files import as_json
    >>> json.loads(as_json(["a.png"], [[("0", "cat", 0.75)]]))
    [{'path': 'a.png', 'classes': [{'id': '0', 'label': 'cat', 'probability': 0.75}]}]
    """
    return json.dumps(
        [
            {"path": name, "classes": [{"id": i, "label": label, "probability": p} for i, label, p in classes]}
            for name, classes in zip(names, predictions, strict=True)
        ],
        indent=1,
        ensure_ascii=False,
    )
