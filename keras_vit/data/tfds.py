import os
from typing import Any

from keras_vit.data.pipelines import pipeline
from keras_vit.data.source import Source, tf
from keras_vit.data.vtab import VTAB, Task


def load(
    name: str,
    split: str,
    *,
    data_dir: str | os.PathLike | None = None,
    **options: Any,
) -> "tf.data.Dataset":
    """Makes a dataset of (images, labels) from a TFDS dataset already prepared on this machine; downloads nothing.

    Args:
        name: A TFDS name, such as "cifar10" or "imagenet2012:5.1.0", or a VTAB-1k task, such as "vtab/dtd" (see
            `VTAB`).
        split: A TFDS split, such as "train[:90%]"; for a VTAB-1k task "train800", "val200", "train800val200" or "test".
        data_dir: The folder of TFDS datasets; None: the TFDS default.
        **options: Other arguments of `keras_vit.data.pipeline`, which describes the result. `training` is True by
            default if the split begins with "train".

    Raises:
        ImportError: If tensorflow-datasets is not installed.
        FileNotFoundError: If the dataset is not prepared.
        ValueError: If the dataset has no such split, no images, or no labels.

    Example:

    >>> import keras_vit.data
    >>> keras_vit.data.load("vtab/dtd", "train800", data_dir="/nowhere")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    FileNotFoundError: Expected the dataset 'dtd' to be prepared in '/nowhere'. ...

    Reference: VTAB-1k, arXiv 1910.04867, with the splits of its task_adaptation code, which index images by position.
    Another version of a TFDS dataset may therefore give other images.
    """
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
        raise ValueError(f"Expected `split` of {name!r} to be a part of {counts}. Received: {split!r}") from error

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
    """Returns the builder of a prepared dataset."""
    cause = None
    try:
        builder = tfds.builder(dataset, data_dir=data_dir)
        if builder.info.splits and builder.is_prepared():
            return builder
    except (AssertionError, OSError, ValueError, tfds.core.DatasetNotFoundError) as error:
        cause = error
    folder = str(data_dir or tfds.core.constants.DATA_DIR)
    raise FileNotFoundError(
        f"Expected the dataset {dataset!r} to be prepared in {folder!r}. Nothing is downloaded here. On a machine with "
        f"a network, run tfds.builder({dataset!r}, data_dir={folder!r}).download_and_prepare(), and copy the folder."
        + (f" TFDS says: {str(cause).splitlines()[0]}" if cause and str(cause) else "")
    ) from cause


def _check(records, name, split, num_classes):
    """Raises if the first record has no encoded image or no valid label."""
    record = next(iter(records.take(1)), None)
    if record is None:
        raise ValueError(f"Expected images in split {split!r} of {name!r}. Received: none")
    if record["image"].dtype != "string":
        raise ValueError(f"Expected encoded images in {name!r}. Received: {record['image'].dtype.name}")
    if num_classes is None or record["label"].shape != () or not 0 <= int(record["label"]) < num_classes:
        raise ValueError(
            f"Expected a label of 0 to {(num_classes or 0) - 1} for each image of split {split!r} of {name!r}. "
            f"Received: {record['label'].numpy().tolist()}"
        )


def _scaled(encoded, gain):
    """Multiplies the pixel values of an encoded image by `gain`."""
    return encoded if gain == 1 else tf.io.encode_png(tf.io.decode_png(encoded) * gain)
