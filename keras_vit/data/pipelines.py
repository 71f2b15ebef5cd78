import dataclasses
import math
import os
from collections.abc import Sequence
from typing import Any

import keras

from keras_vit import arguments
from keras_vit.config import Preprocessing, find_normalization
from keras_vit.data.augment import Policy, augmentation
from keras_vit.data.broken import BrokenImages, first_readable, replace_broken
from keras_vit.data.crop import CROPS, Crop
from keras_vit.data.epochs import Epochs
from keras_vit.data.source import Source, tf
from keras_vit.data.steps import Steps, read

RENAMED = {"policy": "augment", "shuffle_buffer": "shuffle"}
PREPROCESSING = tuple(field.name for field in dataclasses.fields(Preprocessing))


def refuse_removed(removed, preprocessing):
    """Raises a TypeError if `removed`, the dict of a call's unknown arguments, is not empty.

    The error contains the replacement of each argument that existed in version 0.2.
    """
    lines = [f"{RENAMED[name]}={value!r}" for name, value in removed.items() if name in RENAMED]
    if fields := ", ".join(f"{name}={value!r}" for name, value in removed.items() if name in PREPROCESSING):
        of_model = hasattr(preprocessing, "layers")
        start = "keras_vit.config_of(model).preprocessing.changed" if of_model else "keras_vit.Preprocessing"
        lines.append(f"preprocessing={start}({fields})")
    if removed:
        instead = f". Write {', '.join(lines)}" if lines else ""
        raise TypeError(f"Expected the arguments of keras_vit.data.pipeline. Received: {', '.join(removed)}{instead}")


def input_options(preprocessing, **given):
    """Returns image_size, channels, normalize and preprocessing. The model's values or defaults replace None."""
    found = {"image_size": 224, "channels": 3, "normalize": True, "preprocessing": preprocessing}
    if preprocessing is None:
        found["preprocessing"] = Preprocessing()
    elif not isinstance(preprocessing, Preprocessing):
        carrier = find_normalization(preprocessing) if hasattr(preprocessing, "layers") else None
        if carrier is None:
            raise ValueError(
                "Expected `preprocessing` to be a keras_vit.Preprocessing, or a model that contains one, as models of "
                f"keras_vit do. Received: {getattr(preprocessing, 'name', preprocessing)!r} of type "
                f"{type(preprocessing).__name__}"
            )
        scaling_layers = (keras.layers.Rescaling, keras.layers.Normalization)
        if given["normalize"] is None and any(isinstance(layer, scaling_layers) for layer in preprocessing.layers):
            expected = "Expected True or False for `normalize`, since a Keras layer of the model scales images"
            raise ValueError(f"{expected}. Received: preprocessing={preprocessing.name!r}, normalize=None")
        found |= {"preprocessing": carrier.preprocessing, "normalize": not carrier.apply}
        # A Sequential has no `input_shape` before its first call.
        shape = getattr(preprocessing, "input_shape", None) or tuple(carrier.input.shape)
        if isinstance(shape, tuple) and len(shape) == 4:
            found["channels"] = shape[3] or 3
            if None not in shape[1:3]:
                found["image_size"] = shape[1:3]
    return found | {name: value for name, value in given.items() if value is not None}


def kind_of_batch_labels(source, labels, augmentation):
    """Returns the kind of labels in a batch: "int", "one_hot", "soft", "multi_hot", "float", or None for no labels."""
    if labels not in ("int", "one_hot", "none", None):
        raise ValueError(f"Expected `labels` to be 'int', 'one_hot', 'none' or None. Received: {labels!r}")
    mixes = augmentation.mixes
    if mixes and (source.labels is None or labels in ("int", "none")):
        raise ValueError(f"Expected one-hot labels for `augment` that mixes or smooths them. Received: {augmentation}")
    if mixes and "weight" in source.records.element_spec:
        expected = "no sample weights with `augment` that mixes images or smooths labels"
        raise ValueError(f"Expected {expected}. Received: {augmentation}")
    if source.labels is None and labels in ("int", "one_hot"):
        raise ValueError(f"Expected labels=None or labels='none' for images without labels. Received: {labels!r}")
    if source.labels is None or labels == "none":
        return None
    if source.labels in ("soft", "multi_hot", "float"):
        if labels or (augmentation.policy.label_smoothing and source.labels != "soft"):
            raise ValueError(
                "Expected labels=None for soft labels, multi-label data and regression targets. Label smoothing needs "
                f"soft or integer labels. Received: labels={labels!r}, {augmentation}"
            )
        return source.labels
    return labels or ("one_hot" if mixes else "int")


def pipeline(
    source: Source,
    *,
    preprocessing: Preprocessing | keras.Model | None = None,
    image_size: int | tuple[int, int] | None = None,
    batch_size: int = 32,
    training: bool = True,
    augment: str | Policy | keras.layers.Layer | Sequence[Policy | keras.layers.Layer] | None = None,
    crop: str | None = None,
    scale: tuple[float, float] | None = None,
    resize_size: int | tuple[int, int] | None = None,
    flip: bool | None = None,
    labels: str | None = None,
    normalize: bool | None = None,
    channels: int | None = None,
    max_pixels: int = 50_000_000,
    shuffle: bool | int | None = None,
    seed: int = 0,
    repeat: bool = False,
    cache: bool | str | os.PathLike = False,
    drop_remainder: bool | None = None,
    pad_remainder: bool = False,
    num_shards: int = 1,
    shard_index: int = 0,
    skip_batches: int = 0,
    num_batches: int | None = None,
    num_parallel_calls: int | None = None,
    **removed: Any,
) -> "tf.data.Dataset":
    """Makes a dataset of batches for `model.fit` from a `Source`.

    `load`, `from_directory` and `from_dataframe` call this function. The order of its steps is: cache, shuffle, select
    the rows of this process, read, decode and crop, augment, normalize, erase, batch, mix, prefetch.

    The result is a tf.data.Dataset of (images, labels), (images, labels, weights) or only images. Images are float32
    (batch, height, width, channels), labels are int32 (batch,) or float32 (batch, num_classes), and weights are float32
    (batch,). The dataset has the attributes `source`, `class_names`, `num_classes`, `num_images` (per epoch, including
    broken images), `num_shards`, `broken` (a `BrokenImages`) and `set_epoch`. With `repeat`, only a dataset with
    `num_batches` and without `skip_batches` has `set_epoch`. The same arguments give the same batches on each backend,
    with any number of threads.

    Each iteration over the dataset is one epoch. The next epoch begins only after an iteration has returned its last
    batch. So `next(iter(data))` or a loop over `data.take(5)` gets the same batches each time. With the argument
    `num_batches=5` and without `repeat`, an iteration ends after 5 batches, and the next iteration has new batches.
    After `data.set_epoch(3)`, the next iteration is number 3, counted from 0. If an epoch has only a few batches, use
    `repeat=True`. A short epoch without `repeat` may end before training uses its batches, because `fit` reads a batch
    to build a model, and a `prefetch` that you add reads ahead.

    Images that cannot be decoded are skipped and listed in a warning at the end of the epoch; see `BrokenImages`. If
    `training`, `repeat`, `drop_remainder` or `pad_remainder` is True, other images of the batch replace the broken
    images; if none of these arguments is True, the batch is smaller. If all images of a batch are broken, the batch
    contains only the first valid image of the source.

    With `pad_remainder` all batches are full, so several devices or processes can share them. Rows of weight 0 fill the
    last batch of an epoch and the places of broken images. The weight of each other row is its sample weight times
    `num_batches * batch_size / num_images`. With these weights, the loss of an epoch is the mean over all images, where
    the loss of a broken image counts as 0. Pass metrics to `model.compile` as `weighted_metrics`, which leave out rows
    of weight 0; `metrics` count all rows. With `labels="none"`, for prediction, there are no weights, and the rows that
    fill the last batch are at its end.

    If P processes share each batch, process i gets the rows from `i * batch_size / P` to `(i + 1) * batch_size / P`.
    The order, crops and augmentation of the images are the same as in a single process. Mixing and the replacement of
    broken images use only images of the same process. All processes take the same number of steps, even if images are
    broken. Each process reads and decodes only the files of its rows; with `cache`, it reads and keeps all files.

    Args:
        source: A `Source`.
        preprocessing: A `keras_vit.Preprocessing`, or a model that contains one. A model also sets the defaults of
            `image_size`, `channels` and `normalize` (False if the model scales raw images itself). None:
            `keras_vit.Preprocessing()`, which scales images to [-1, 1].
        image_size: Integer, or (height, width), in pixels; 224 by default.
        batch_size: Integer, the number of images per batch, counted over all processes.
        training: Bool. It sets the defaults of `crop`, `flip` and `shuffle`: random crops, random flips and shuffling
            if it is True, and only resizing as in evaluation if it is False.
        augment: A `Policy`, the name of one in `POLICIES`, a layer of Keras or keras-cv, or a list that contains such
            layers and at most one policy. Layers are applied in the order of the list, to images of 0..255, after the
            operations of the policy. Layers that mix images, such as MixUp and CutMix, are applied last, to normalized
            batches with one-hot labels. The seed of the pipeline replaces the seeds of layers. None: no augmentation
            except crops and flips.
        crop: "pretrain", "finetune", "pad" or "eval". `Crop` describes these values, and also the arguments `scale`,
            `resize_size` and `max_pixels`. None: "pretrain" if `training` is True, else "eval".
        flip: Bool, mirror each image with probability 0.5; None: the value of `training`.
        labels: "int", "one_hot" or "none" (only images, for prediction). None: "one_hot" if `augment` mixes or smooths
            labels, else "int". Soft labels, multi-hot labels and regression targets are not converted.
        normalize: Bool. True, the default, scales images as in `preprocessing`. False leaves them in 0..255, but the
            noise in erased rectangles can exceed this range.
        channels: 1, 3 or 4, the channels of the images in a batch; 3 by default.
        shuffle: Bool, or the number of images in the shuffle buffer. True means 10,000, and None means the value of
            `training`. If `cache` is True, or if the source consists of files and `cache` is False, the buffer always
            holds all images.
        seed: Integer of at least 0.
        repeat: Bool. If True, the dataset never ends, so pass `steps_per_epoch` to `model.fit`, or pass `num_batches`
            and train by `keras_vit.training.fit`, which calls `set_epoch`. If nothing calls `set_epoch`, each
            iteration has the same batches. A batch may have images of two epochs.
        cache: Bool, or a path. True keeps the undecoded images in memory after the first epoch. A path keeps them in
            files on disk, and each process needs a different path. The names of these files contain a hash of the
            paths and labels of the images; delete the files if images have changed. To decode faster, see
            `resize_folder`.
        drop_remainder: Bool, drop an epoch's last batch if it is not full; None: False.
        pad_remainder: Bool, fill an epoch's last batch with rows of weight 0; the result is (images, labels, weights).
        num_shards, shard_index: Integers, the number of processes that share each batch, and the index of this process.
            With several processes, set `repeat`, `drop_remainder` or `pad_remainder`, since processes cannot share a
            smaller last batch equally.
        skip_batches: Integer, batches to skip without reading them, to resume an interrupted run. If `repeat` is False,
            each iteration still has as many batches as an epoch: it starts after the skipped batches, and ends at the
            same position of the next epoch.
        num_batches: Integer, batches per iteration; None: one epoch, or no limit with `repeat`.
        num_parallel_calls: Integer, the number of threads; None: tf.data chooses.

    Raises:
        TypeError: If there is an unknown argument. If it is from version 0.2, the error contains the argument that
            replaces it.
        ValueError: If arguments do not fit each other or the source, or no image can be decoded.
    """
    refuse_removed(removed, preprocessing)
    arguments.instance("source", source, Source)
    arguments.each(arguments.boolean, training=training, repeat=repeat, pad_remainder=pad_remainder)
    arguments.each(arguments.boolean, optional=True, normalize=normalize, drop_remainder=drop_remainder, flip=flip)
    arguments.instance("cache", cache, (bool, str, os.PathLike), "a bool or a path")
    arguments.non_negative_int("seed", seed)
    inputs = input_options(preprocessing, image_size=image_size, channels=channels, normalize=normalize)
    record = inputs["preprocessing"]
    image_size = arguments.pair("image_size", inputs["image_size"])
    channels = arguments.choice("channels", arguments.positive_int("channels", inputs["channels"]), (1, 3, 4))
    record.check_channels(channels)
    augmented = augmentation(augment)
    policy = augmented.policy
    labels = kind_of_batch_labels(source, labels, augmented)
    shuffle = training if shuffle is None else shuffle
    shuffle_buffer = 10_000 if isinstance(shuffle, bool) else shuffle
    positive = arguments.positive_int
    arguments.each(positive, batch_size=batch_size, num_shards=num_shards, shuffle=shuffle_buffer)
    arguments.each(positive, optional=True, num_batches=num_batches, num_parallel_calls=num_parallel_calls)
    arguments.non_negative_int("skip_batches", skip_batches)
    arguments.non_negative_int("shard_index", shard_index, num_shards - 1)
    if batch_size % num_shards:
        raise arguments.invalid("batch_size", f"a multiple of num_shards={num_shards}", batch_size)
    for wrong, expected, received in (
        (
            pad_remainder and (repeat or drop_remainder),
            "`pad_remainder` without `repeat` and `drop_remainder`, which leave no batch to fill",
            f"repeat={repeat}, drop_remainder={drop_remainder}",
        ),
        (pad_remainder and augmented.mixes, "no `pad_remainder` with `augment` that mixes or smooths", augmented),
        (
            num_shards > 1 and not (repeat or drop_remainder or pad_remainder),
            "`repeat`, `drop_remainder` or `pad_remainder` with several shards, to divide the last batch equally",
            f"num_shards={num_shards}",
        ),
        (policy.randaugment and channels != 3, "RGB images for a policy with RandAugment", f"channels={channels}"),
    ):
        if wrong:
            raise ValueError(f"Expected {expected}. Received: {received}")
    kind = ("pretrain" if training else "eval") if crop is None else arguments.choice("crop", crop, CROPS)
    flip = bool(training) if flip is None else flip
    resize_size = arguments.optional(arguments.pair, "resize_size", resize_size)
    cut = Crop(image_size, kind, flip, channels, scale, resize_size, record, max_pixels)
    parallel = tf.data.AUTOTUNE if num_parallel_calls is None else num_parallel_calls

    def build():
        # All processes use the same seed, so that they have the same order of images and the same random numbers.
        root = tf.constant([seed, 0], "int64")
        records, files, num_images = source.records, source.files, source.num_images
        if cache:
            records = records.map(lambda record: read(record, files), parallel) if files else records
            # The path contains a hash of the source, since TensorFlow would read the cache of another source.
            records = records.cache("" if cache is True else f"{os.fspath(cache)}-{source.fingerprint()}")
            files = False
        # If the records are paths, or files that are cached in memory anyway, the shuffle buffer can hold all of them.
        buffer = num_images if files or cache is True else min(num_images, shuffle_buffer)
        order = {"shuffle_buffer": buffer if shuffle else None, "repeats": policy.repeats, "batch_size": batch_size}
        order |= {"skip_batches": skip_batches, "repeat": repeat, "drop_remainder": drop_remainder}
        epochs = Epochs(records, num_images, root, **order)
        length = min(epochs.num_batches, math.inf if num_batches is None else num_batches)
        row_weight = epochs.row_weight(length) if pad_remainder else None
        steps = Steps(cut, augmented, source, labels, record, inputs["normalize"], files, root, row_weight)

        # This function captures only small objects, since TensorFlow never frees a dataset's Python functions.
        def try_decode(record):
            cut.decode(read(record, files)["image"], (0, 0))

        broken = BrokenImages(try_decode, epochs.num_distinct, policy.repeats)
        sound = first_readable(source.records, lambda record: cut(read(record, source.files)["image"], (0, 0)))
        placeholder = read(sound, source.files and not files)

        whole = bool(repeat or drop_remainder or pad_remainder)
        parts = steps.decode, steps.prepare, placeholder, batch_size, parallel
        options = {"shard": (shard_index, num_shards), "full": bool(training or whole), "weighted": pad_remainder}

        def batches(stream):
            return replace_broken(stream, *parts, **options, whole=whole)

        if repeat:
            data = batches(epochs.parts(length).flat_map(epochs.stream))
        else:
            filler = placeholder if pad_remainder else None
            data = epochs.parts(length).flat_map(lambda *part: batches(epochs.stream(*part, filler)))
        # Use threads only for mixing, because the rest of `finish` takes less time than starting a thread.
        data = data.map(steps.finish, parallel if augmented.mixes else None)
        if num_batches is not None:
            data = data.take(num_batches)
        data = epochs.with_epoch_end(data.prefetch(tf.data.AUTOTUNE), broken, length)
        length = tf.data.INFINITE_CARDINALITY if length == math.inf else length
        data = data.apply(tf.data.experimental.assert_cardinality(length)).with_options(_options())
        data.source, data.class_names, data.num_classes = source, list(source.class_names), source.num_classes
        data.num_images, data.num_shards, data.broken = epochs.size, num_shards, broken
        if not repeat or (num_batches is not None and not skip_batches):
            # In an endless iteration, only `skip_batches` sets the position.
            data.set_epoch = epochs.set
        return data

    # `build` does not need AutoGraph, whose conversion would take most of the startup time.
    return tf.autograph.experimental.do_not_convert(build)()


def _options():
    options = tf.data.Options()
    options.deterministic = True
    # tf.data's tuner sleeps for up to a minute, and an iteration cannot end before the tuner wakes up.
    options.autotune.enabled = False
    # If tf.data prefetched after the step that counts epochs, batches would be counted before the user gets them.
    options.experimental_optimization.inject_prefetch = False
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return options
