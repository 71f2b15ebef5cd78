import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from keras_vit import arguments
from keras_vit.data.folder import (
    TEST_FOLDERS,
    TRAIN_FOLDERS,
    folders_in,
    from_directory,
    held_out,
    read_folder,
    validation_options,
)
from keras_vit.data.frame import from_dataframe
from keras_vit.data.source import logger, tf
from keras_vit.data.tfds import load
from keras_vit.files import describe_path
from keras_vit.images.table import TableRows, empty, fail, read_columns, real


def folds(
    frame: str | os.PathLike | Mapping[str, Sequence], k: int, *, label_column: str | None = "label", seed: int = 0
) -> Iterator[tuple[dict, dict]]:
    """Splits a table for k-fold cross-validation. Yields k pairs of tables (training, validation), as dicts of columns.

    Pass each table to `from_dataframe`, with `directory` if paths are relative. Each class has the same label in all
    folds, even if a fold has no images of a rare class.

    Args:
        frame: A table, as for `keras_vit.data.from_dataframe`.
        k: Integer from 2 to the number of rows. Other values raise a ValueError.
        label_column: The column of classes or regression targets. Its values are distributed evenly over the folds.
            None: random folds.
        seed: Integer of at least 0; the same seed makes the same folds.

    Example:
    >>> import keras_vit.data
    >>> table = {"path": ["0.jpg", "1.jpg", "2.jpg", "3.jpg"], "label": ["cat", "dog", "dog", "cat"]}
    >>> [sorted(validation["label"]) for _, validation in keras_vit.data.folds(table, 2)]
    [['cat', 'dog'], ['cat', 'dog']]
    """
    columns, lines, _ = read_columns(frame)
    num_rows = len(next(iter(columns.values()), []))
    k = arguments.positive_int("k", k)
    if not 2 <= k <= num_rows:
        raise ValueError(f"Expected `k` to be an integer from 2 to {num_rows}, the number of rows. Received: {k!r}")
    arguments.optional(arguments.text, "label_column", label_column)
    if label_column is not None and label_column not in list(columns):
        raise ValueError(f"Expected `label_column` to be one of {list(columns)}. Received: {label_column!r}")
    order = np.random.default_rng(arguments.non_negative_int("seed", seed)).permutation(num_rows)
    if label_column is not None:
        values = columns[label_column]
        numbers = [real(value) for value in values]
        values = np.array([str(value) for value in values] if None in numbers else numbers)
        _, kinds, counts = np.unique(values, return_inverse=True, return_counts=True)
        # If there are more different labels than half the number of rows, they are probably regression targets, which
        # are rarely equal. Do not warn in this case.
        if len(counts) <= num_rows // 2 and (rare := int((counts < k).sum())):
            logger.warning("%d of the %d labels have fewer rows than there are folds (%d)", rare, len(counts), k)
        order = order[np.argsort(kinds.reshape(-1)[order], kind="stable")]
    fold_of = np.empty(num_rows, int)
    # Neighbors in `order` have equal or similar labels, so put them into different folds.
    fold_of[order] = np.arange(num_rows) % k

    def rows(fold, inside):
        return TableRows(columns, lines, np.flatnonzero((fold_of == fold) == inside))

    return ((rows(fold, False), rows(fold, True)) for fold in range(k))


def splits(
    data: str | os.PathLike,
    *,
    data_dir: str | os.PathLike | None = None,
    train_split: str = "train",
    test_split: str = "test",
    holdout: float = 0.2,
    images: str | os.PathLike | None = None,
    path_column: str = "path",
    label_column: str = "label",
    extension: str = "",
) -> "Callable[..., tf.data.Dataset]":
    """Returns a function `make(part, **options)` that makes the dataset of a part, "train" or "test".

    The options are arguments of `keras_vit.data.pipeline`. Unless you pass `training`, test images are resized as in
    evaluation and keep their order, like the validation images of `from_directory`.

    Args:
        data: The path of a folder with one subfolder of images per class; the path of a folder that contains two such
            folders, `train` and `test` (or `val`, `valid`, `validation`); the path of a CSV file; or the name of a
            dataset for `keras_vit.data.load`.
        data_dir, train_split, test_split: The folder of TFDS datasets, and the TFDS splits for the parts "train" and
            "test". These arguments are used only if `data` is a name for `keras_vit.data.load`.
        holdout: Float in (0, 1), used if `data` is a CSV file or a folder without subfolders `train` and `test`. It is
            the share of each class's images to test on. The option `seed` of `make` determines the test images.
        images: The folder to which paths in the CSV file are relative; None: the CSV file's folder.
        path_column, label_column, extension: As in `keras_vit.data.from_dataframe`, for a CSV file.

    Raises:
        FileNotFoundError: If there is no such folder, file or dataset.
        ValueError: If a class of the folder `test` is missing in `train`, there is a folder `train` but no test folder,
            or an argument for CSV files is given with other data.

    Example:
    >>> import keras_vit.data
    >>> make = keras_vit.data.splits("vtab/dtd", data_dir="/nowhere", train_split="train800")
    >>> make("train", image_size=224)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    FileNotFoundError: There is no folder 'vtab/dtd'. As the name of a TFDS dataset: Expected the dataset 'dtd' ...
    """
    path = Path(arguments.path("data", data))
    is_table = path.suffix.lower() == ".csv"
    arguments.fraction("holdout", holdout)
    arguments.each(arguments.path, optional=True, data_dir=data_dir, images=images)
    columns = {"path_column": path_column, "label_column": label_column, "extension": extension}
    arguments.each(arguments.text, train_split=train_split, test_split=test_split, **columns)
    of_tables = {"images": images, **columns}
    defaults = {"images": None, "path_column": "path", "label_column": "label", "extension": ""}
    if not is_table and (useless := [name for name, value in of_tables.items() if value != defaults[name]]):
        received = ", ".join(f"{name}={str(of_tables[name])!r}" for name in useless)
        raise ValueError(f"Expected `{useless[0]}` only with a CSV file. Received: {received} with {str(data)!r}")
    if path.is_dir():
        return _checked(_splits_from_folder(path, holdout))
    if path.is_file() and is_table:
        return _checked(_splits_from_table(path, path.parent if images is None else images, holdout, columns))
    if path.exists() or path.is_absolute() or str(data).startswith(".") or is_table:
        raise FileNotFoundError(
            f"Expected `data` to be a folder, a CSV file or the name of a TFDS dataset. Received: {describe_path(data)}"
        )

    def make(part, **options):
        try:
            split = {"train": train_split, "test": test_split}[part]
            return load(str(data), split, data_dir=data_dir, **{"training": part == "train", **options})
        except FileNotFoundError as error:
            raise FileNotFoundError(
                f"There is no folder {str(data)!r}. As the name of a TFDS dataset: {error}"
            ) from error

    return _checked(make)


def _checked(make):
    def checked(part, **options):
        is_test = arguments.choice("part", part, ("train", "test")) == "test"
        return make(part, **(validation_options(options) if is_test else options))

    return checked


def _splits_from_folder(path, holdout):
    found = {name.lower(): path / name for name in folders_in(path)}
    trains, tests = ([found[name] for name in names if name in found] for names in (TRAIN_FOLDERS, TEST_FOLDERS))
    # A test folder without class folders has images without labels.
    tests = [folder for folder in tests if folders_in(folder)]
    if trains and tests:
        return _two_folders(trains[0], tests[0])
    if trains:
        raise ValueError(
            f"Expected a folder {' or '.join(TEST_FOLDERS)} of class folders next to {str(trains[0])!r}. "
            f"Received: {sorted(entry.name for entry in path.iterdir())[:10]}. If there is none, pass "
            f"{str(trains[0])!r} itself: `holdout` is then the share of its images for testing"
        )
    subsets = {"train": "training", "test": "validation"}
    return lambda part, **options: from_directory(path, validation_split=holdout, subset=subsets[part], **options)


def _two_folders(train, test):
    names, found = folders_in(train), folders_in(test)
    if others := sorted(set(found) - set(names)):
        raise ValueError(
            f"Expected {str(test)!r} to have only the classes of {str(train)!r}, {names[:10]}. Received: {others}"
        )
    if missing := sorted(set(names) - set(found)):
        logger.warning(
            "%r has no images of %d of the %d classes: %s", str(test), len(missing), len(names), missing[:10]
        )

    def make(part, class_names=None, **options):
        folder = {"train": train, "test": test}[part]
        return read_folder(folder, class_names=class_names or names, may_lack=part == "test", **options)

    return make


def _splits_from_table(path, directory, holdout, columns):
    (table, lines, _), column = read_columns(path), columns["label_column"]
    if column not in table:
        expected = f"Expected the column {column!r} of labels in {str(path)!r}"
        raise ValueError(f"{expected}. Received: {list(table)}. Set its name with `label_column` (--label-column)")
    fail("Expected a label", lines, [(i, repr(cell)) for i, cell in enumerate(table[column]) if empty(cell)])
    names, labels = np.unique(table[column], return_inverse=True)
    if alone := names[np.bincount(labels) == 1].tolist():
        raise ValueError(f"Expected at least two images per class to split. Received: only one image of {alone[:10]}")

    def make(part, seed=0, **options):
        chosen = np.flatnonzero(held_out(labels, names, holdout, seed) == (part == "test"))
        return from_dataframe(TableRows(table, lines, chosen), directory=directory, seed=seed, **{**columns, **options})

    return make
