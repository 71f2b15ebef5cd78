import csv
import json
import math
import numbers

import numpy as np

from keras_vit.files import replacing
from keras_vit.text_table import text_table


class ResultsTable:
    """Rows of named results, as text, JSON and CSV.

    `str(table)` is the text: aligned columns in the order in which their names first came.

    Example:

    >>> table = ResultsTable()
    >>> table.add(model="B/16", dataset="dtd", accuracy=0.75)
    >>> table.add(model="L/16", dataset="dtd", accuracy=0.8, seconds=30)
    >>> print(table)
    model  dataset  accuracy  seconds
    B/16   dtd        0.7500
    L/16   dtd        0.8000       30
    """

    def __init__(self):
        self.rows = []

    def add(self, **values):
        """Adds a row.

        Args:
            **values: The row's cells by column: strings, numbers, bools or None. NumPy's become Python's.

        Raises:
            ValueError: If a value is of another kind, or there is none.

        Example:

        >>> table = ResultsTable()
        >>> table.add(model="B/16", accuracy=np.float32(0.75))
        >>> table.rows
        [{'model': 'B/16', 'accuracy': 0.75}]
        """
        if not values:
            raise ValueError("Expected at least one value in a row. Received: none")
        self.rows.append({name: _plain(name, value) for name, value in values.items()})

    @property
    def columns(self):
        """The names of all columns, in the order in which they first came."""
        return list(dict.fromkeys(name for row in self.rows for name in row))

    def __str__(self):
        return text_table(self.columns, [[row.get(name) for name in self.columns] for row in self.rows])

    def to_json(self, path):
        """Writes a list of one object a row, whole or not at all; NaN and infinities as null.

        Args:
            path: Path of the file to write.

        Raises:
            FileNotFoundError: If its folder does not exist.

        Example:

        >>> table.to_json("results.json")  # doctest: +SKIP
        """
        rows = [{name: _finite(row.get(name)) for name in self.columns} for row in self.rows]
        with replacing(path) as temporary:
            temporary.write_text(json.dumps(rows, indent=1, allow_nan=False) + "\n", encoding="utf-8")

    def to_csv(self, path):
        """Writes a line of names and one a row, whole or not at all; what a row does not have stays empty.

        Args:
            path: Path of the file to write.

        Raises:
            FileNotFoundError: If its folder does not exist.

        Example:

        >>> table.to_csv("results.csv")  # doctest: +SKIP
        """
        with replacing(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, self.columns, lineterminator="\n")
            writer.writeheader()
            writer.writerows(self.rows)


def _plain(name, value):
    if value is None or isinstance(value, (str, bool)):
        return value
    if isinstance(value, np.bool_):
        return bool(value)
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value)
    raise ValueError(
        f"Invalid value received for `{name}`. Expected a string, a number, a bool or None. Received: {value!r}"
    )


def _finite(value):
    return None if isinstance(value, float) and not math.isfinite(value) else value
