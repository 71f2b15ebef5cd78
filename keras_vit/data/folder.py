from pathlib import Path

import numpy as np

from keras_vit.data.pipeline import pipeline
from keras_vit.data.source import Source, tensorflow

# Folders with which a dataset is split already, and which are no classes where they stand side by side.
TRAIN_FOLDERS = ("train", "training")
TEST_FOLDERS = ("test", "val", "valid", "validation")
# What operating systems leave in folders; hidden files are passed over as well.
CLUTTER = {"thumbs.db", "desktop.ini"}


def from_directory(path, *, class_names=None, validation_split=None, subset="training", seed=0, **options):
    """Makes (images, labels) out of a folder that holds one folder of images for each class.

    All files count, whatever they are called; one that is no image is skipped and named after the epoch.

    Args:
        path: The folder. With `labels="none"` it needs no folders of classes: all images below it come in the order of
            their names, as for a prediction.
        class_names: The classes in the order of their labels; None: all the folders, sorted by name.
        validation_split: Float in (0, 1), the share of each class that is kept for validation; at least one image.
            None takes all images.
        subset: "training", "validation" or "both": what to return of a split. The validation images are only resized
            and keep their order, unless `training` says otherwise.
        seed: Integer, of the split, the order and the augmentation.
        **options: The other arguments of `keras_vit.data.pipeline`: `image_size`, `batch_size`, `policy`, ...

    Returns:
        A dataset, as `keras_vit.data.pipeline` describes it; two for "both". It also has `file_paths` and
        `file_labels`, in the order that the folder has.

    Raises:
        FileNotFoundError: If the folder does not exist.
        ValueError: If it has fewer than two classes, or a class has no images or too few to split, or it holds the
            folders of a split and not those of classes.

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
    return read_folder(path, class_names, validation_split, subset, seed, options)


def read_folder(path, class_names, validation_split, subset, seed, options, may_lack=False):
    """Does what `from_directory` does; a class may lack its images where `may_lack` says so, and keeps its label."""
    path = Path(path)
    if not path.is_dir():
        raise FileNotFoundError(f"Expected `path` to be a folder with a folder for each class. Received: {str(path)!r}")
    if subset not in ("training", "validation", "both"):
        raise ValueError(f"Expected `subset` to be 'training', 'validation' or 'both'. Received: {subset!r}")
    if validation_split is None and subset != "training":
        raise ValueError(f"Expected a `validation_split` for subset={subset!r}. Received: None")
    if validation_split is not None and not 0 < validation_split < 1:
        raise ValueError(f"Expected `validation_split` in (0, 1). Received: {validation_split!r}")
    if options.get("labels") == "none" and class_names is not None:
        raise ValueError(f"Expected no `class_names` with labels='none'. Received: {list(class_names)[:10]}")
    if options.get("labels") == "none":
        files, labels, kind, names = _members(path, path), None, None, []
        if not files:
            raise ValueError(f"Expected images in {str(path)!r}. There is none")
        groups = {str(path): len(files)}
        options = {"training": False, **options}
    else:
        files, labels, kind, names = [], [], "int", _class_folders(path, class_names, may_lack)
        groups = {}
        for label, name in enumerate(names):
            members = _members(path / name, path)
            if not members and not may_lack:
                raise ValueError(f"Expected images of each class. There is none in {str(path / name)!r}")
            groups[name] = len(members)
            files += members
            labels += [label] * len(members)
        if not files:
            raise ValueError(f"Expected images of the classes {names[:10]} in {str(path)!r}. There is none")
    validation = held_out(groups, validation_split, seed)
    check_arrays(files)

    def part(for_validation):
        chosen = [i for i, v in enumerate(validation) if v == for_validation]
        theirs = None if labels is None else [labels[i] for i in chosen]
        source = file_source([files[i] for i in chosen], theirs, kind, names, len(names))
        data = pipeline(source, seed=seed, **{"training": not for_validation, **options})
        data.file_paths, data.file_labels = [files[i] for i in chosen], theirs
        return data

    return (part(False), part(True)) if subset == "both" else part(subset == "validation")


def folders_in(path):
    """The names of the folders in a folder, sorted, without the hidden ones."""
    return sorted(entry.name for entry in Path(path).iterdir() if entry.is_dir() and not entry.name.startswith("."))


def _class_folders(path, class_names, may_lack):
    """The names of the classes that a folder holds."""
    found = folders_in(path)
    names = found if class_names is None else [str(name) for name in class_names]
    if (unknown := sorted(set(names) - set(found))) and not may_lack:
        raise ValueError(f"Expected a folder for each of `class_names` in {str(path)!r}. There is none for: {unknown}")
    parts = [[name for name in found if name.lower() in of] for of in (TRAIN_FOLDERS, TEST_FOLDERS)]
    if class_names is None and all(parts):
        raise ValueError(
            f"Expected a folder of images for each class in {str(path)!r}. Received one that is split already, into "
            f"{parts[0] + parts[1]}: take {str(path / parts[0][0])!r}, or keras_vit.data.splits, which takes both. "
            "`class_names` says that they are classes"
        )
    if len(names) < 2:
        raise ValueError(
            f"Expected folders of two classes or more in {str(path)!r}. Received: {names}. "
            "labels='none' takes images without classes"
        )
    return names


def _members(folder, path):
    """The files below a folder, in order."""
    return sorted(str(f) for f in folder.rglob("*") if f.is_file() and not _clutter(f.relative_to(path)))


def held_out(groups, share, seed):
    """Whether each image is held out, where that share is of each group of (name: number of images)."""
    rng, flags = np.random.default_rng(seed), []
    for name, size in groups.items():
        chosen = np.zeros(size, bool)
        if share is not None:
            count = max(1, round(size * share))
            if count >= size:
                raise ValueError(f"Expected two images or more of each class to split. {name!r} has {size}")
            chosen[rng.permutation(size)[:count]] = True
        flags += chosen.tolist()
    return flags


def file_source(files, labels, kind, class_names, num_classes, weights=None):
    """A `Source` of files, their labels and the weights of the samples."""
    tf = tensorflow()
    records = {"name": np.array(files, object), "image": np.array(files, object)}
    if kind is not None:
        records["label"] = np.array(labels, "int32" if kind == "int" else "float32")
    if weights is not None:
        records["weight"] = np.array(weights, "float32")
    records = tf.data.Dataset.from_tensor_slices(records)
    arrays = any(file.endswith(".npy") for file in files)
    return Source(records, len(files), True, kind, tuple(class_names), num_classes, arrays)


def check_arrays(files):
    """Raises if the `.npy` files have different numbers of channels, which no pipeline could make one of."""
    channels = {}
    for file in (f for f in files if f.endswith(".npy")):
        try:
            shape = np.load(file, mmap_mode="r", allow_pickle=False).shape
        except (OSError, ValueError, EOFError):
            # A broken file is skipped and named like any other.
            continue
        channels.setdefault(shape[-1] if len(shape) == 3 else f"no, of shape {shape}", file)
    if len(channels) > 1:
        received = ", ".join(f"{count} in {file!r}" for count, file in channels.items())
        raise ValueError(f"Expected arrays of one number of channels. Received: {received}")


def _clutter(path):
    return any(part.startswith(".") for part in path.parts) or path.name.lower() in CLUTTER
