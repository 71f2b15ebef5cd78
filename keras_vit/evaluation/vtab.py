import math
import numbers


def vtab_mean(accuracies, tasks):
    """Averages the accuracies of the tasks of the Visual Task Adaptation Benchmark, by group and over all.

    Args:
        accuracies: Mapping from the name of each task to its accuracy in [0, 1].
        tasks: Mapping from the names of all tasks to their groups: `keras_vit.data.VTAB`, whose values have the group
            as `.group`, or the groups as strings.

    Returns:
        Mapping from each group, in the order of `tasks`, to the mean over its tasks, and from "mean" to the mean over
        all tasks: each task counts the same, not each group.

    Raises:
        ValueError: If an accuracy is missing, is of no task of `tasks` or is no number in [0, 1].

    Example:

    >>> vtab_mean({"dtd": 0.5, "svhn": 0.7, "dmlab": 0.3}, {"dtd": "natural", "svhn": "natural", "dmlab": "structured"})
    {'natural': 0.6, 'structured': 0.3, 'mean': 0.5}

    Reference: [arXiv 1910.04867](https://arxiv.org/abs/1910.04867); over 19 tasks: `keras_vit.data.VTAB`.
    """
    groups = {name: task if isinstance(task, str) else task.group for name, task in tasks.items()}
    missing, unknown = sorted(set(groups) - set(accuracies)), sorted(set(accuracies) - set(groups))
    if missing or unknown:
        raise ValueError(
            f"Invalid value received for argument `accuracies`. Expected one for each of {len(groups)} tasks. "
            f"Received: none for {', '.join(missing) or 'no task'}; not among the tasks: {', '.join(unknown) or 'none'}"
        )
    for name, value in accuracies.items():
        if isinstance(value, bool) or not isinstance(value, numbers.Real) or not 0 <= value <= 1:
            raise ValueError(
                "Invalid value received for argument `accuracies`. Expected numbers in [0, 1]. "
                f"Received: {value!r} for {name!r}"
            )
    means = {group: _mean([accuracies[n] for n in groups if groups[n] == group]) for group in groups.values()}
    return {**means, "mean": _mean(accuracies.values())}


def _mean(values):
    return math.fsum(values) / len(values)
