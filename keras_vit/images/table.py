"""Reads tables and parses their labels and weights. Error messages contain row numbers."""

import csv
import logging
import math
import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from keras_vit import arguments
from keras_vit.files import regular_file

logger = logging.getLogger("keras_vit.data")


class TableRows(dict):
    """Some rows of a table, as {column name: values}. `chosen` contains the indices of these rows.

    `lines` contains the row numbers for errors. Classes are inferred from `whole`, which contains all rows.
    """

    def __init__(self, columns, lines, chosen):
        super().__init__({name: [values[row] for row in chosen] for name, values in columns.items()})
        what, numbers = lines
        self.lines, self.whole, self.chosen = (what, [numbers[row] for row in chosen]), columns, chosen

    def unchanged(self, name):
        """Returns the values of a column in all rows of the table, or () if the user changed the column."""
        whole = self.whole.get(name, ())
        return whole if list(self[name]) == [whole[row] for row in self.chosen if whole] else ()


def read_columns(frame, argument="frame"):
    """Reads a DataFrame, dict or CSV file, the argument `argument`. Returns ({name: values}, lines, folder).

    `lines` is ("row" or "line", numbers), so that an error can name a row, for example "line 2". Relative paths in the
    table start from `folder`.
    """
    if isinstance(frame, Mapping) or hasattr(frame, "columns"):
        names = list(getattr(frame, "columns", frame))
        _refuse_repeated(names, "the table")
        columns = {name: list(frame[name]) for name in names}
        if len(lengths := {len(column) for column in columns.values()}) > 1:
            raise ValueError(f"Expected columns of one length. Received: columns of the lengths {sorted(lengths)}")
        lines = "row", range(max(lengths, default=0))
        # A `TableRows` contains row numbers. Use these numbers, unless the user has added or removed rows.
        if isinstance(frame, TableRows) and len(frame.lines[1]) == len(lines[1]):
            lines = frame.lines
        return columns, lines, "."
    path = Path(arguments.path(argument, frame))
    header, *rows = csv_rows(path) or [[]]
    _refuse_repeated(header, str(path))
    lines = "line", range(2, len(rows) + 2)
    bad = [(i, f"{len(row)} cells") for i, row in enumerate(rows) if len(row) != len(header)]
    fail(f"Expected {len(header)} cells, as in the header of {str(path)!r}", lines, bad)
    return {name: [row[i] for row in rows] for i, name in enumerate(header)}, lines, path.parent


def _refuse_repeated(names, table):
    if repeated := [name for name in dict.fromkeys(names) if names.count(name) > 1]:
        raise ValueError(f"Expected columns of different names in {table!r}. Received twice: {repeated[:10]}")


def csv_rows(path):
    """Returns the rows of a CSV file, including its header, as lists of cells. A blank line becomes an empty list."""
    try:
        with open(regular_file(path, "a CSV file or a DataFrame"), newline="", encoding="utf-8-sig") as file:
            return list(csv.reader(file, strict=True))
    except (csv.Error, UnicodeDecodeError) as error:
        raise ValueError(f"Expected a CSV file in UTF-8. Received: {str(path)!r} with {error}") from error


def write_rows(path, rows, escape_formulas=False):
    """Writes rows to a CSV file. With `escape_formulas`, writes ' before cells that start with = + - or @."""
    arguments.boolean("escape_formulas", escape_formulas)

    def escaped(cell):
        # Spreadsheets ignore spaces and line ends before a formula.
        return f"'{cell}" if isinstance(cell, str) and cell.strip()[:1] in ("=", "+", "-", "@") else cell

    # Bytes of a file name that are not UTF-8 become backslash escapes.
    with open(path, "w", newline="", encoding="utf-8", errors="backslashreplace") as file:
        csv.writer(file).writerows([map(escaped, row) for row in rows] if escape_formulas else rows)


def integer(value):
    """Parses an integer, such as 3, 3.0 or "3"; returns None for other values."""
    try:
        return int(float(value)) if float(value) == int(float(value)) else None
    except (TypeError, ValueError, OverflowError):
        return None


def class_number(value):
    """Parses a class number. Returns None for other text and for numbers such as "001" or "0_1"."""
    # Python reads "0_1" as 1, and "1_0" as 10.
    return None if isinstance(value, str) and re.match(r"\s*[+-]?0\d|.*_", value) else integer(value)


def real(value):
    """Parses a finite number; returns None for other values."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None


def empty(cell):
    """Returns True if a cell is None, "", or a missing value in a DataFrame (NaN or NA)."""
    try:
        return cell is None or bool(cell == "" or cell != cell)
    except TypeError:
        # A comparison with pandas' NA returns NA, and bool(NA) raises a TypeError.
        return True


def fail(expected, lines, bad, error=ValueError):
    """Raises an error that lists the rows in `bad`, a list of (row index from 0, received value), if there are any."""
    if bad:
        what, numbers = lines
        shown = "; ".join(f"{what} {numbers[i]}: {received}" for i, received in bad[:10])
        more = f"; and {len(bad) - 10} more" if len(bad) > 10 else ""
        raise error(f"{expected}. Received: {shown}{more}")


def classes(cells, lines, class_names, num_classes, known=()):
    """Parses `cells`, one class per row. Returns (labels, kind of the labels, class names, number of classes).

    If neither `class_names` nor `num_classes` is given, classes are inferred from `cells` and the cells `known`.
    """
    _refuse_lists(cells, lines)
    fail("Expected a label", lines, [(i, repr(c)) for i, c in enumerate(cells) if empty(c)])
    known = [cell for cell in known if not empty(cell)]
    lookup, names, count = _lookup([*cells, *known], class_names, num_classes)
    return [row[0] for row in _numbers([[c] for c in cells], lookup, count, lines)], "int", names, count


def several_classes(cells, lines, class_names, num_classes, separator, known=()):
    """Parses cells of classes joined by `separator` to multi-hot labels. Returns the same four values as `classes`."""
    if not separator:
        raise ValueError(f"Expected `label_separator` to be at least one character. Received: {separator!r}")
    _refuse_lists(cells, lines)
    parts = [[] if empty(c) else [part for part in str(c).split(separator) if part] for c in [*cells, *known]]
    lookup, names, count = _lookup([part for cell in parts for part in cell], class_names, num_classes)
    cells = parts[: len(cells)]
    numbers = _numbers(cells, lookup, count, lines)
    return [[float(k in row) for k in range(count)] for row in map(set, numbers)], "multi_hot", names, count


def _refuse_lists(cells, lines):
    bad = [(i, repr(cell)) for i, cell in enumerate(cells) if isinstance(cell, (list, tuple, set, dict, np.ndarray))]
    fail("Expected a label as text or a number, or several labels joined by `label_separator`", lines, bad)


def indicators(columns, label_columns, lines):
    """Parses columns of 0 and 1, one per class, to multi-hot labels. Returns the same four values as `classes`."""
    hint = ", or labels='float' for regression targets"
    expected = f"Expected 0 or 1 in each of the columns {label_columns}{hint}"
    numbers = _rows(columns, label_columns, lines, integer, lambda value: value in (0, 1), expected)
    return numbers, "multi_hot", tuple(label_columns), len(label_columns)


def floats(columns, label_columns, lines):
    """Parses columns of regression targets to lists of floats. Returns the same four values as `classes`."""
    expected = f"Expected a finite number in each of the columns {label_columns}"
    numbers = _rows(columns, label_columns, lines, real, lambda value: value is not None, expected)
    return numbers, "float", (), len(label_columns)


def _rows(columns, names, lines, parse, is_valid, expected):
    """Parses the cells of the columns `names` by `parse`. If a cell is invalid, the error begins with `expected`."""
    rows = list(zip(*(columns[name] for name in names), strict=True))
    parsed = [[parse(value) for value in row] for row in rows]
    fail(expected, lines, [(i, repr(rows[i])) for i, row in enumerate(parsed) if not all(map(is_valid, row))])
    return parsed


def weights(cells, lines):
    """Parses sample weights to floats of at least 0."""
    numbers = [real(value) for value in cells]
    bad = [(i, repr(cells[i])) for i, number in enumerate(numbers) if number is None or number < 0]
    fail("Expected a weight of at least 0", lines, bad)
    return numbers


def _lookup(values, class_names, num_classes):
    """Returns (find, class names, number of classes). `find(label)` returns the label's class index, or None."""
    if class_names is not None:
        class_names = arguments.several("class_names", class_names)
        index = {str(name): i for i, name in enumerate(class_names)}
        if num_classes not in (None, len(index)) or len(index) != len(class_names):
            count = "" if num_classes is None else f"{num_classes} "
            raise ValueError(f"Expected {count}`class_names`, each only once. Received: {class_names}")

        def find(value):
            # Accept 1.0 for the class "1", because a DataFrame column with missing values contains 1.0 instead of 1.
            number = class_number(value)
            return index.get(str(value), None if number is None else index.get(str(number)))

        return find, tuple(index), len(index)
    integers = [class_number(v) for v in values]
    if None not in integers:
        return class_number, (), _count(integers) if num_classes is None else num_classes
    if num_classes is not None:
        raise ValueError(
            f"Expected labels to be integers if `num_classes` is given. Received: {values[integers.index(None)]!r}"
        )
    fractions = [v for v in values if integer(v) is None]
    if fractions and None not in map(real, values):
        raise ValueError(
            f"Expected labels that are names or integers. Received: {fractions[0]!r}. Pass labels='float' for "
            "regression targets, or `class_names` if these numbers are names of classes."
        )
    index = {name: i for i, name in enumerate(sorted({str(v) for v in values}))}
    if spaced := [(name, name.strip()) for name in index if name != name.strip() and name.strip() in index]:
        raise ValueError(
            f"Expected labels that differ in more than spaces. Received: {spaced[0]}. Remove the spaces in the table. "
            "If spaces separate labels, add them to `label_separator`. If these are two classes, pass `class_names`."
        )
    return (lambda v: index.get(str(v))), tuple(index), len(index)


def _count(integers):
    """Infers the number of classes from integer labels."""
    found = {i for i in integers if i >= 0}
    count = max(found, default=-1) + 1
    how = (
        "Pass `num_classes` if classes have no image, or `class_names` if the numbers are names of classes. In a table "
        "for `keras-vit train`, replace such numbers by text, such as class_7."
    )
    if count > 2 * len(found):
        raise ValueError(
            f"Expected class numbers from 0 without gaps. Received: {len(found)} integers up to {count - 1}. {how}"
        )
    if absent := sorted(set(range(count)) - found):
        logger.warning("No image is labelled with %s of the %d classes 0 to %d. %s", absent[:10], count, count - 1, how)
    return count


def _numbers(cells, lookup, count, lines):
    """Returns the class indices of each row's labels."""
    rows = [[lookup(value) for value in cell] for cell in cells]
    bad = [
        (i, repr(value))
        for i, (row, cell) in enumerate(zip(rows, cells, strict=True))
        for number, value in zip(row, cell, strict=True)
        if number is None or not 0 <= number < count
    ]
    fail(f"Expected a label of one of the {count} classes", lines, bad)
    return rows
