import math
import os

import numpy as np

from keras_vit.data.arguments import check_counts, inputs_of, labels_of, policy_of, scaling
from keras_vit.data.augment import RandAugment, seeded
from keras_vit.data.batching import in_place
from keras_vit.data.broken import BrokenImages
from keras_vit.data.crop import Crop
from keras_vit.data.mix import Mix


def pipeline(
    source,
    *,
    preprocessing=None,
    image_size=None,
    batch_size=32,
    training=True,
    crop=None,
    flip=None,
    policy="none",
    labels=None,
    normalize=None,
    mean=None,
    std=None,
    channels=None,
    scale=(0.05, 1.0),
    resize_size=None,
    interpolation=None,
    antialias=None,
    crop_fraction=None,
    resize_mode=None,
    value_range=None,
    max_pixels=50_000_000,
    shuffle=None,
    shuffle_buffer=10_000,
    seed=0,
    repeat=False,
    cache=False,
    drop_remainder=None,
    num_shards=1,
    shard_index=0,
    skip_batches=0,
    num_batches=None,
    num_parallel_calls=None,
):
    """Makes batches for `model.fit` out of a source: the one chain behind `load`, `from_directory`, `from_dataframe`.

    Shard, cache, shuffle, read, decode and crop, augment, normalize, batch, mix, prefetch, in this order. Every random
    number follows from the seed, the epoch and the image's place in it, so that the same arguments give the same
    batches on each backend, with any number of threads.

    An iteration takes its epoch with its first batch, and has made the next one the next epoch when it gave its last.
    One that ended before counts for nothing, as `next(iter(data))`, an interrupted `fit` and the batch that `fit` draws
    to build a model: the next one is the same epoch again. `data.set_epoch(3)` says which epoch comes next. So
    `data.take(5)` gives the same five batches each time, and `num_batches=5` others in each epoch. What reads ahead, as
    a `prefetch` of your own does, may come to the end of an epoch of a few batches unasked, and the batch that builds a
    model is the whole epoch where it has but one: train on endless data there (`repeat=True`).

    An image that does not decode is passed over before the batch is made, and named after the epoch; see
    `BrokenImages`. In training other images of its batch take its place, which keeps the batch's shape; otherwise the
    batch is smaller, so that nothing counts twice. A batch without any sound image shows the first sound one of all. So
    each epoch has the same number of batches, in which each image keeps its place. A batch with a broken image is made
    twice: leave out those named.

    Args:
        source: A `Source`.
        preprocessing: What a model wants its images to be like: the model, or a `keras_vit.Preprocessing`. It gives
            `value_range`, `mean`, `std`, `interpolation`, `antialias`, `crop_fraction` and `resize_mode`; a model also
            `image_size`, `channels` and, where it scales raw images itself, `normalize=False`. Arguments that are given
            win. None: the defaults below.
        image_size: Integer, or (height, width), in pixels; 224 by default.
        batch_size: Integer, images a batch.
        training: Bool, which sets the defaults: True crops at random, flips and shuffles, False only resizes.
        crop: "pretrain", "finetune", "pad" or "eval"; see `Crop`, also for `scale`, `resize_size`, `interpolation`,
            `antialias` and `max_pixels`.
        flip: Bool, mirror half of the images; None: as `training` says.
        policy: The name of an augmentation, or a `Policy`.
        labels: "int" or "one_hot"; "none": images alone, as for a prediction; None: int, unless the policy mixes or
            smooths labels.
        normalize: Bool, True by default, which gives `(x / 255 - mean) / std`, or so with another `value_range`; False
            the values of 0..255.
        mean: Float, or one for each channel, of images scaled to [0, 1]; 0.5 by default.
        std: Float, or one for each channel, likewise; 0.5 by default. With both at 0.5, images are in [-1, 1].
        channels: Integer, of the images that come out; 3 by default.
        crop_fraction: Of "eval", as in `keras_vit.Preprocessing`; so are `resize_mode` and `value_range`.
        resize_mode: See there.
        value_range: See there; (0, 1) by default.
        shuffle: Bool; None: as `training` says.
        shuffle_buffer: Integer, the images among which is drawn where they are not files. Files are all shuffled.
        seed: Integer.
        repeat: Bool. True never ends, and fills each batch across the end of an epoch: give `fit` the
            `steps_per_epoch`.
        cache: Bool, keep the undecoded images in memory after the first epoch; or a path, on disk.
        drop_remainder: Bool, leave out an epoch's last batch where it is not full; None: no.
        num_shards: Integer, processes that share the images.
        shard_index: Integer, which of them this one is. Shards differ by up to one image, so that in training several
            processes want `repeat=True` and `steps_per_epoch`.
        skip_batches: Integer, the batches of an interrupted run: the dataset starts after them, without reading
            them. Without `repeat` each iteration still gives the batches of an epoch, across its end where it must.
        num_batches: Integer, the batches to give; None: those of an epoch, or of endless ones with `repeat`.
        num_parallel_calls: Integer, threads; None: tf.data chooses.

    Returns:
        A tf.data.Dataset of (images, labels), of (images, labels, weights), or of images alone: images float32 (batch,
        height, width, channels); labels int32 (batch,) or float32 (batch, num_classes); weights float32 (batch,). As
        with `keras.utils.image_dataset_from_directory`, it has attributes: `class_names`, a list of strings, one for
        each class; `num_classes`; `num_images`, an epoch's, the broken ones included; `set_epoch`, without `repeat`;
        and `broken`, a `BrokenImages`.

    Raises:
        ValueError: If an argument does not fit the others or the source, or no image decodes.
    """
    import tensorflow as tf

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
    size, channels = inputs["image_size"], inputs["channels"]
    image_size = (size, size) if isinstance(size, int) else tuple(size)
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
    record = inputs["preprocessing"]
    offset, divisor = scaling(record, channels)
    if channels not in (1, 3, 4) and not source.arrays:
        raise ValueError(f"Expected 1, 3 or 4 `channels` of pictures; others need npy files. Received: {channels}")
    training_default = {True: ("pretrain", True), False: ("eval", False)}[bool(training)]
    cut = Crop(
        image_size,
        crop or training_default[0],
        training_default[1] if flip is None else flip,
        channels,
        scale,
        (resize_size, resize_size) if isinstance(resize_size, int) else resize_size,
        record.interpolation,
        record.antialias,
        record.crop_fraction,
        max_pixels,
        source.arrays,
        record,
    )
    shuffle = training_default[1] if shuffle is None else shuffle
    parallel = tf.data.AUTOTUNE if num_parallel_calls is None else num_parallel_calls

    shard = source.records.shard(num_shards, shard_index)
    records, files = shard, source.files
    num_images = len(range(shard_index, source.num_images, num_shards))
    if num_shards > source.num_images:
        raise ValueError(f"Expected an image for each shard. Received: {source.num_images} for {num_shards} shards")
    if cache:
        if files:
            records = records.map(lambda r: {**r, "image": tf.io.read_file(r["image"])}, parallel)
            files = False
        records = records.cache("" if cache is True else str(cache))
    # Paths and cached bytes are cheap to hold all at once.
    buffer = num_images if files or cache is True else min(num_images, shuffle_buffer)
    num_distinct = max(1, num_images // policy.repeats)
    size = num_distinct * policy.repeats
    root = tf.constant([seed, shard_index], "int64")
    image_root = tf.random.stateless_uniform((), root, None, None, "int64")

    def seed_of(index):
        """The seed of the image that is the index-th of all epochs."""
        return tf.stack([image_root, index])

    def order(epoch):
        """The records of an epoch, each once; for use in `flat_map`."""
        data = records
        if shuffle:
            # Or the program's global seed would have a part in the order.
            tf.compat.v1.get_default_graph().seed = None
            epoch_seed = tf.random.stateless_uniform((), tf.random.fold_in(root, epoch), None, None, "int64")
            data = data.shuffle(buffer, epoch_seed, reshuffle_each_iteration=False)
        # A cache is only complete once its end was reached.
        return data if num_distinct == num_images else data.take(num_distinct)

    def stream(epoch, begin, end):
        """An epoch's (index, record) from one place to another, counted through from the first epoch on."""
        data = order(epoch)
        if policy.repeats > 1:
            data = data.flat_map(lambda r: tf.data.Dataset.from_tensors(r).repeat(policy.repeats))
        return tf.data.Dataset.zip(tf.data.Dataset.range(epoch * size + begin, epoch * size + end), data.skip(begin))

    augment = RandAugment(*policy.randaugment, policy.magnitude_std, policy.operations) if policy.randaugment else None
    erase = seeded("RandomErasing", factor=(policy.erasing, policy.erasing)) if policy.erasing else None
    # What comes with an image: nothing, a label, or a label and a weight.
    beside = [] if labels is None else [key for key in ("label", "weight") if key in source.records.element_spec]

    def decode(index, record):
        encoded = tf.io.read_file(record["image"]) if files else record["image"]
        return index, cut.decode(encoded, seed_of(index)), tuple(record[key] for key in beside)

    def prepare(index, image, label):
        image_seed = seed_of(index)
        image = cut.resize(image, image_seed)
        if augment:
            image = augment(image, tf.random.fold_in(image_seed, 1))
        if erase:
            image = erase(image, tf.random.fold_in(image_seed, 2))
        # In this form, and not as x * a + b, -1 and 1 come out exact; a division would take twice as long.
        image = (image - offset) * (1 / divisor) if inputs["normalize"] else image
        return index, image, label

    # Each is traced once, and a node wherever it is used: what starts an iteration takes the time of its nodes.
    decode, prepare = (
        tf.function(f, autograph=False, experimental_attributes={"_noinline": True}) for f in (decode, prepare)
    )

    broken = BrokenImages(
        lambda record: cut.decode(tf.io.read_file(record["image"]) if files else record["image"], (0, 0)),
        num_distinct,
        policy.repeats,
    )
    stand_in = broken.first_sound(
        shard, lambda r: cut(tf.io.read_file(r["image"]) if source.files else r["image"], (0, 0))
    )
    if source.files and not files:
        stand_in["image"] = tf.io.read_file(stand_in["image"])

    def batches(data):
        full = bool(training or repeat or drop_remainder)
        drop = bool(repeat or drop_remainder)
        return in_place(data, decode, prepare, stand_in, batch_size, parallel, full=full, drop_remainder=drop)

    first_epoch, start = _position(skip_batches, batch_size, size, repeat, drop_remainder)
    epochs = _Epochs(first_epoch)
    data = tf.data.Dataset.range(1).map(lambda _: tf.ensure_shape(tf.numpy_function(epochs.begin, [], "int64"), ()))
    if repeat:
        data = data.flat_map(lambda epoch: tf.data.Dataset.range(epoch, np.iinfo("int64").max))
        data = data.flat_map(lambda epoch: stream(epoch, tf.where(epoch == first_epoch, np.int64(start), 0), size))
        data, length = batches(data), math.inf
    else:
        # From the same place in an epoch to that in the next one.
        parts = [(0, start, size), (1, 0, start)] if start else [(0, 0, size)]
        parts = tf.data.Dataset.from_tensor_slices(np.array(parts, "int64"))
        data = data.flat_map(lambda epoch: parts.map(lambda part: (epoch + part[0], part[1], part[2])))
        data = data.flat_map(lambda epoch, begin, end: batches(stream(epoch, begin, end)))
        length = size // batch_size if drop_remainder else math.ceil(size / batch_size)
    length = min(length, math.inf if num_batches is None else num_batches)
    mix = Mix(policy)

    def finish(index, images, beside, missing):
        if repeat or drop_remainder:
            images, beside = tf.nest.map_structure(
                lambda x: tf.ensure_shape(x, (batch_size, *x.shape[1:])), (images, beside)
            )
        if labels is None:
            return index, missing, images
        label, *weight = beside
        if labels == "int":
            label = tf.cast(label, "int32")
        elif labels == "one_hot":
            label = tf.one_hot(label, source.num_classes)
        else:
            label = tf.cast(label, "float32")
        if policy.mixes:
            images, label = mix(images, label, tf.random.fold_in(seed_of(index), 3))
        return index, missing, (images, label, *weight)

    def watch(state, batch):
        """Counts the batches that are given, and notes which images are broken."""
        count, *met = state
        index, missing, batch = batch
        count += 1
        # Below this index, all epochs have ended.
        done = (index + batch_size) // size * size if repeat else tf.zeros((), "int64")
        done = done if length == math.inf else tf.where(count == length, np.iinfo("int64").max, done)

        def note():
            return [tf.ensure_shape(x, (None,)) for x in tf.numpy_function(broken.note, [*met, *missing, done], kinds)]

        kinds = ["int64", "string"]
        # Python is asked only where there is something to say.
        worth = (tf.size(missing[0]) > 0) | ((tf.size(met[0]) > 0) & tf.reduce_any(met[0] < done))
        met = tf.cond(worth, note, lambda: [tf.identity(x) for x in met])
        if not repeat:
            # Of an iteration that goes on after the epoch's end, the place in the next one is before the start.
            epoch = index // size - tf.cast(index % size < start, "int64")
            ended = [tf.cond(count == length, lambda: tf.numpy_function(epochs.end, [epoch], "bool"), lambda: False)]
            with tf.control_dependencies(ended):
                batch = tf.nest.map_structure(tf.identity, batch)
        return (count, *met), batch

    options = tf.data.Options()
    options.deterministic = options.autotune.enabled = True
    # Threads of its own, one more than there are cores: measured, a few hundredths faster than the common ones.
    options.threading.private_threadpool_size = (os.cpu_count() or 1) + 1
    # Or each window of batches would begin with 16 at most.
    options.autotune.initial_parallelism = options.threading.private_threadpool_size
    # Or what counts the batches that are given would run ahead of them.
    options.experimental_optimization.inject_prefetch = False
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    # Without mixing it is too little for a thread of its own.
    data = data.map(finish, parallel if policy.mixes else None)
    if num_batches is not None:
        data = data.take(num_batches)
    data = data.prefetch(tf.data.AUTOTUNE)
    nothing = [tf.zeros(0, "int64"), tf.zeros(0, "string")]
    data = data.scan((tf.zeros((), "int64"), *nothing), watch)
    length = tf.data.INFINITE_CARDINALITY if length == math.inf else length
    data = data.apply(tf.data.experimental.assert_cardinality(length)).with_options(options)
    data.class_names, data.num_classes = list(source.class_names), source.num_classes
    data.num_images, data.broken = size, broken
    if not repeat:
        # Endless data has a place, that of `skip_batches`, and no epochs of its own.
        data.set_epoch = epochs.set
    return data


class _Epochs:
    """Which epoch the next iteration is."""

    def __init__(self, number):
        self.set(number)

    def set(self, number):
        """Says which epoch the next iteration is: an integer from 0."""
        if isinstance(number, bool) or not isinstance(number, (int, np.integer)) or number < 0:
            raise ValueError(f"Expected an epoch as an integer of at least 0. Received: {number!r}")
        self.number = int(number)

    def begin(self):
        return np.int64(self.number)

    def end(self, number):
        """The last batch of an epoch was given."""
        # Of several at a time, and of one that was set meanwhile, one counts.
        if number == self.number:
            self.number += 1
        return np.True_


def _position(skip_batches, batch_size, size, repeat, drop_remainder):
    """The (epoch, position in it) at which a run goes on after as many batches."""
    if repeat:
        return divmod(skip_batches * batch_size, size)
    per_epoch = size // batch_size if drop_remainder else math.ceil(size / batch_size)
    if not per_epoch:
        raise ValueError(f"Expected at most {size} images a batch with `drop_remainder`. Received: {batch_size}")
    epoch, batch = divmod(skip_batches, per_epoch)
    return epoch, batch * batch_size
