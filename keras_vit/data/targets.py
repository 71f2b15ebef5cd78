"""The labels of a table's rows."""

import numpy as np

from keras_vit.data.source import logger
from keras_vit.data.table import empty, fail, integer, real


def classes(cells, first_line, class_names, num_classes):
    """One class a row. Returns (the rows' labels, their kind, the names of the classes, how many there are)."""
    fail("Expected a label", first_line, [(i, repr(c)) for i, c in enumerate(cells) if empty(c)])
    lookup, names, count = _lookup(cells, class_names, num_classes)
    return [row[0] for row in _numbers([[c] for c in cells], lookup, count, first_line)], "int", names, count


def several_classes(cells, first_line, class_names, num_classes, separator):
    """Like `classes`, with any number of them a row: a 0 or 1 for each class."""
    cells = [[] if empty(c) else [part for part in str(c).split(separator) if part] for c in cells]
    lookup, names, count = _lookup([part for cell in cells for part in cell], class_names, num_classes)
    numbers = _numbers(cells, lookup, count, first_line)
    return [[float(k in row) for k in range(count)] for row in map(set, numbers)], "multi_hot", names, count


def indicators(columns, label_columns, first_line):
    """Like `several_classes`, from one column of 0 and 1 for each class."""
    rows = list(zip(*(columns[name] for name in label_columns), strict=True))
    numbers = [[integer(value) for value in row] for row in rows]
    bad = [(i, repr(rows[i])) for i, row in enumerate(numbers) if any(v not in (0, 1) for v in row)]
    hint = "; labels='float' takes numbers to predict"
    fail(f"Expected 0 or 1 in each of the columns {list(label_columns)}{hint if bad else ''}", first_line, bad)
    return numbers, "multi_hot", tuple(label_columns), len(label_columns)


def floats(columns, label_columns, first_line):
    """Like `classes`, with numbers to predict."""
    rows = list(zip(*(columns[name] for name in label_columns), strict=True))
    numbers = [[real(value) for value in row] for row in rows]
    bad = [(i, repr(rows[i])) for i, row in enumerate(numbers) if None in row]
    fail(f"Expected a finite number in each of the columns {list(label_columns)}", first_line, bad)
    return numbers, "float", (), len(label_columns)


def weights(cells, first_line):
    """The weights of the samples."""
    numbers = [real(value) for value in cells]
    bad = [(i, repr(cells[i])) for i, number in enumerate(numbers) if number is None or number < 0]
    fail("Expected a weight of at least 0", first_line, bad)
    return numbers


def _lookup(values, class_names, num_classes):
    """Returns (function from a label to its number or None, the names of the classes, how many there are)."""
    if class_names is not None:
        index = {str(name): i for i, name in enumerate(class_names)}
        if num_classes not in (None, len(index)) or len(index) != len(list(class_names)):
            raise ValueError(f"Expected different `class_names`, as many as `num_classes`. Received: {class_names}")
        # A DataFrame with missing values turns 1 into 1.0.
        return (lambda v: index.get(str(v), index.get(str(integer(v))))), tuple(index), len(index)
    integers = [integer(v) for v in values]
    if None not in integers:
        return integer, (), _count(integers) if num_classes is None else num_classes
    if num_classes is not None:
        raise ValueError(f"Expected integers as labels for `num_classes`. Received: {values[integers.index(None)]!r}")
    if None not in map(real, values):
        raise ValueError(
            f"Expected labels that are names, or integers. Received: {values[integers.index(None)]!r}. "
            "labels='float' takes numbers to predict, and `class_names` says that they are names"
        )
    index = {name: i for i, name in enumerate(sorted({str(v) for v in values}))}
    return (lambda v: index.get(str(v))), tuple(index), len(index)


def _count(integers):
    """How many classes there are, from the labels alone."""
    found = sorted({i for i in integers if i >= 0})
    count = found[-1] + 1 if found else 0
    how = "`num_classes` says how many classes there are, and `class_names` which labels stand for them, in order"
    if count > 2 * len(found):
        raise ValueError(
            f"Expected integers counted from 0 as labels. Received: {len(found)} different ones, {found[:5]} ... up to "
            f"{found[-1]}, which would be {count} classes. {how}"
        )
    if len(found) < count:
        absent = np.setdiff1d(np.arange(count), found).tolist()
        logger.warning("No image is labelled with %s of the %d classes 0 to %d. %s", absent[:10], count, count - 1, how)
    return count


def _numbers(cells, lookup, count, first_line):
    """The numbers of each row's labels."""
    rows = [[lookup(value) for value in cell] for cell in cells]
    bad = [
        (i, repr(value))
        for i, (row, cell) in enumerate(zip(rows, cells, strict=True))
        for number, value in zip(row, cell, strict=True)
        if number is None or not 0 <= number < count
    ]
    fail(f"Expected labels of one of the {count} classes", first_line, bad)
    return rows
