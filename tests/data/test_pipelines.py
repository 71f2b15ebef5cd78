import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from keras_vit import Preprocessing
from keras_vit.data import Policy, Source, from_dataframe, from_directory, pipeline
from keras_vit.data.pipelines import input_options
from tests import tiny
from tests.data.images import batches, equal, write_classes
from tests.errors import refuses
from tests.tiny import assert_close

ERASING = Policy(erasing=0.5, label_smoothing=0.1)
PIPELINE_REFUSES_INVALID_ARGUMENT = [
    ({"augment": "heavy"}, "`augment`. Expected one of 'none', 'light1', .*'heavy'"),
    ({"labels": "sparse"}, "`labels` to be 'int', 'one_hot', 'none' or None"),
    ({"labels": "int", "augment": "deit"}, "one-hot labels for `augment` that mixes"),
    ({"augment": "light1", "channels": 1}, "RGB images for a policy with RandAugment. Received: channels=1"),
    ({"preprocessing": Preprocessing(mean=(0.5, 0.5))}, "`mean` to hold one number, or one for each of the images' 3"),
    ({"augment": ["deit", ERASING]}, "`augment`. Expected a list of layers and at most one `Policy`"),
    ({"shuffle": 0}, "`shuffle`. Expected an integer of at least 1. Received: 0"),
    ({"batch_size": 0}, "`batch_size`. Expected an integer of at least 1. Received: 0"),
    ({"image_size": 0}, "`image_size`. Expected an integer of at least 1"),
    ({"num_shards": 2, "shard_index": 2}, "`shard_index`. Expected an integer of at most 1. Received: 2"),
    ({"num_shards": 2, "shard_index": 1.0}, "`shard_index`. Expected an integer of at least 0. Received: 1.0"),
    ({"num_shards": 3}, "`batch_size`. Expected a multiple of num_shards=3. Received: 8"),
    ({"num_shards": 2}, "`repeat`, `drop_remainder` or `pad_remainder` with several shards, .*: num_shards=2"),
    ({"pad_remainder": True, "repeat": True}, "`pad_remainder` without `repeat` and .* Received: repeat=True"),
    ({"pad_remainder": True, "drop_remainder": True}, "`pad_remainder` without .*, drop_remainder=True"),
    ({"pad_remainder": True, "augment": "deit"}, "no `pad_remainder` with `augment` that mixes"),
    ({"drop_remainder": True, "batch_size": 25}, "`batch_size` <= 24"),
]


def make(folder, **options):
    return from_directory(folder, **{"image_size": 8, "batch_size": 8, **options})


LONG = pytest.mark.long


@pytest.mark.parametrize("options", [{}, pytest.param({"augment": "deit", "cache": True}, marks=LONG)], ids=str)
def test_batches_depend_only_on_seed(folder, options):
    first, threads, other = (
        batches(make(folder, **options, **more).take(6)) for more in ({}, {"num_parallel_calls": 5}, {"seed": 1})
    )
    assert equal(first, threads) and not equal(first, other)


@pytest.mark.parametrize("repeat", [pytest.param(False, marks=LONG), True])
def test_skip_batches_resumes_stream(folder, repeat):
    options = {"batch_size": 5, "repeat": repeat, "augment": ERASING}
    whole = make(folder, **options)
    stream = batches(whole.take(13)) if repeat else [batch for _ in range(4) for batch in batches(whole)]
    for skipped in (4, 7):
        rest = make(folder, **options, skip_batches=skipped)
        found = batches(rest.take(13 - skipped)) if repeat else batches(rest) + batches(rest)
        assert equal(found, stream[skipped:][: len(found)])


def test_epochs_differ_and_advance_after_last_batch(folder):
    data, other = make(folder), make(folder)
    first, second = batches(other), batches(other)
    orders = [np.concatenate([labels for _, labels in epoch]).tolist() for epoch in (first, second)]
    assert sorted(orders[0]) == sorted(orders[1]) and orders[0] != orders[1]
    assert equal(batches(make(folder, repeat=True).take(6)), first + second)
    limited, seen = make(folder, repeat=True, num_batches=2), []
    for number in (0, 1, 2):
        limited.set_epoch(number)
        seen += batches(limited)
    assert equal(seen, first + second) and equal(batches(limited), second[1:])
    next(iter(data))
    assert equal(batches(data.take(2)), first[:2])
    # Two concurrent iterators read the same epoch.
    pairs = batches(zip(data, data, strict=True))
    assert equal([pair[:2] for pair in pairs], first) and equal([pair[2:] for pair in pairs], first)
    # Keras reads exactly the batches of an epoch, without a further call that would end the iterator.
    third = iter(data)
    assert equal([[x.numpy() for x in next(third)] for _ in range(3)], second)
    data.set_epoch(1)
    assert equal(batches(data), second)
    refuses("an integer of at least 0. Received: -1", data.set_epoch, -1)


def test_evaluation_keeps_order_and_repeats(folder):
    data = make(folder, training=False)
    whole = batches(data)
    assert equal(batches(data), whole)
    assert np.concatenate([labels for _, labels in whole]).tolist() == sorted(i % 4 for i in range(24))
    part = make(folder, training=False, skip_batches=1, num_batches=1)
    assert equal(batches(part) + batches(part), [whole[1]] * 2)


def shared(folder, num_shards, **options):
    """Returns the datasets of the processes that share the batches."""
    return [make(folder, **options, num_shards=num_shards, shard_index=i) for i in range(num_shards)]


def side_by_side(parts):
    """Joins the batches of several processes, which must have as many rows and batches each."""
    joined = list(zip(*map(batches, parts), strict=True))
    assert all(len({len(images) for images, *_ in batch}) == 1 for batch in joined)
    return [[np.concatenate(arrays) for arrays in zip(*batch, strict=True)] for batch in joined]


@pytest.mark.parametrize(
    ("num_shards", "options"),
    [
        (2, {"repeat": True, "num_batches": 7, "batch_size": 10, "augment": ERASING, "num_parallel_calls": 3}),
        pytest.param(2, {"repeat": True, "num_batches": 4, "skip_batches": 2, "cache": True}, marks=LONG),
        pytest.param(4, {"drop_remainder": True, "skip_batches": 2, "augment": Policy(repeats=3)}, marks=LONG),
        pytest.param(2, {"pad_remainder": True, "skip_batches": 1, "num_batches": 1, "batch_size": 20}, marks=LONG),
        pytest.param(2, {"drop_remainder": True, "training": False, "labels": "none"}, marks=pytest.mark.long),
    ],
    ids=str,
)
def test_shards_join_to_batches_of_one_process(folder, num_shards, options):
    one, parts = make(folder, **options), shared(folder, num_shards, **options)
    # The second iteration would show shards that drift apart.
    for _ in range(2):
        assert equal(side_by_side(parts), batches(one))
    assert {(len(part), part.num_images, part.num_shards) for part in parts} == {(len(one), 24, num_shards)}


@pytest.mark.parametrize("more", [{}, {"cache": True}], ids=str)
def test_shard_opens_only_its_files(folder, more, monkeypatch):
    """Without a cache, a shard opens its part of the files. With a cache, it opens all files."""
    opened, read = [], tf.io.read_file

    def noted(path):
        return read(tf.ensure_shape(tf.numpy_function(lambda x: opened.append(x) or x, [path], "string"), ()))

    monkeypatch.setattr(tf.io, "read_file", noted)
    found = []
    for part in shared(folder, 2, drop_remainder=True, **more):
        opened.clear()
        batches(part)
        found.append(sorted(opened))
    if more:
        assert len(found[0]) == 24 and found[0] == found[1]
    else:
        assert len(found[0]) == len(found[1]) == 12 and len({*found[0], *found[1]}) == 24


def test_padded_epoch_of_shards_contains_each_image_once(folder, tmp_path):
    paths, broken = sorted(folder.rglob("*.jpg"))[:7], {2, 6}
    (tmp_path / "broken").write_bytes(b"")
    table = {"path": [tmp_path / "broken" if i in broken else path for i, path in enumerate(paths)], "label": range(7)}
    options = {"image_size": 8, "batch_size": 4, "num_classes": 7, "pad_remainder": True}
    parts = [from_dataframe(table, **options, num_shards=2, shard_index=i) for i in range(2)]
    for _ in range(2):
        found = side_by_side(parts)
        assert [len(images) for images, *_ in found] == [4, 4]
        labels, weights = (np.concatenate(arrays) for arrays in list(zip(*found, strict=True))[1:])
        assert sorted(labels[weights > 0]) == [i for i in range(7) if i not in broken]
        np.testing.assert_allclose(weights[weights > 0], len(weights) / 7, rtol=1e-6)


@pytest.mark.parametrize("options", [{"num_batches": 2}, {"num_batches": 9, "skip_batches": 2}], ids=str)
def test_weights_of_padded_epoch_have_mean_1(folder, options):
    weights = [batch[2] for batch in batches(make(folder, pad_remainder=True, batch_size=10, **options))]
    padded = np.concatenate(weights) == 0
    assert padded.sum() == (0 if options == {"num_batches": 2} else 6)
    assert np.mean(weights) == pytest.approx(1)


def test_evaluate_on_padded_batches_is_exact(folder, tmp_path):
    paths = [str(path) for path in sorted(folder.rglob("*.jpg"))]
    (tmp_path / "broken").write_bytes(b"")
    table = {"path": paths, "label": [i % 4 for i in range(24)], "weight": [1 + i % 3 for i in range(24)]}
    model = keras.Sequential([keras.Input((8, 8, 3)), keras.layers.Flatten(), keras.layers.Dense(4)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(loss=loss, weighted_metrics=["accuracy"], run_eagerly=True)

    def evaluate(**options):
        data = from_dataframe(table, image_size=8, num_classes=4, training=False, **options)
        return model.evaluate(data, verbose=0)

    for weight_column, batch_size in ((None, 40), ("weight", 7)):
        expected = evaluate(batch_size=24, weight_column=weight_column)
        assert 0 < expected[1] < 1
        padded = evaluate(batch_size=batch_size, weight_column=weight_column, pad_remainder=True)
        np.testing.assert_allclose(padded, expected, rtol=1e-5)
    table["path"][4:6] = [str(tmp_path / "broken")] * 2
    loss, accuracy = evaluate(batch_size=24)
    np.testing.assert_allclose(evaluate(batch_size=7, pad_remainder=True), [loss * 22 / 24, accuracy], rtol=1e-5)


def test_padding_of_unlabelled_images_comes_last(folder):
    options = {"training": False, "labels": "none", "batch_size": 10}
    images, padded = (
        np.concatenate([batch[0] for batch in batches(make(folder, **options, **more))])
        for more in ({}, {"pad_remainder": True})
    )
    assert len(padded) == 30
    np.testing.assert_array_equal(padded[:24], images)


@pytest.mark.parametrize(
    "options", [pytest.param({"repeat": True, "num_batches": 6}, marks=LONG), {"drop_remainder": True}]
)
def test_shard_with_only_broken_images_takes_all_steps(tmp_path, options):
    paths = sorted(write_classes(tmp_path, 24))
    for i, path in enumerate(paths):
        if i % 4 > 1:
            path.write_bytes(b"")
    parts = shared(tmp_path, 2, batch_size=4, shuffle=False, crop="eval", flip=False, **options)
    sound, broken = map(batches, parts)
    assert len(sound) == len(broken) == 6
    for images, labels in broken:
        assert (labels == 0).all()
        np.testing.assert_array_equal(images, [sound[0][0][0]] * 2)
    assert [len(part.broken) for part in parts] == [0, 12]


def test_repeats_give_different_copies_of_an_image(folder):
    # Images differ in their brightness, and the copies of an image in their crop.
    data = make(folder, augment=Policy(repeats=3), batch_size=6, normalize=False, scale=(0.8, 1.0))
    labels = []
    for images, these in batches(data):
        labels += these.tolist()
        for i in (0, 3):
            copies = images[i : i + 3]
            assert len({x.tobytes() for x in copies}) == 3
            assert np.ptp(copies.mean((1, 2, 3))) < 4
            assert len(set(these[i : i + 3].tolist())) == 1
    assert len(labels) == data.num_images == 24


@pytest.mark.parametrize("shuffle", [False, 5])
def test_epochs_of_repeats_read_all_images_in_turn(shuffle):
    png = tf.io.encode_png(np.zeros((8, 8, 3), "uint8"))
    records = tf.data.Dataset.range(31).map(lambda i: {"name": tf.strings.as_string(i), "image": png, "label": i})
    data = pipeline(Source(records, 31, False, "int", (), 31), image_size=8, augment=Policy(repeats=3), shuffle=shuffle)
    found = [{int(label) for _, labels in batches(data) for label in labels} for _ in range(3)]
    assert [len(epoch) for epoch in found] == [10] * 3 and len(set().union(*found)) == 30


def test_one_hot_labels_and_static_shapes(folder):
    one_hot = next(iter(make(folder, labels="one_hot")))[1].numpy()
    assert one_hot.dtype == "float32" and set(one_hot.ravel()) == {0, 1} and (one_hot.sum(1) == 1).all()
    mixed = make(folder, drop_remainder=True, augment="deit")
    images, labels = mixed.element_spec
    assert (images.shape, images.dtype, labels.shape) == ((8, 8, 8, 3), tf.float32, (8, 4))
    np.testing.assert_allclose(next(iter(mixed))[1].numpy().sum(1), 1, atol=1e-5)
    assert make(folder, repeat=True).element_spec[0].shape == (8, 8, 8, 3)
    dropped = make(folder, drop_remainder=True, batch_size=7)
    assert len(dropped) == 3 == len(batches(dropped))
    # tf.data's tuner sleeps for up to a minute before an iteration can end.
    assert dropped.prefetch(1).options().autotune.enabled is False


def test_cache_on_disk_gives_batches_of_its_source(folder, tmp_path):
    # A second source must not read the images and labels in the cache of the first.
    cache, classes = {"cache": tmp_path / "cache"}, {"class_names": ["class3", "class1"]}
    batches(make(folder, **cache))
    assert list(tmp_path.iterdir())
    assert equal(batches(make(folder, **cache, **classes)), batches(make(folder, **classes)))


@pytest.mark.parametrize("options, message", PIPELINE_REFUSES_INVALID_ARGUMENT)
def test_pipeline_refuses_invalid_argument(folder, options, message):
    refuses(message, make, folder, **options)


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"policy": "light2"}, "augment='light2'"),
        ({"mean": 0.4, "std": 0.2}, r"preprocessing=keras_vit.Preprocessing\(mean=0.4, std=0.2\)"),
        ({"crop_fraction": 0.9, "policy": "deit"}, "augment='deit', preprocessing=.*crop_fraction=0.9"),
        ({"shuffle_buffer": 50}, "shuffle=50"),
    ],
    ids=str,
)
def test_argument_of_0_2_is_refused_with_new_line(folder, options, line):
    refuses(f"Received: {', '.join(options)}. Write {line}", make, folder, error=TypeError, **options)
    refuses("Received: colour$", make, folder, error=TypeError, colour=1)
    line = r"Write preprocessing=keras_vit.config_of\(model\).preprocessing.changed\(mean=0.4\)"
    refuses(line, make, folder, error=TypeError, mean=0.4, preprocessing=tiny.build())


def linear(loss=keras.losses.SparseCategoricalCrossentropy):
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((8, 8, 3)), keras.layers.Flatten(), keras.layers.Dense(4)])
    model.compile("sgd", loss(from_logits=True), metrics=["accuracy"], run_eagerly=True)
    return model


def fit(model, data, **options):
    """Runs `fit`, which must not run out of data, and returns the number of its steps."""
    with warnings.catch_warnings():
        warnings.filterwarnings("error", ".*ran out of data")
        model.fit(data, verbose=0, shuffle=False, **options)
    return int(model.optimizer.iterations)


@pytest.mark.long_elsewhere
def test_fit_reads_batches_of_consecutive_epochs(folder):
    """MixUp and CutMix are Keras layers within the pipeline."""
    policy = Policy(mixup=0.8, cutmix=1.0)
    first, second = (make(folder, augment=policy) for _ in range(2))
    model, expected = (linear(keras.losses.CategoricalCrossentropy) for _ in range(2))
    # The second call of `fit` reads the third epoch.
    for epochs in (2, 1):
        for images, labels in [batch for _ in range(epochs) for batch in batches(first)]:
            expected.train_on_batch(images, labels)
        fit(model, second, epochs=epochs)
        assert_close(model.get_weights(), expected.get_weights(), atol=1e-5)
    evaluation = make(folder, training=False, labels="one_hot")
    assert model.evaluate(evaluation, verbose=0) == model.evaluate(evaluation, verbose=0)


@pytest.mark.parametrize("broken", [False, pytest.param(True, marks=pytest.mark.long)])
def test_number_of_batches_in_len_and_fit(folder, tmp_path, broken):
    if broken:
        paths = write_classes(tmp_path, 24)
        for i in (1, 2, 3, *range(4, 24, 5)):
            paths[i].write_bytes(b"")
        folder = tmp_path
    for training in (True, False):
        data = make(folder, training=training, batch_size=4)
        derived = [data.map(lambda x, y: (x, y)), data.take(9), data.prefetch(2), data.map(lambda x, y: (x, y)).take(6)]
        assert [len(d) for d in (data, *derived)] == [6] * 5
        assert len(data.take(2)) == 2
        if broken or training:
            assert fit(linear(), data if broken else derived[-1], epochs=2) == 12
    assert make(folder, repeat=True).cardinality() == tf.data.INFINITE_CARDINALITY
    assert len(make(folder, repeat=True, num_batches=5)) == 5


DEIT = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225), "interpolation": "bicubic", "crop_fraction": 0.875}


def test_preprocessing_from_model(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (2, 48, 64, 3)).astype("uint8")
    for i, name in enumerate("ab"):
        (tmp_path / name).mkdir()
        keras.utils.save_img(tmp_path / name / "0.png", pixels[i], scale=False)
    # Pillow resizes the shorter side to 16 / 0.875 pixels, rounded as in torchvision, and crops the centre.
    expected = [
        np.array(Image.fromarray(image).resize((24, 18), Image.Resampling.BICUBIC).crop((4, 1, 20, 17)), "float32")
        for image in pixels
    ]
    scaled = (np.array(expected) / 255 - DEIT["mean"]) / DEIT["std"]
    raw = tiny.build(preprocessing=DEIT, include_preprocessing=True)
    head = keras.Sequential([keras.Model(raw.input, keras.layers.Dense(2)(raw.output))])
    # The tolerance covers Pillow's rounding to whole numbers.
    for preprocessing, pixels, atol in ((Preprocessing(**DEIT), scaled, 0.02), (head, expected, 1)):
        data = from_directory(tmp_path, preprocessing=preprocessing, image_size=16, training=False)
        np.testing.assert_allclose(next(iter(data))[0], pixels, atol=atol)


def test_inputs_of_model_and_arguments_that_replace_them():
    def options(model, **given):
        return input_options(model, **{"image_size": None, "channels": None, "normalize": None, **given})

    plain, raw = (tiny.build(preprocessing=DEIT, include_preprocessing=include) for include in (False, True))
    found = {"image_size": (16, 16), "channels": 3, "normalize": True, "preprocessing": Preprocessing(**DEIT)}
    assert options(plain) == found and options(raw) == {**found, "normalize": False}
    assert options(raw, image_size=8, normalize=True) == {**found, "image_size": 8}
    other = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)], name="mine")
    refuses("Received: 'mine' of type Sequential", options, other)
