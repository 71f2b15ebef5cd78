from pathlib import Path

from keras_vit.data.folder import from_directory
from keras_vit.data.load import load

TEST_FOLDERS = ("test", "val", "validation")


def splits(data, *, data_dir=None, train_split="train", test_split="test", holdout=0.2):
    """Finds the training and the test images of a folder or of a TFDS dataset.

    Args:
        data: Path of a folder with a folder of images for each class; or of one with `train` and `test`, `val` or
            `validation`, each of which is such a folder; or a name as `keras_vit.data.load` takes it.
        data_dir: The folder that holds TFDS datasets; None: the default of TFDS.
        train_split: What to train on, of a TFDS dataset.
        test_split: What to test on, of a TFDS dataset.
        holdout: Float in (0, 1), the share of each class that is kept for testing where a folder has no test images;
            the option `seed` says which.

    Returns:
        A function of "train" or "test" and the options of `keras_vit.data.pipeline`, which returns the dataset.

    Raises:
        FileNotFoundError: If there is neither such a folder nor such a dataset.

    Example:

    >>> import keras_vit.data
    >>> make = keras_vit.data.splits("vtab/dtd", data_dir="/nowhere", train_split="train800")
    >>> make("train", image_size=224)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    FileNotFoundError: Expected the dataset 'dtd' to be prepared in '/nowhere'. ...
    """
    path = Path(data)
    if path.is_dir():
        tests = [path / name for name in TEST_FOLDERS if (path / name).is_dir()]
        if (path / "train").is_dir() and tests:
            folders = {"train": path / "train", "test": tests[0]}
            return lambda part, **options: from_directory(folders[part], **options)
        subsets = {"train": "training", "test": "validation"}
        return lambda part, **options: from_directory(path, validation_split=holdout, subset=subsets[part], **options)
    if path.is_absolute() or str(data).startswith("."):
        raise FileNotFoundError(f"Expected `data` to be a folder or the name of a TFDS dataset. Received: {data!r}")
    names = {"train": train_split, "test": test_split}
    return lambda part, **options: load(data, names[part], data_dir=data_dir, **options)
