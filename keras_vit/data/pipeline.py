import dataclasses
import math
import os

import numpy as np

from keras_vit.data.augment import POLICIES, Policy, RandAugment, seeded
from keras_vit.data.batching import blank, one_by_one, together
from keras_vit.data.broken import BrokenImages
from keras_vit.data.crop import Crop
from keras_vit.data.mix import Mix

LABELS = ("int", "one_hot", "multi_hot", None)


@dataclasses.dataclass(frozen=True)
class Source:
    """Where a pipeline's images come from.

    Args:
        records: tf.data.Dataset of {"name": string, "image": string, "label": ...}, always in the same order. Without
            "label" the pipeline gives images alone.
        num_images: Integer, how many records there are.
        files: Bool, whether "image" is a path; the bytes of an image otherwise.
        labels: "int", for classes counted from 0; "multi_hot", for a 0 or 1 for each class; None for no labels.
        class_names: The names of the classes in order; they may be empty.
        num_classes: Integer.
        arrays: Bool, whether there are `.npy` files among them.
    """

    records: object
    num_images: int
    files: bool
    labels: str | None
    class_names: tuple[str, ...]
    num_classes: int
    arrays: bool = False


def pipeline(
    source,
    *,
    image_size=224,
    batch_size=32,
    training=True,
    crop=None,
    flip=None,
    policy="none",
    labels=None,
    normalize=True,
    mean=0.5,
    std=0.5,
    channels=3,
    scale=(0.05, 1.0),
    resize_size=None,
    interpolation="bilinear",
    antialias=False,
    crop_fraction=1.0,
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
    batches on each backend, with any number of threads. A new iteration over the dataset is a new epoch.

    An image that does not decode is passed over before the batch is made, and named after the epoch; see
    `BrokenImages`. Without `cache`, a batch of files is made twice if one of them is broken: leave out those named.

    Args:
        source: A `Source`.
        image_size: Integer, or (height, width), in pixels.
        batch_size: Integer, images a batch.
        training: Bool, which sets the defaults: True crops at random, flips and shuffles, False only resizes.
        crop: "pretrain", "finetune", "pad" or "eval"; see `Crop`, also for `scale`, `resize_size`, `interpolation`,
            `antialias`, `crop_fraction` and `max_pixels`.
        flip: Bool, mirror half of the images; None: as `training` says.
        policy: The name of an augmentation, or a `Policy`.
        labels: "int" or "one_hot"; None: int, unless the policy mixes or smooths labels.
        normalize: Bool. True gives `(x / 255 - mean) / std`, False the values of 0..255.
        mean: Float, or one for each channel, of images scaled to [0, 1].
        std: Float, or one for each channel, likewise. With both at 0.5, images are in [-1, 1].
        channels: Integer, of the images that come out.
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
            them. Each broken image among them shifts the start by one image.
        num_batches: Integer, the batches to give; None: those of an epoch, or of endless ones with `repeat`.
        num_parallel_calls: Integer, threads; None: tf.data chooses.

    Returns:
        A tf.data.Dataset of (images, labels), or of images alone: images float32 (batch, height, width, channels);
        labels int32 (batch,) or float32 (batch, num_classes). As with `keras.utils.image_dataset_from_directory`, it
        has attributes: `class_names`, `num_classes`, `num_images` (an epoch's, the broken ones included) and
        `broken`, a `BrokenImages`. Its length is in batches, less the broken images known so far.

    Raises:
        ValueError: If an argument does not fit the others or the source.
    """
    import tensorflow as tf

    image_size = (image_size, image_size) if isinstance(image_size, int) else tuple(image_size)
    policy = _policy(policy)
    mixes = bool(policy.mixup or policy.cutmix or policy.label_smoothing)
    labels = _labels(source, labels, mixes, policy)
    _check_counts(image_size, batch_size, channels, num_shards, shard_index, skip_batches, num_batches, shuffle_buffer)
    if policy.randaugment and channels != 3:
        raise ValueError(f"Expected RGB images for a policy with RandAugment. Received: channels={channels}")
    constants = [np.reshape(np.array(c, "float32"), -1) for c in (mean, std)]
    if any(len(c) not in (1, channels) for c in constants) or (constants[1] <= 0).any():
        raise ValueError(
            f"Expected `mean` and `std` as numbers, or {channels} each, and `std` above 0. Received: {mean}, {std}"
        )
    offset, divisor = (float(c[0]) if len(c) == 1 else c for c in (255 * constants[0], 255 * constants[1]))
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
        interpolation,
        antialias,
        crop_fraction,
        max_pixels,
        source.arrays,
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

    first_epoch, start = _position(skip_batches, batch_size, size, repeat, drop_remainder)

    def stream(epoch):
        """An epoch's (index, record), counted through from the first epoch on."""
        data = order(epoch)
        if policy.repeats > 1:
            data = data.flat_map(lambda r: tf.data.Dataset.from_tensors(r).repeat(policy.repeats))
        begin = tf.where(epoch == first_epoch, tf.constant(start, "int64"), tf.constant(0, "int64"))
        indices = tf.data.Dataset.range(epoch * size + begin, (epoch + 1) * size)
        return tf.data.Dataset.zip(indices, data.skip(begin))

    if repeat:
        data = tf.data.Dataset.range(first_epoch, np.iinfo("int64").max).flat_map(stream)
    else:
        with tf.device("CPU:0"):
            counter = tf.Variable(first_epoch, dtype="int64", trainable=False)
        data = tf.data.Dataset.range(1).map(lambda _: counter.assign_add(1) - 1).flat_map(stream)

    # A function of TensorFlow's, since keras-cv wants AutoGraph, which does not reach into datasets in datasets.
    augment = tf.function(RandAugment(*policy.randaugment, policy.magnitude_std)) if policy.randaugment else None
    erase = seeded("RandomErasing", factor=(policy.erasing, policy.erasing)) if policy.erasing else None

    def decode(index, record):
        encoded = tf.io.read_file(record["image"]) if files else record["image"]
        return index, cut.decode(encoded, seed_of(index)), record.get("label", ())

    def prepare(index, image, label):
        image_seed = seed_of(index)
        image = cut.resize(image, image_seed)
        if augment:
            image = augment(image, tf.random.fold_in(image_seed, 1))
        if erase:
            image = erase(image, tf.random.fold_in(image_seed, 2))
        # In this form, and not as x * a + b, -1 and 1 come out exact; a division would take twice as long.
        image = (image - offset) * (1 / divisor) if normalize else image
        return index, image, label

    broken = BrokenImages(
        lambda epoch: tf.data.Dataset.from_tensors(tf.constant(epoch, "int64")).flat_map(order),
        lambda record: decode(tf.zeros((), "int64"), record)[1],
        num_distinct,
        policy.repeats,
        (first_epoch, start),
        0 if repeat else batch_size,
    )
    broken.check(shard, lambda r: cut(tf.io.read_file(r["image"]) if source.files else r["image"], (0, 0)))

    # Paths cost nothing to hold for a second time.
    make_batches = together if files else one_by_one
    data = make_batches(data, decode, prepare, batch_size, parallel, drop_remainder=repeat)

    def watch(indices, images, label):
        # One after the other; what it returns is used so that it is not left out.
        with tf.control_dependencies([tf.numpy_function(broken.arrived, [indices // size, indices % size], "int64")]):
            return tf.nest.map_structure(tf.identity, (images, label, indices))

    data = data.map(watch)
    if drop_remainder and not repeat:
        # Here, since the images left out are not broken.
        data = data.filter(lambda images, *_: tf.shape(images)[0] == batch_size)
    if not repeat:
        data = data.concatenate(_after(lambda: broken.end(int(counter) - 1), data.element_spec))
    mix = Mix(policy)

    def finish(images, label, indices):
        if drop_remainder:
            images, label = tf.nest.map_structure(
                lambda x: tf.ensure_shape(x, (batch_size, *x.shape[1:])), (images, label)
            )
        if labels is None:
            return images
        if labels == "int":
            return images, tf.cast(label, "int32")
        label = tf.cast(label, "float32") if labels == "multi_hot" else tf.one_hot(label, source.num_classes)
        return mix(images, label, tf.random.fold_in(seed_of(indices[0]), 3)) if mixes else (images, label)

    options = tf.data.Options()
    options.deterministic = options.autotune.enabled = True
    # Threads of its own, one more than there are cores: measured, a few hundredths faster than the common ones.
    options.threading.private_threadpool_size = (os.cpu_count() or 1) + 1
    # Or each window of `together` would begin with 16 at most.
    options.autotune.initial_parallelism = options.threading.private_threadpool_size
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    # Without mixing it is too little for a thread of its own.
    data = data.map(finish, parallel if mixes else None)
    if num_batches is not None:
        data = data.take(num_batches)
    data = data.prefetch(tf.data.AUTOTUNE).with_options(options)
    data.class_names, data.num_classes = list(source.class_names), source.num_classes
    data.num_images, data.broken = size, broken
    if not repeat or num_batches is not None:
        # For `len` and the progress bar of Keras, which warns where it is not told. TensorFlow's own assertion of it
        # would be an error as soon as an image is broken.
        most = math.inf if num_batches is None else num_batches
        rounded = (lambda n: n // batch_size) if drop_remainder else (lambda n: -(-n // batch_size))

        def length():
            return most if repeat else min(most, rounded(size - len(broken) * policy.repeats))

        data.cardinality = lambda: tf.constant(length(), "int64")
    return data


def _after(function, spec):
    """An empty dataset that calls a function when a reader comes to its end."""
    import tensorflow as tf

    def call(_):
        function()
        return np.bool_(False)

    never = tf.data.Dataset.range(1).filter(lambda i: tf.ensure_shape(tf.numpy_function(call, [i], "bool"), ()))
    return never.map(lambda _: blank(spec))


def _position(skip_batches, batch_size, size, repeat, drop_remainder):
    """The (epoch, position in it) at which a run goes on after as many batches."""
    if repeat:
        return divmod(skip_batches * batch_size, size)
    per_epoch = size // batch_size if drop_remainder else math.ceil(size / batch_size)
    if not per_epoch:
        raise ValueError(f"Expected at most {size} images a batch with `drop_remainder`. Received: {batch_size}")
    epoch, batch = divmod(skip_batches, per_epoch)
    return epoch, batch * batch_size


def _policy(policy):
    if isinstance(policy, Policy):
        return policy
    if policy not in POLICIES:
        raise ValueError(f"Expected `policy` to be a Policy or one of {', '.join(POLICIES)}. Received: {policy!r}")
    return POLICIES[policy]


def _labels(source, labels, mixes, policy):
    """What the labels that come out are like: one of LABELS."""
    if labels not in ("int", "one_hot", None):
        raise ValueError(f"Expected `labels` to be 'int', 'one_hot' or None. Received: {labels!r}")
    if mixes and (source.labels is None or labels == "int"):
        raise ValueError(f"Expected one-hot labels for a policy that mixes or smooths them. Received: {policy}")
    if source.labels == "multi_hot":
        if policy.label_smoothing or labels:
            raise ValueError(
                "Expected multi-label data without `labels` and without label smoothing, which spreads one label over "
                f"the classes. Received: labels={labels!r}, {policy}"
            )
        return "multi_hot"
    return None if source.labels is None else labels or ("one_hot" if mixes else "int")


def _check_counts(image_size, batch_size, channels, num_shards, shard_index, skip_batches, num_batches, shuffle_buffer):
    counts = {"batch_size": batch_size, "channels": channels, "num_shards": num_shards}
    counts |= {} if num_batches is None else {"num_batches": num_batches}
    counts |= {"shuffle_buffer": shuffle_buffer, "image_size": min(image_size, default=0), "skip_batches": skip_batches}
    for name, count in counts.items():
        least = int(name != "skip_batches")
        if isinstance(count, bool) or not isinstance(count, int) or count < least:
            raise ValueError(f"Expected `{name}` to be an integer of at least {least}. Received: {count!r}")
    if not 0 <= shard_index < num_shards:
        raise ValueError(f"Expected `shard_index` from 0 to {num_shards - 1}. Received: {shard_index!r}")
