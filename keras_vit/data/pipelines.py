import math
import os
from collections.abc import Sequence

import keras

from keras_vit.data.arguments import check_counts, inputs_of, labels_of, policy_of
from keras_vit.data.augment import Policy
from keras_vit.data.broken import BrokenImages, in_place
from keras_vit.data.crop import Crop
from keras_vit.data.epochs import Epochs
from keras_vit.data.source import Source, tf
from keras_vit.data.steps import Steps, read
from keras_vit.preprocessing import Preprocessing


def pipeline(
    source: Source,
    *,
    preprocessing: Preprocessing | keras.Model | None = None,
    image_size: int | tuple[int, int] | None = None,
    batch_size: int = 32,
    training: bool = True,
    crop: str | None = None,
    flip: bool | None = None,
    policy: str | Policy = "none",
    labels: str | None = None,
    normalize: bool | None = None,
    mean: float | Sequence[float] | None = None,
    std: float | Sequence[float] | None = None,
    channels: int | None = None,
    scale: tuple[float, float] = (0.05, 1.0),
    resize_size: int | tuple[int, int] | None = None,
    interpolation: str | None = None,
    antialias: bool | None = None,
    crop_fraction: float | None = None,
    resize_mode: str | None = None,
    value_range: tuple[float, float] | None = None,
    max_pixels: int = 50_000_000,
    shuffle: bool | None = None,
    shuffle_buffer: int = 10_000,
    seed: int = 0,
    repeat: bool = False,
    cache: bool | str | os.PathLike = False,
    drop_remainder: bool | None = None,
    num_shards: int = 1,
    shard_index: int = 0,
    skip_batches: int = 0,
    num_batches: int | None = None,
    num_parallel_calls: int | None = None,
) -> "tf.data.Dataset":
    """Makes batches for `model.fit` from a source; `load`, `from_directory` and `from_dataframe` call it.

    It shards, caches, shuffles, reads, decodes and crops, augments, normalizes, batches, mixes and prefetches, in this
    order. Every random number follows from the seed, the epoch and the image's place in it: the same arguments give
    the same batches on each backend, with any number of threads.

    Each iteration is one epoch. The next epoch begins once an iteration has given its last batch: one that stopped
    before, such as `next(iter(data))`, an interrupted `fit` or the batch with which `fit` builds a model, repeats the
    same epoch. `data.set_epoch(3)` sets the next epoch. So `data.take(5)` gives the same five batches each time, and
    `num_batches=5` others in each epoch. Reading ahead, as your own `prefetch` does, may end a short epoch early, and
    the batch that builds a model may be the whole epoch: train on endless data there (`repeat=True`).

    An image that does not decode is skipped, and listed in a warning at the end of the epoch; see `BrokenImages`. In
    training other images of its batch replace it, which keeps the batch's shape; otherwise the batch is smaller, so
    that nothing counts twice. A batch without any sound image shows the first sound one of the dataset. So each epoch
    has the same number of batches, in which each image keeps its place. Batches with a broken image are made twice:
    remove the images that are listed.

    Args:
        source: A `Source`.
        preprocessing: The images that a model expects: the model, or a `keras_vit.Preprocessing`. It gives
            `value_range`, `mean`, `std`, `interpolation`, `antialias`, `crop_fraction` and `resize_mode`; a model also
            `image_size`, `channels` and, where it scales raw images itself, `normalize=False`. Other arguments take
            precedence. None: the defaults below.
        image_size: Integer, or (height, width), in pixels; 224 by default.
        batch_size: Integer, images in a batch.
        training: Bool, sets the defaults: True crops at random, flips and shuffles, False only resizes.
        crop: "pretrain", "finetune", "pad" or "eval"; see `Crop`, also for `scale`, `resize_size`, `interpolation`,
            `antialias` and `max_pixels`.
        flip: Bool, mirror half of the images; None: as `training`.
        policy: The name of an augmentation, or a `Policy`.
        labels: "int" or "one_hot"; "none": images alone, for prediction; None: int, unless the policy mixes or smooths
            labels.
        normalize: Bool, True by default, which gives `(x / 255 - mean) / std`, or the same with another `value_range`;
            False gives values of 0..255.
        mean: Float, or one for each channel, of images scaled to [0, 1]; 0.5 by default.
        std: Float, or one for each channel; 0.5 by default. With both at 0.5, images are in [-1, 1].
        channels: Integer, of the images in a batch; 3 by default.
        value_range: As in `keras_vit.Preprocessing`, like `crop_fraction` and `resize_mode`, which are for "eval".
        shuffle: Bool; None: as `training`.
        shuffle_buffer: Integer, the size of the shuffle buffer of images that are not files. Files are fully shuffled.
        seed: Integer.
        repeat: Bool. True never ends, and fills each batch across the end of an epoch: give `fit` the
            `steps_per_epoch`.
        cache: Bool, keep the undecoded images in memory after the first epoch; or a path, on disk.
        drop_remainder: Bool, leave out an epoch's last batch if it is not full; None: no.
        num_shards: Integer, processes that share the images.
        shard_index: Integer, the number of this process, from 0. Shards differ by up to one image: in training,
            several processes need `repeat=True` and `steps_per_epoch`.
        skip_batches: Integer, the batches of an interrupted run: the dataset starts after them, without reading
            them. Without `repeat` each iteration still has as many batches as an epoch, across its end if necessary.
        num_batches: Integer, the batches of an iteration; None: those of an epoch, or endless ones with `repeat`.
        num_parallel_calls: Integer, threads; None: tf.data chooses.

    Returns:
        A tf.data.Dataset of (images, labels), of (images, labels, weights), or of images alone: images float32 (batch,
        height, width, channels); labels int32 (batch,) or float32 (batch, num_classes); weights float32 (batch,). As
        with `keras.utils.image_dataset_from_directory`, it has attributes: `class_names`, a list of strings;
        `num_classes`; `num_images` in an epoch, broken ones included; `set_epoch`, without `repeat`; and `broken`, a
        `BrokenImages`.

    Raises:
        ValueError: If an argument does not fit the others or the source, or no image decodes.
    """
    inputs = inputs_of(
        preprocessing,
        image_size=image_size,
        channels=channels,
        normalize=normalize,
        mean=mean,
        std=std,
        interpolation=interpolation,
        antialias=antialias,
        crop_fraction=crop_fraction,
        resize_mode=resize_mode,
        value_range=value_range,
    )
    channels, record = inputs["channels"], inputs["preprocessing"]
    image_size = _pair(inputs["image_size"])
    policy = policy_of(policy)
    labels = labels_of(source, labels, policy)
    check_counts(
        image_size,
        batch_size=batch_size,
        channels=channels,
        num_shards=num_shards,
        shard_index=shard_index,
        skip_batches=skip_batches,
        num_batches=num_batches,
        shuffle_buffer=shuffle_buffer,
    )
    if policy.randaugment and channels != 3:
        raise ValueError(f"Expected RGB images for a policy with RandAugment. Received: channels={channels}")
    if channels not in (1, 3, 4) and not source.arrays:
        raise ValueError(f"Expected 1, 3 or 4 `channels` of pictures; others need npy files. Received: {channels}")
    if num_shards > source.num_images:
        raise ValueError(f"Expected an image for each shard. Received: {source.num_images} for {num_shards} shards")
    cut = Crop(
        image_size,
        crop or ("pretrain" if training else "eval"),
        bool(training) if flip is None else flip,
        channels,
        scale,
        _pair(resize_size),
        record.interpolation,
        record.antialias,
        record.crop_fraction,
        max_pixels,
        source.arrays,
        record,
    )
    parallel = tf.data.AUTOTUNE if num_parallel_calls is None else num_parallel_calls
    shuffle = training if shuffle is None else shuffle

    def build():
        shard = source.records.shard(num_shards, shard_index)
        num_images = len(range(shard_index, source.num_images, num_shards))
        root = tf.constant([seed, shard_index], "int64")
        records, files = shard, source.files
        if cache:
            records = records.map(lambda record: read(record, files), parallel) if files else records
            records = records.cache("" if cache is True else str(cache))
            files = False
        # Paths and cached bytes are small enough to hold all at once.
        buffer = num_images if files or cache is True else min(num_images, shuffle_buffer)
        epochs = Epochs(
            records,
            num_images,
            root,
            shuffle_buffer=buffer if shuffle else None,
            repeats=policy.repeats,
            batch_size=batch_size,
            skip_batches=skip_batches,
            repeat=repeat,
            drop_remainder=drop_remainder,
        )
        steps = Steps(cut, policy, source, labels, record if inputs["normalize"] else None, files, root)
        broken = BrokenImages(steps.try_decode, epochs.num_distinct, policy.repeats)
        sound = broken.first_sound(shard, lambda record: cut(read(record, source.files)["image"], (0, 0)))
        stand_in = read(sound, source.files and not files)

        def batches(data):
            full, drop = bool(training or repeat or drop_remainder), bool(repeat or drop_remainder)
            return in_place(
                data, steps.decode, steps.prepare, stand_in, batch_size, parallel, full=full, drop_remainder=drop
            )

        if repeat:
            data = batches(epochs.parts().flat_map(epochs.stream))
        else:
            data = epochs.parts().flat_map(lambda *part: batches(epochs.stream(*part)))
        # Without mixing it is too little for a thread.
        data = data.map(steps.finish, parallel if policy.mixes else None)
        if num_batches is not None:
            data = data.take(num_batches)
        length = min(epochs.num_batches, math.inf if num_batches is None else num_batches)
        data = epochs.watched(data.prefetch(tf.data.AUTOTUNE), broken, length)
        length = tf.data.INFINITE_CARDINALITY if length == math.inf else length
        data = data.apply(tf.data.experimental.assert_cardinality(length)).with_options(_options())
        data.class_names, data.num_classes = list(source.class_names), source.num_classes
        data.num_images, data.broken = epochs.size, broken
        if not repeat:
            # Endless data has a place, `skip_batches`, and no epochs.
            data.set_epoch = epochs.set
        return data

    # Nothing here is for AutoGraph, whose conversion takes most of the time of a start.
    return tf.autograph.experimental.do_not_convert(build)()


def _pair(size):
    return (size, size) if isinstance(size, int) else size and tuple(size)


def _options():
    options = tf.data.Options()
    options.deterministic = options.autotune.enabled = True
    # Private threads, one more than there are cores: measured, a few percent faster than the shared ones.
    options.threading.private_threadpool_size = (os.cpu_count() or 1) + 1
    # By default each batch would begin with 16 at most.
    options.autotune.initial_parallelism = options.threading.private_threadpool_size
    # A prefetch behind what counts the batches would make it run ahead.
    options.experimental_optimization.inject_prefetch = False
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return options
