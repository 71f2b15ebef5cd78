import numpy as np

from keras_vit.data.broken import logger
from keras_vit.data.table import columns_of, real


def folds(frame, k, *, label_column="label", seed=0):
    """Splits a table k times into rows to train on and rows to validate on, each row once in a validation.

    Each fold has its share of each label; of numbers to predict, its share of the small and the large ones.

    Args:
        frame: A table, as `keras_vit.data.from_dataframe` takes it.
        k: Integer of at least 2, the number of folds.
        label_column: The column whose values are spread over the folds; None: the rows are spread at random.
        seed: Integer; the same seed splits in the same way.

    Yields:
        (training, validation): two dicts of columns, for `from_dataframe`. Relative paths need its `directory`, since
        a dict has no folder; and the validation `class_names=data.class_names` of the training, since a rare class may
        be missing in one of the two.

    Raises:
        ValueError: If `k` is below 2 or above the number of rows, or the column is missing.

    Example:

    >>> import keras_vit.data
    >>> table = {"path": ["0.jpg", "1.jpg", "2.jpg", "3.jpg"], "label": ["cat", "dog", "dog", "cat"]}
    >>> [sorted(validation["label"]) for _, validation in keras_vit.data.folds(table, 2)]
    [['cat', 'dog'], ['cat', 'dog']]
    """
    columns, _, _ = columns_of(frame)
    num_rows = len(next(iter(columns.values()), []))
    if isinstance(k, bool) or not isinstance(k, int) or not 2 <= k <= num_rows:
        raise ValueError(f"Expected `k` to be an integer from 2 to the {num_rows} rows. Received: {k!r}")
    if label_column is not None and label_column not in columns:
        raise ValueError(f"Expected `label_column` to be one of {list(columns)}. Received: {label_column!r}")
    order = np.random.default_rng(seed).permutation(num_rows)
    if label_column is not None:
        values = columns[label_column]
        numbers = [real(value) for value in values]
        values = np.array([str(value) for value in values] if None in numbers else numbers)
        _, kinds, counts = np.unique(values, return_inverse=True, return_counts=True)
        # Each row for itself where the values are many, as numbers to predict are.
        if len(counts) <= num_rows // 2 and (rare := int((counts < k).sum())):
            logger.warning("%d of the %d labels have fewer rows than the %d folds", rare, len(counts), k)
        order = order[np.argsort(kinds.reshape(-1)[order], kind="stable")]
    fold_of = np.empty(num_rows, int)
    # Dealt like cards, so that neighbours, which have the same label, come into different folds.
    fold_of[order] = np.arange(num_rows) % k
    return ((_rows(columns, fold_of != fold), _rows(columns, fold_of == fold)) for fold in range(k))


def _rows(columns, chosen):
    return {
        name: [value for value, take in zip(column, chosen, strict=True) if take] for name, column in columns.items()
    }
