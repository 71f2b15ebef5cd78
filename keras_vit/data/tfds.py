import dataclasses
import os
from collections.abc import Callable, Mapping
from typing import Any

from keras_vit import arguments
from keras_vit.data.pipelines import pipeline
from keras_vit.data.source import Source, tf


@dataclasses.dataclass(frozen=True)
class Task:
    """A task of VTAB-1k, with 800 training images, 200 validation images and the full test set."""

    dataset: str
    group: str
    num_classes: int
    label: str | Callable = "label"
    validation: str | int = "validation"  # a TFDS split; or p for the 200 images of "train" that start at p %
    test: str | tuple[int, int] = "test"  # a TFDS split; or (p, q) for the images of "train" that start at p % + q %
    gain: int = 1  # the factor that scales pixel values to 0..255

    def split(self, name: str, counts: Mapping[str, int]) -> str:
        """Returns the TFDS split for a name such as "train800". `counts` are the sizes of the TFDS splits."""
        if isinstance(self.validation, int):
            start = self.validation * counts["train"] // 100
            validation = f"train[{start}:{start + 200}]"
        else:
            validation = f"{self.validation}[:200]"
        test = self.test
        if isinstance(test, tuple):
            test = f"train[{sum(percent * counts['train'] // 100 for percent in test)}:]"
        splits = {"train800": "train[:800]", "val200": validation, "test": test}
        splits["train800val200"] = f"{splits['train800']}+{validation}"
        if name not in splits:
            raise ValueError(f"Expected `split` of a VTAB-1k task to be one of {sorted(splits)}. Received: {name!r}")
        return splits[name]


def _clevr_distance(record):
    nearest = tf.reduce_min(record["objects"]["pixel_coords"][:, 2])
    return tf.reduce_sum(tf.cast(nearest > [8.0, 8.5, 9.0, 9.5, 10.0], "int32"))


def _kitti_distance(record):
    # Use the nearest car, van or truck. The last class is for images without these vehicles.
    depth = tf.boolean_mask(record["objects"]["location"][:, 2], record["objects"]["type"] < 3)
    nearest = tf.reduce_min(tf.concat([depth, [1000.0]], 0))
    return tf.reduce_sum(tf.cast(nearest > [8.0, 20.0, 999.0], "int32"))


def _dsprites(feature, num_values):
    """Returns a function that divides the `num_values` values of a record's `feature` into 16 classes."""
    return lambda record: record[feature] * 16 // num_values


# The names of the tasks are as in big_vision.
VTAB = {
    "caltech101": Task("caltech101", "natural", 102, validation=90),
    "cifar100": Task("cifar100", "natural", 100, validation=90),
    "dtd": Task("dtd", "natural", 47),
    "oxford_flowers102": Task("oxford_flowers102", "natural", 102),
    "oxford_iiit_pet": Task("oxford_iiit_pet", "natural", 37, validation=90),
    "sun397": Task("sun397/tfds", "natural", 397),
    "svhn_cropped": Task("svhn_cropped", "natural", 10, validation=90),
    "diabetic_retinopathy": Task("diabetic_retinopathy_detection/btgraham-300", "specialized", 5),
    "eurosat": Task("eurosat/rgb", "specialized", 10, validation=60, test=(60, 20)),
    "patch_camelyon": Task("patch_camelyon", "specialized", 2),
    "resisc45": Task("resisc45", "specialized", 45, validation=60, test=(60, 20)),
    "clevr_closest": Task("clevr", "structured", 6, _clevr_distance, validation=90, test="validation"),
    # Scenes have 3 to 10 objects, so class 0 has 3 objects.
    "clevr_count": Task("clevr", "structured", 8, lambda x: tf.size(x["objects"]["size"]) - 3, 90, "validation"),
    "dmlab": Task("dmlab", "structured", 6),
    "dsprites_location": Task("dsprites", "structured", 16, _dsprites("label_x_position", 32), 80, (80, 10), 255),
    "dsprites_orientation": Task("dsprites", "structured", 16, _dsprites("label_orientation", 40), 80, (80, 10), 255),
    "kitti": Task("kitti", "structured", 4, _kitti_distance),
    "smallnorb_azimuth": Task("smallnorb", "structured", 18, "label_azimuth", "test", "test[50%:]"),
    "smallnorb_elevation": Task("smallnorb", "structured", 9, "label_elevation", "test", "test[50%:]"),
}
"""The 19 tasks of VTAB by name; `load("vtab/...")` reads one."""


def load(
    name: str,
    split: str,
    *,
    data_dir: str | os.PathLike | None = None,
    **options: Any,
) -> "tf.data.Dataset":
    """Makes a dataset of (images, labels) from a TFDS dataset that is already prepared on this machine.

    This function downloads nothing.

    Args:
        name: A TFDS name, such as "cifar10" or "imagenet2012:5.1.0", or a VTAB-1k task, such as "vtab/dtd" (see
            `VTAB`).
        split: A TFDS split, such as "train[:90%]"; for a VTAB-1k task "train800", "val200", "train800val200" or "test".
        data_dir: The folder of TFDS datasets; None: the TFDS default.
        **options: Other arguments of `keras_vit.data.pipeline`. Its documentation also describes the dataset that is
            returned. `training` is True by default if the split begins with "train", else False.

    Raises:
        ImportError: If tensorflow-datasets is not installed.
        FileNotFoundError: If the dataset is not prepared.
        ValueError: If the dataset has no such split, no images, or no labels.

    Example:
    >>> import keras_vit.data
    >>> keras_vit.data.load("vtab/dtd", "train800", data_dir="/nowhere")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    FileNotFoundError: Expected the dataset 'dtd' to be prepared in '/nowhere'. ...

    Reference: VTAB-1k, arXiv 1910.04867. The splits are from the authors' code, google-research/task_adaptation. The
    splits select images by position, so another version of a TFDS dataset may give other images.
    """
    arguments.each(arguments.text, name=name, split=split)
    arguments.optional(arguments.path, "data_dir", data_dir)
    # If TensorFlow is missing, this raises an error with the command that installs it.
    _ = tf.data
    try:
        import tensorflow_datasets as tfds
    except ImportError as error:
        packages = "tensorflow-datasets importlib_resources"
        raise ImportError(f"`keras_vit.data.load` needs tensorflow-datasets: pip install {packages}") from error
    task = VTAB.get(name.removeprefix("vtab/")) if name.startswith("vtab/") else Task(name, "", 0)
    if task is None:
        raise ValueError(f"Expected a task of VTAB-1k, one of {', '.join(VTAB)}. Received: {name!r}")
    builder = _builder(tfds, task.dataset, data_dir)
    counts = {key: value.num_examples for key, value in builder.info.splits.items()}
    features = builder.info.features
    tfds_split = task.split(split, counts) if name.startswith("vtab/") else split
    if "image" not in features or (isinstance(task.label, str) and task.label not in features):
        raise ValueError(f"Expected features 'image' and {task.label!r} of {name!r}. Received: {list(features)}")
    try:
        num_images = builder.info.splits[tfds_split].num_examples
    except (AssertionError, KeyError, ValueError) as error:
        raise ValueError(f"Expected a split of {name!r} or a part of one: {counts}. Received: {split!r}") from error

    decoders = {"image": tfds.decode.SkipDecoding()}
    if isinstance(task.label, str):
        decoders = tfds.decode.PartialDecoding({"image": True, task.label: True}, decoders)
    config = tfds.ReadConfig(add_tfds_id=True, try_autocache=False)
    records = builder.as_dataset(split=tfds_split, decoders=decoders, read_config=config, shuffle_files=False)

    def task_record(record):
        label = task.label(record) if callable(task.label) else record[task.label]
        return {"name": record["tfds_id"], "image": _scaled(record["image"], task.gain), "label": label}

    records = records.map(task_record)
    feature = None if callable(task.label) else features[task.label]
    class_names, num_classes = getattr(feature, "names", ()), task.num_classes or getattr(feature, "num_classes", None)
    _check(records, name, split, num_classes)
    source = Source(records, num_images, False, "int", tuple(class_names), num_classes)
    return pipeline(source, **{"training": str(split).startswith("train"), **options})


def _builder(tfds, dataset, data_dir):
    cause = None
    try:
        builder = tfds.builder(dataset, data_dir=data_dir)
        if builder.info.splits and builder.is_prepared():
            return builder
    except (AssertionError, OSError, ValueError, tfds.core.DatasetNotFoundError) as error:
        cause = error
    folder = str(data_dir or tfds.core.constants.DATA_DIR)
    raise FileNotFoundError(
        f"Expected the dataset {dataset!r} to be prepared in {folder!r}. `load` downloads nothing. On a machine with "
        f"a network, run tfds.builder({dataset!r}, data_dir={folder!r}).download_and_prepare(), and copy the folder."
        + (f" The error of TFDS: {str(cause).splitlines()[0]}" if cause and str(cause) else "")
    ) from cause


def _check(records, name, split, num_classes):
    """Raises an error if the first record of a split has no encoded image or no valid label."""
    record = next(iter(records.take(1)), None)
    if record is None:
        raise ValueError(f"Expected images in split {split!r} of {name!r}. Received: none")
    if record["image"].dtype != "string":
        raise ValueError(f"Expected encoded images in {name!r}. Received: {record['image'].dtype.name}")
    if num_classes is None or record["label"].shape != () or not 0 <= int(record["label"]) < num_classes:
        expected = f"Expected a label of 0 to {(num_classes or 0) - 1} for each image of split {split!r} of {name!r}"
        raise ValueError(f"{expected}. Received: {record['label'].numpy().tolist()}")


def _scaled(encoded, gain):
    """Multiplies the pixel values of an encoded image by `gain`."""
    return encoded if gain == 1 else tf.io.encode_png(tf.io.decode_png(encoded) * gain)
