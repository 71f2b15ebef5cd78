from pathlib import Path

from keras_vit.data.folder import from_directory
from keras_vit.data.load import load

TEST_FOLDERS = ("test", "val", "valid", "validation")


def splits(data, *, data_dir=None, train_split="train", test_split="test", holdout=0.2):
    """Finds the training and the test images of a folder or of a TFDS dataset.

    Args:
        data: Path of a folder with a folder of images for each class; or of one with `train` and `test`, `val`, `valid`
            or `validation`, the first of these that there is, each of which is such a folder; or a name as
            `keras_vit.data.load` takes it.
        data_dir: The folder that holds TFDS datasets; None: the default of TFDS.
        train_split: What to train on, of a TFDS dataset.
        test_split: What to test on, of a TFDS dataset.
        holdout: Float in (0, 1), the share of each class that is kept for testing where a folder has no test images;
            the option `seed` says which.

    Returns:
        A function of "train" or "test" and the options of `keras_vit.data.pipeline`, which returns the dataset.

    Raises:
        FileNotFoundError: If there is neither such a folder nor such a dataset.
        ValueError: If a folder has `train` and no images to test on.

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
    if path.is_dir():
        tests = [path / name for name in TEST_FOLDERS if (path / name).is_dir()]
        if (path / "train").is_dir():
            if not tests:
                raise ValueError(
                    f"Expected a folder {' or '.join(TEST_FOLDERS)} beside {str(path / 'train')!r}. "
                    f"Received: {sorted(entry.name for entry in path.iterdir())[:10]}"
                )
            folders = {"train": path / "train", "test": tests[0]}
            return lambda part, **options: from_directory(folders[part], **options)
        subsets = {"train": "training", "test": "validation"}
        return lambda part, **options: from_directory(path, validation_split=holdout, subset=subsets[part], **options)
    if path.exists() or path.is_absolute() or str(data).startswith("."):
        raise FileNotFoundError(
            f"Expected `data` to be a folder or the name of a TFDS dataset. Received: {str(data)!r}"
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
