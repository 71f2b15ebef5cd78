from collections import defaultdict
from pathlib import Path

from keras_vit.data.broken import logger
from keras_vit.data.folder import TEST_FOLDERS, TRAIN_FOLDERS, folders_in, from_directory, held_out, read_folder
from keras_vit.data.frame import from_dataframe
from keras_vit.data.load import load
from keras_vit.data.table import columns_of


def splits(
    data,
    *,
    data_dir=None,
    train_split="train",
    test_split="test",
    holdout=0.2,
    images=None,
    path_column="path",
    label_column="label",
    extension="",
):
    """Finds the training and the test images of a folder, of a table or of a TFDS dataset.

    Args:
        data: Path of a folder with a folder of images for each class; or of one with `train` and `test`, `val`, `valid`
            or `validation`, the first of these that there is, each of which is such a folder; or of a CSV file with a
            row for each image; or a name as `keras_vit.data.load` takes it. The classes are those of `train`, whichever
            of them the other folder has.
        data_dir: The folder that holds TFDS datasets; None: the default of TFDS.
        train_split: What to train on, of a TFDS dataset.
        test_split: What to test on, of a TFDS dataset.
        holdout: Float in (0, 1), the share of each class that is kept for testing where a folder has no test images of
            its own, and of a CSV file; the option `seed` says which.
        images: The folder that the CSV file's paths start from; None: its own.
        path_column: The CSV file's column of paths.
        label_column: The CSV file's column of labels: names, or integers counted from 0.
        extension: What the CSV file's paths lack at their end, as ".jpg".

    Returns:
        A function of "train" or "test" and the options of `keras_vit.data.pipeline`, which returns the dataset.

    Raises:
        FileNotFoundError: If there is neither such a folder nor such a dataset.
        ValueError: If a folder has `train` and no images to test on, or has classes there that `train` has not, or
            there are `images` without a CSV file.

    Example:

    >>> import keras_vit.data
    >>> make = keras_vit.data.splits("vtab/dtd", data_dir="/nowhere", train_split="train800")
    >>> make("train", image_size=224)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    FileNotFoundError: There is no folder 'vtab/dtd'. As the name of a TFDS dataset: Expected the dataset 'dtd' ...
    """
    path = Path(data)
    if not 0 < holdout < 1:
        raise ValueError(f"Expected `holdout` in (0, 1). Received: {holdout!r}")
    if images is not None and path.suffix.lower() != ".csv":
        raise ValueError(f"Expected `images` with a CSV file alone. Received: {str(images)!r} with {str(data)!r}")
    if path.is_dir():
        found = {name.lower(): path / name for name in folders_in(path)}
        trains, tests = ([found[name] for name in names if name in found] for names in (TRAIN_FOLDERS, TEST_FOLDERS))
        if trains:
            if not tests:
                raise ValueError(
                    f"Expected a folder {' or '.join(TEST_FOLDERS)} beside {str(trains[0])!r}. "
                    f"Received: {sorted(entry.name for entry in path.iterdir())[:10]}"
                )
            return _two_folders(trains[0], tests[0])
        subsets = {"train": "training", "test": "validation"}
        return lambda part, **options: from_directory(path, validation_split=holdout, subset=subsets[part], **options)
    if path.is_file() and path.suffix.lower() == ".csv":
        columns = {"path_column": path_column, "label_column": label_column}
        columns |= {"extension": extension} if extension else {}
        return _of_table(path, path.parent if images is None else images, holdout, columns)
    if path.exists() or path.is_absolute() or str(data).startswith(".") or path.suffix.lower() == ".csv":
        raise FileNotFoundError(
            f"Expected `data` to be a folder, a CSV file or the name of a TFDS dataset. Received: {str(data)!r}"
        )
    names = {"train": train_split, "test": test_split}

    def make(part, **options):
        try:
            return load(str(data), names[part], data_dir=data_dir, **options)
        except FileNotFoundError as error:
            raise FileNotFoundError(
                f"There is no folder {str(data)!r}. As the name of a TFDS dataset: {error}"
            ) from error

    return make


def _of_table(path, directory, holdout, columns):
    """The parts of a CSV file's rows, of each class its share."""
    (table, *_), column = columns_of(path), columns["label_column"]
    if column not in table:
        raise ValueError(f"Expected the column {column!r} of labels in {str(path)!r}. Received: {list(table)}")
    rows = defaultdict(list)
    for row, label in enumerate(table[column]):
        rows[label].append(row)
    if alone := [label for label, members in rows.items() if len(members) == 1]:
        raise ValueError(f"Expected two images or more of each class to split. Received: one of {alone[:10]}")

    def make(part, seed=0, **options):
        flags = held_out({label: len(rows[label]) for label in sorted(rows)}, holdout, seed)
        by_label = (row for label in sorted(rows) for row in rows[label])
        wanted = sorted(row for row, held in zip(by_label, flags, strict=True) if held == (part == "test"))
        chosen = {name: [cells[row] for row in wanted] for name, cells in table.items()}
        return from_dataframe(chosen, directory=directory, seed=seed, **columns, **options)

    return make


def _two_folders(train, test):
    """Like `splits`, of a folder for each part."""
    names, found = folders_in(train), folders_in(test)
    if others := sorted(set(found) - set(names)):
        raise ValueError(f"Expected in {str(test)!r} the classes of {str(train)!r}, {names[:10]}. Received: {others}")
    if missing := sorted(set(names) - set(found)) if found else []:
        logger.warning(
            "%r has no images of %d of the %d classes: %s", str(test), len(missing), len(names), missing[:10]
        )

    def make(part, *, class_names=None, validation_split=None, subset="training", seed=0, **options):
        class_names = names if class_names is None else class_names
        folder = {"train": train, "test": test}[part]
        return read_folder(folder, class_names, validation_split, subset, seed, options, may_lack=part == "test")

    return make
