"""Tables of any kind as columns, and errors that name their rows."""

import csv
import math
from collections.abc import Mapping
from pathlib import Path


def columns_of(frame):
    """Returns ({name: values}, what to call the first row in errors, the folder of relative paths) of a table."""
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
    rows = csv_rows(path)
    header, rows = (rows[0], rows[1:]) if rows else ([], [])
    bad = [(i, f"{len(row)} cells") for i, row in enumerate(rows) if len(row) != len(header)]
    fail(f"Expected {len(header)} cells, as in the header of {str(path)!r}", ("line", 2), bad)
    return {name: [row[i] for row in rows] for i, name in enumerate(header)}, ("line", 2), path.parent


def csv_rows(path):
    """The rows of a CSV file, header included, as lists of cells; a blank line is an empty list."""
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            return list(csv.reader(file, strict=True))
    except (csv.Error, UnicodeDecodeError) as error:
        raise ValueError(f"Expected a CSV file in UTF-8. {str(path)!r}: {error}") from error


def integer(value):
    """A cell's integer, which may be written "3" or 3.0; None if it is not one."""
    try:
        return int(float(value)) if float(value) == int(float(value)) else None
    except (TypeError, ValueError, OverflowError):
        return None


def real(value):
    """A cell's finite number; None if it is not one."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None


def empty(cell):
    """Whether a cell is empty; a DataFrame's missing values differ from themselves."""
    return cell is None or cell == "" or cell != cell


def fail(expected, first_line, bad, error=ValueError):
    """Raises if there are any `bad` rows, pairs of (row from 0, what it holds)."""
    if bad:
        what, first = first_line
        shown = "; ".join(f"{what} {i + first}: {received}" for i, received in bad[:10])
        more = f"; and {len(bad) - 10} more" if len(bad) > 10 else ""
        raise error(f"{expected}. Received: {shown}{more}")
