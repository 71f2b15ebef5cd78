import csv
import json
import math
import numbers
import os
from collections.abc import Mapping
from statistics import fmean
from typing import Any

import numpy as np

from keras_vit.console import text_table
from keras_vit.evaluation.checks import invalid
from keras_vit.files import replacing


class ResultsTable:
    """Rows of named results; `str(table)` is aligned text. Columns are in the order in which they were first added.

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

    def add(self, **values: Any) -> None:
        """Adds a row of strings, numbers (also NumPy's), bools or None by column; other values raise a ValueError."""
        if not values:
            raise ValueError("Expected at least one value in a row. Received: none")
        self.rows.append({name: _plain(name, value) for name, value in values.items()})

    @property
    def columns(self) -> list[str]:
        """The names of all columns."""
        return list(dict.fromkeys(name for row in self.rows for name in row))

    def __str__(self):
        return text_table(self.columns, [[row.get(name) for name in self.columns] for row in self.rows])

    def to_json(self, path: str | os.PathLike) -> None:
        """Writes a list with one object per row to a file in an existing folder; NaN and infinities become null."""
        rows = [{name: _finite(row.get(name)) for name in self.columns} for row in self.rows]
        with replacing(path) as temporary:
            temporary.write_text(json.dumps(rows, indent=1, allow_nan=False) + "\n", encoding="utf-8")

    def to_csv(self, path: str | os.PathLike) -> None:
        """Writes a header and one line per row to a file in an existing folder; missing values are empty."""
        with replacing(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, self.columns, lineterminator="\n")
            writer.writeheader()
            writer.writerows(self.rows)


def _plain(name, value):
    value = value.item() if isinstance(value, np.generic) else value
    if value is None or isinstance(value, (str, bool, int, float)):
        return value
    raise ValueError(
        f"Invalid value received for `{name}`. Expected a string, a number, a bool or None. Received: {value!r}"
    )


def _finite(value):
    return None if isinstance(value, float) and not math.isfinite(value) else value


def vtab_mean(accuracies: Mapping[str, float], tasks: Mapping[str, Any]) -> dict[str, float]:
    """Averages accuracies on the Visual Task Adaptation Benchmark, per group and as "mean" over all tasks.

    Args:
        accuracies: Mapping from the name of each task to its accuracy in [0, 1].
        tasks: Mapping from the names of all tasks to their groups, as strings, or `keras_vit.data.VTAB`.

    Raises:
        ValueError: If an accuracy is missing, is not a number in [0, 1], or is not for one of `tasks`.

    Example:

    >>> vtab_mean({"dtd": 0.5, "svhn": 0.7, "dmlab": 0.3}, {"dtd": "natural", "svhn": "natural", "dmlab": "structured"})
    {'natural': 0.6, 'structured': 0.3, 'mean': 0.5}

    Reference: [arXiv 1910.04867](https://arxiv.org/abs/1910.04867).
    """
    groups = {name: task if isinstance(task, str) else task.group for name, task in tasks.items()}
    missing, unknown = sorted(set(groups) - set(accuracies)), sorted(set(accuracies) - set(groups))
    if missing or unknown:
        received = f"missing: {', '.join(missing) or 'none'}; not in `tasks`: {', '.join(unknown) or 'none'}"
        raise invalid("accuracies", f"one for each of {len(groups)} tasks", received)
    for name, value in accuracies.items():
        if isinstance(value, bool) or not isinstance(value, numbers.Real) or not 0 <= value <= 1:
            raise invalid("accuracies", "numbers in [0, 1]", f"{value!r} for {name!r}")
    means = {group: fmean([accuracies[n] for n in groups if groups[n] == group]) for group in groups.values()}
    return {**means, "mean": fmean(accuracies.values())}
