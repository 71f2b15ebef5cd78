"""Finds images to predict, and writes files of predictions."""

import csv
import json
import os
import sys
from pathlib import Path

from keras_vit.data.table import csv_rows
from keras_vit.image_files import NOT_READ


def find_images(inputs, column=None, folder=None, extension=""):
    """Finds images: files, folders (recursively), and the paths in a CSV column (None: "path" or the only one).

    Relative CSV paths start at `folder` or else the CSV file's folder, and get `extension` appended. Returns the header
    of the name column and a list of (name as given, path).
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

    # Pillow can only write some formats.
    kinds = Image.registered_extensions()
    endings = {ending for ending, kind in kinds.items() if kind in Image.OPEN and kind not in NOT_READ}
    files = sorted(filter(Path.is_file, Path(folder).rglob("*")), key=str)
    images = [str(path) for path in files if path.suffix.lower() in endings and not path.name.startswith(".")]
    others = sorted({*map(str, files)} - {*images})
    if not images:
        raise ValueError(f"Expected a folder of images. Received: {folder!r}, with {len(others)} other files")
    if others:
        print(f"Skipped {len(others)} files in {folder} that are not images, such as {others[0]}", file=sys.stderr)
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
    """Writes the results of `classify`, one row per image; cells of unreadable images are empty.

    A name that is not UTF-8 has backslashes for its other bytes.
    """
    top = max(map(len, predictions))
    endings = ["", *(f"_{i}" for i in range(2, top + 1))]
    with open(path, "w", newline="", encoding="utf-8", errors="backslashreplace") as file:
        writer = csv.writer(file)
        writer.writerow([header, *(column + ending for ending in endings for column in ("label", "probability"))])
        for name, classes in zip(names, predictions, strict=True):
            cells = [cell for _, label, probability in classes for cell in (label, f"{probability:.6g}")]
            writer.writerow([name, *cells, *[""] * (2 * top - len(cells))])


def as_json(names, predictions):
    """Returns the results of `classify` as JSON, one object per image; "classes" is [] if unreadable."""
    rows = []
    for name, classes in zip(names, predictions, strict=True):
        found = [{"id": i, "label": label, "probability": probability} for i, label, probability in classes]
        rows.append({"path": name, "classes": found})
    return json.dumps(rows, indent=1, ensure_ascii=False)
