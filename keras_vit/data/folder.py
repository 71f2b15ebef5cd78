import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from keras_vit import arguments
from keras_vit.data.pipelines import pipeline
from keras_vit.data.source import file_source, tf
from keras_vit.files import describe_path

# Folder names of a dataset that is already split.
TRAIN_FOLDERS = ("train", "training")
TEST_FOLDERS = ("test", "val", "valid", "validation")
CLUTTER = ("thumbs.db", "desktop.ini")


def from_directory(
    path: str | os.PathLike,
    *,
    class_names: Sequence[str] | None = None,
    validation_split: float | None = None,
    subset: str = "training",
    seed: int = 0,
    **options: Any,
) -> "tf.data.Dataset | tuple[tf.data.Dataset, tf.data.Dataset]":
    """Makes a dataset of (images, labels) from a folder with one subfolder of images per class.

    All files are read, with any name, except hidden files, `Thumbs.db` and `desktop.ini`.

    Args:
        path: The folder. With `labels="none"` it needs no class folders: all images in it are read in the order of
            their names, for prediction.
        class_names: The classes in label order; None: all subfolders, sorted by name. Pass the names of the training
            data for validation. A class without a folder keeps its label, if all folders belong to classes.
        validation_split: Float in (0, 1), the share of each class held out for validation, at least one image; None
            uses all images.
        subset: "training", "validation" or "both" (returns two datasets). Validation images are only resized and keep
            their order by default; `training` changes this.
        seed: Integer, for the split, the order and the augmentation.
        **options: Other arguments of `keras_vit.data.pipeline`, which describes the result. The result also has
            `file_paths` and `file_labels`, in the order of the folder.

    Raises:
        FileNotFoundError: If the folder does not exist.
        ValueError: If there are fewer than two classes, a class has too few images, or the subfolders are "train" and
            "test".

    Example:

    >>> import keras, keras_vit.data, pathlib, tempfile
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> for name in ("cat", "dog"):
    ...     (folder / name).mkdir()
    ...     keras.utils.save_img(folder / name / "0.png", np.zeros((20, 20, 3)))
    >>> data = keras_vit.data.from_directory(folder, image_size=16, batch_size=2)
    >>> data.class_names, next(iter(data))[0].shape
    (['cat', 'dog'], (2, 16, 16, 3))
    """
    return read_folder(
        path, class_names=class_names, validation_split=validation_split, subset=subset, seed=seed, **options
    )


def read_folder(path, *, class_names=None, validation_split=None, subset="training", seed=0, may_lack=False, **options):
    """Implements `from_directory`; with `may_lack`, a class may have no images and keeps its label."""
    path = Path(path)
    if not path.is_dir():
        expected = "`path` to be a folder with one for each class"
        raise FileNotFoundError(f"Expected {expected}. Received: {describe_path(path)}")
    arguments.choice("subset", subset, ("training", "validation", "both"))
    if validation_split is None and subset != "training":
        raise ValueError(f"Expected a `validation_split` for subset={subset!r}. Received: None")
    if validation_split is not None and not 0 < validation_split < 1:
        raise arguments.invalid("validation_split", "a number in (0, 1)", validation_split)
    labelled = options.get("labels") != "none"
    if labelled:
        names = _class_folders(path, class_names, may_lack)
        groups = {name: image_files_in(path / name) for name in names}
        empty = [name for name, files in groups.items() if not files and (path / name).is_dir()]
        if empty and not may_lack:
            raise ValueError(f"Expected images of each class. None found in {str(path / empty[0])!r}")
    elif class_names is not None:
        raise ValueError(f"Expected no `class_names` with labels='none'. Received: {list(class_names)[:10]}")
    else:
        names, groups = [], {str(path): image_files_in(path)}
        options = {"training": False, **options}
    files = [(file, label) for label, members in enumerate(groups.values()) for file in members]
    if not files:
        raise ValueError(f"Expected images in {str(path)!r}. None found{f' of {names[:10]}' if names else ''}")
    held = held_out([label for _, label in files], list(groups), validation_split, seed)

    def part(for_validation):
        paths, labels = zip(*(files[i] for i in np.flatnonzero(held == for_validation)), strict=True)
        source = file_source(paths, labels, "int" if labelled else None, names, len(names))
        data = pipeline(source, seed=seed, **{"training": not for_validation, **options})
        data.file_paths, data.file_labels = list(paths), list(labels) if labelled else None
        return data

    return (part(False), part(True)) if subset == "both" else part(subset == "validation")


def folders_in(path):
    """Returns the sorted names of a folder's subfolders, without hidden folders."""
    return sorted(entry.name for entry in Path(path).iterdir() if entry.is_dir() and not entry.name.startswith("."))


def _class_folders(path, class_names, may_lack):
    """Returns the class names of a folder."""
    found = folders_in(path)
    names = found if class_names is None else [str(name) for name in class_names]
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"Expected `class_names` without repetition. Received twice: {repeated}")
    unknown = sorted(set(names) - set(found))
    if unknown and not may_lack and (set(found) - set(names) or len(unknown) == len(names)):
        raise ValueError(f"Expected a folder for each of `class_names` in {str(path)!r}. There is none for: {unknown}")
    parts = [[name for name in found if name.lower() in of] for of in (TRAIN_FOLDERS, TEST_FOLDERS)]
    if class_names is None and all(parts):
        raise ValueError(
            f"Expected a folder of images for each class in {str(path)!r}. Received one that is split already, into "
            f"{parts[0] + parts[1]}: take {str(path / parts[0][0])!r}, or keras_vit.data.splits, which takes both. "
            "If they are classes, pass `class_names`"
        )
    if len(names) < 2:
        within = [str(path / name) for name in names if len(folders_in(path / name)) > 1]
        advice = f"{within[0]!r} has such folders" if within else "labels='none' takes images without classes"
        raise ValueError(
            f"Expected folders of two classes or more in {str(path)!r}, as {str(path / 'cat')!r} and "
            f"{str(path / 'dog')!r}. Received: {len(image_files_in(path))} files, and the folders {names}. {advice}"
        )
    return names


def image_files_in(folder):
    """Returns all files below a folder, sorted, without hidden files and files that Windows adds."""
    files = [file for file in folder.rglob("*") if file.is_file() and file.name.lower() not in CLUTTER]
    return sorted(str(f) for f in files if not any(part.startswith(".") for part in f.relative_to(folder).parts))


def held_out(labels, names, share, seed):
    """Returns a bool per image, True if it is in the held-out `share` of its class (None: no image is held out)."""
    rng, held = np.random.default_rng(seed), np.zeros(len(labels), bool)
    by_class = np.split(np.argsort(labels, kind="stable"), np.cumsum(np.bincount(labels, minlength=len(names)))[:-1])
    for name, places in zip(names, by_class, strict=True) if share else ():
        count = max(1, round(len(places) * share))
        if count >= len(places):
            raise ValueError(f"Expected enough images of each class to split. {str(name)!r} has {len(places)}")
        held[rng.permutation(places)[:count]] = True
    return held
