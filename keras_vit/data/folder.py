import os
import shutil
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from keras_vit import arguments
from keras_vit.data.augment import augmentation
from keras_vit.data.pipelines import pipeline
from keras_vit.data.source import file_source, logger, tf
from keras_vit.files import describe_path, replacing
from keras_vit.images.files import read_pixels, visible_files

# A folder is already split if it has a subfolder with a name in TRAIN_FOLDERS and one with a name in TEST_FOLDERS.
TRAIN_FOLDERS = ("train", "training")
TEST_FOLDERS = ("test", "val", "valid", "validation")
CLUTTER = ("thumbs.db", "desktop.ini")
# Options of `pipeline` that do not apply to validation images.
TRAINING = ("augment", "crop", "scale", "resize_size", "flip", "shuffle", "repeat", "skip_batches", "num_batches")


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

    All files are read as images, whatever their names. Only hidden files, `Thumbs.db` and `desktop.ini` are skipped.

    Args:
        path: The folder. With `labels="none"`, for prediction, it needs no class folders: all images in the folder and
            its subfolders are read, in the order of their paths.
        class_names: The names of the class folders in label order; None: all subfolders, sorted by name. To read
            validation images, pass the class names of the training data. If it names all subfolders, it may also name
            classes without a subfolder. The label of a class is its position in `class_names`.
        validation_split: Float in (0, 1), the share of each class's images to hold out for validation, at least one
            image per class. None uses all images.
        subset: "training", "validation" or "both" (returns two datasets). Validation images are resized as in
            evaluation and keep their order, whatever `augment`, `crop`, `flip`, `shuffle` and `repeat` are. Their
            labels have the same kind as the labels of the training images. If you pass `training`, all options apply to
            both subsets without change.
        seed: Integer of at least 0, for the split, the order and the augmentation.
        **options: Other arguments of `keras_vit.data.pipeline`. Its documentation also describes the dataset that is
            returned. This dataset has two more attributes: the lists `file_paths` and `file_labels`, sorted by label
            and then by path. `file_labels` is None if `labels` is "none".

    Raises:
        FileNotFoundError: If the folder does not exist.
        ValueError: If there are fewer than two classes, a class has too few images, or the folder is already split into
            subfolders such as "train" and "test".

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
    """Implements `from_directory`. If `may_lack` is True, a class may have no images, but it keeps its label."""
    path = Path(arguments.path("path", path))
    if not path.is_dir():
        expected = "`path` to be a folder with one subfolder for each class"
        raise FileNotFoundError(f"Expected {expected}. Received: {describe_path(path)}")
    arguments.choice("subset", subset, ("training", "validation", "both"))
    if validation_split is None and subset != "training":
        raise ValueError(f"Expected a `validation_split` for subset={subset!r}. Received: None")
    arguments.optional(arguments.fraction, "validation_split", validation_split)
    labelled = options.get("labels") != "none"
    if labelled:
        names = _class_folders(path, class_names, may_lack)
        groups = {name: image_files_in(path / name) for name in names}
        empty = [name for name, files in groups.items() if not files and (path / name).is_dir()]
        if empty and not may_lack:
            raise ValueError(f"Expected images of each class. Received: none in {str(path / empty[0])!r}")
    elif class_names is not None:
        raise ValueError(f"Expected no `class_names` with labels='none'. Received: {list(class_names)[:10]}")
    else:
        names, groups = [], _unlabelled(path, validation_split)
        options = {"training": False, **options}
    files = [(file, label) for label, members in enumerate(groups.values()) for file in members]
    if not files:
        raise ValueError(f"Expected images in {str(path)!r}. Received: none{f' of {names[:10]}' if names else ''}")
    held = held_out([label for _, label in files], list(groups), validation_split, seed)

    def part(for_validation):
        paths, labels = zip(*(files[i] for i in np.flatnonzero(held == for_validation)), strict=True)
        source = file_source(paths, labels, "int" if labelled else None, names, len(names))
        given = validation_options(options) if for_validation else options
        data = pipeline(source, seed=seed, **given)
        data.file_paths, data.file_labels = list(paths), list(labels) if labelled else None
        return data

    return (part(False), part(True)) if subset == "both" else part(subset == "validation")


def validation_options(options):
    """Returns the options for validation images. If `options` lacks `training`, leaves out `TRAINING`."""
    if "training" in options:
        return options
    labels = options.get("labels") or ("one_hot" if augmentation(options.get("augment")).mixes else None)
    kept = {name: value for name, value in options.items() if name not in TRAINING}
    return {**kept, "labels": labels, "training": False}


def folders_in(path):
    """Returns the sorted names of a folder's subfolders, without hidden folders."""
    return sorted(entry.name for entry in Path(path).iterdir() if entry.is_dir() and not entry.name.startswith("."))


def _class_folders(path, class_names, may_lack):
    found = folders_in(path)
    names = found if class_names is None else [str(name) for name in arguments.several("class_names", class_names)]
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"Expected `class_names` without repetition. Received twice: {repeated}")
    unknown = sorted(set(names) - set(found))
    if unknown and not may_lack and (set(found) - set(names) or len(unknown) == len(names)):
        raise ValueError(f"Expected a folder for each of `class_names` in {str(path)!r}. There is none for: {unknown}")
    parts = [[name for name in found if name.lower() in of] for of in (TRAIN_FOLDERS, TEST_FOLDERS)]
    if class_names is None and all(parts):
        raise ValueError(
            f"Expected a folder of images for each class in {str(path)!r}. Received: a dataset that is "
            f"already split into {parts[0] + parts[1]}. Pass {str(path / parts[0][0])!r}, or use keras_vit.data.splits "
            "for both folders. If these folders are classes, pass `class_names`"
        )
    if len(names) < 2:
        within = [str(path / name) for name in names if len(folders_in(path / name)) > 1]
        advice = f"Pass {within[0]!r}, which has such folders" if within else "Without classes, pass labels='none'"
        raise ValueError(
            f"Expected the folders of at least two classes in {str(path)!r}, such as {str(path / 'cat')!r} and "
            f"{str(path / 'dog')!r}. Received: {len(image_files_in(path))} files, and the folders {names}. {advice}"
        )
    return names


def _unlabelled(path, share):
    """Returns {group: files}. If a `share` is held out, each class folder is a group. If not, all files are one group.

    The same images are then held out as with labels. The group None contains the files outside of the class folders.
    """
    files = image_files_in(path)
    groups = {name: image_files_in(path / name) for name in folders_in(path)} if share else {}
    if len(groups) < 2 or any(_held_count(group, share) >= len(group) for group in groups.values()):
        return {str(path): files}
    return {**groups, None: sorted(set(files).difference(*groups.values()))}


def image_files_in(folder):
    """Returns the sorted paths of all files in a folder and its subfolders, except hidden files and `CLUTTER`."""
    return [str(path) for path in visible_files(folder) if path.name.lower() not in CLUTTER]


def _held_count(places, share):
    return max(1, round(len(places) * share))


def held_out(labels, names, share, seed):
    """Returns a bool array, True for the images to hold out: a random `share` of the images of each class."""
    rng, held = np.random.default_rng(arguments.non_negative_int("seed", seed)), np.zeros(len(labels), bool)
    by_class = np.split(np.argsort(labels, kind="stable"), np.cumsum(np.bincount(labels, minlength=len(names)))[:-1])
    for name, places in zip(names, by_class, strict=True) if share else ():
        count = _held_count(places, share)
        if name is None and count >= len(places):
            continue
        if count >= len(places):
            raise ValueError(f"Expected enough images of each class to split. Received: {len(places)} of {str(name)!r}")
        held[rng.permutation(places)[:count]] = True
    return held


def resize_folder(
    path: str | os.PathLike, out: str | os.PathLike, *, shorter_side: int = 256, quality: int = 95
) -> dict[str, str]:
    """Copies a folder of images at a lower resolution, so that decoding takes less time in each epoch.

    The copy has the same subfolders. If the shorter side of an image is longer than `shorter_side`, the image is
    reduced to `shorter_side` with Pillow's bicubic filter and written as RGB JPEG. If the name of such an image does
    not end with .jpg or .jpeg, ".jpg" is appended. Smaller images are copied without changes. Files that already
    exist in `out` are kept, so the same call continues an interrupted copy. Files that cannot be decoded are left out
    and listed in a warning. If a random crop of a reduced image is smaller than the model's input, the crop is less
    sharp than the same crop of the original.

    Args:
        path: The folder of images. It may have any subfolders.
        out: The folder of the copy.
        shorter_side: Integer, in pixels.
        quality: Integer from 1 to 100, the quality of the JPEGs.

    Returns:
        {file: error} of the files that were left out.

    Raises:
        FileNotFoundError: If the folder does not exist.
        ValueError: If an argument is out of range, `out` is `path` or a folder in it, or copies have the same name.

    Example:
    >>> import keras_vit.data, keras, pathlib, tempfile
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> (folder / "photos" / "cat").mkdir(parents=True)
    >>> keras.utils.save_img(folder / "photos" / "cat" / "0.png", np.zeros((300, 400, 3)))
    >>> keras_vit.data.resize_folder(folder / "photos", folder / "small", shorter_side=150)
    {}
    >>> keras.utils.load_img(folder / "small" / "cat" / "0.png.jpg").size
    (200, 150)
    """
    path, out = Path(arguments.path("path", path)), Path(arguments.path("out", out))
    arguments.positive_int("shorter_side", shorter_side)
    arguments.positive_int("quality", quality, 100)
    if not path.is_dir():
        raise FileNotFoundError(f"Expected `path` to be a folder of images. Received: {str(path)!r}")
    if out.resolve().is_relative_to(path.resolve()):
        raise arguments.invalid("out", f"a folder outside {str(path)!r}", str(out))

    from PIL import Image

    files = image_files_in(path)
    if clash := {_jpeg(file) for file in files if _jpeg(file) != file} & set(files):
        raise ValueError(f"Expected no file whose name is another file's name + .jpg. Received: {sorted(clash)[:10]}")

    def write(file):
        """Writes the copy of a file. Returns None, or the error message if the file cannot be decoded."""
        copy, jpeg = (out / Path(name).relative_to(path) for name in (file, _jpeg(file)))
        if copy.exists() or jpeg.exists():
            return None
        try:
            image = read_pixels(file)
        except ValueError as error:
            return str(error)
        copy.parent.mkdir(parents=True, exist_ok=True)
        if min(image.shape[:2]) <= shorter_side:
            with replacing(copy) as draft:
                shutil.copyfile(file, draft)
        else:
            factor = shorter_side / min(image.shape[:2])
            size = [round(side * factor) for side in image.shape[1::-1]]
            with replacing(jpeg) as draft:
                Image.fromarray(image).resize(size, Image.Resampling.BICUBIC).save(draft, "JPEG", quality=quality)
        return None

    # Use threads, because Pillow releases Python's global lock while it decodes, resizes and encodes.
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        errors = {file: error for file, error in zip(files, pool.map(write, files), strict=True) if error}
    if errors:
        listed = "".join(f"\n  {error}" for error in list(errors.values())[:20])
        logger.warning("%d of %d files were left out, since they cannot be decoded:%s", len(errors), len(files), listed)
    return errors


def _jpeg(file):
    """Returns the name of a file's reduced copy."""
    return file if file.lower().endswith((".jpg", ".jpeg")) else f"{file}.jpg"
