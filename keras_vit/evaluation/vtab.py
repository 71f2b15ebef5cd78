import numbers
from collections.abc import Mapping
from statistics import fmean
from typing import Any

from keras_vit.evaluation.checks import invalid


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
