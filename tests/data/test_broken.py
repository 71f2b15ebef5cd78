import itertools
import time

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_vit.data import broken as broken_images
from keras_vit.data import from_dataframe
from tests.data.images import jpeg


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("two")
    (folder / "sound").write_bytes(jpeg(9))
    (folder / "broken").write_bytes(jpeg(9)[:200])
    return folder


# All images of the first or last batch are broken, or a batch spans the end of an epoch.
@pytest.mark.parametrize(
    "broken, batch_size, skip_batches, options",
    [({0, 1, 2, 3, 8, 9}, 2, 0, {}), ({0, 1, 2, 8, 9}, 3, 1, {"repeat": True})],
    ids=["evaluation", "repeat"],
)
def test_batches_with_broken_images(folder, broken, batch_size, skip_batches, options):
    check_batches(folder, broken, batch_size, skip_batches, options)


@pytest.mark.long
# Each example builds a pipeline.
@settings(max_examples=20)
@given(
    broken=st.sets(st.integers(0, 9), max_size=9),
    batch_size=st.integers(1, 5),
    skip_batches=st.integers(0, 5),
    options=st.sampled_from([{}, {"repeat": True}, {"drop_remainder": True}, {"cache": True}, {"training": True}]),
)
def test_batches_with_random_broken_images(folder, broken, batch_size, skip_batches, options):
    check_batches(folder, broken, batch_size, skip_batches, options)


def check_batches(folder, broken, batch_size, skip_batches, options):
    table = {"path": ["broken" if i in broken else "sound" for i in range(10)], "label": list(range(10))}
    options = {"training": False, "shuffle": False, **options}
    options |= {"batch_size": batch_size, "skip_batches": skip_batches}
    data = from_dataframe(table, directory=folder, num_classes=10, image_size=8, **options)
    repeat, drop = options.get("repeat"), options.get("drop_remainder")
    if not repeat:
        assert len(data) == (10 // batch_size if drop else -(-10 // batch_size))
    # The second epoch must not contain images of the first.
    found = [labels.numpy().tolist() for _, labels in (data.take(9) if repeat else itertools.chain(data, data))]
    if repeat:
        places = [[i % 10 for i in range(k * batch_size, (k + 1) * batch_size)] for k in range(100)]
    else:
        places = [list(range(10))[i : i + batch_size] for i in range(0, 10, batch_size)] * 9
        places = [places for places in places if len(places) == batch_size or not drop]

    def of(places):
        sound = [i for i in places if i not in broken] or [min(set(range(10)) - broken)]
        full = repeat or drop or options["training"]
        return [sound[i % len(sound)] for i in range(len(places))] if full else sound

    assert found == [of(p) for p in places[skip_batches:][: len(found)]]


@pytest.mark.parametrize("broken", [set(), {5}, set(range(16))], ids=["none", "one", "all"])
@pytest.mark.parametrize("full", [False, True])
def test_in_place_decodes_each_image_once(broken, full):
    decoded = []

    def load(number):
        decoded.append(int(number))
        if number in broken:
            raise ValueError("broken")
        return np.full(2, number, "float32")

    def decode(index, record):
        return index, tf.ensure_shape(tf.numpy_function(load, [record["image"]], "float32"), (2,)), ()

    records = tf.data.Dataset.range(16).map(lambda i: {"name": tf.strings.as_string(i), "image": i})
    data = tf.data.Dataset.zip(tf.data.Dataset.range(100, 116), records)
    placeholder = {"name": "99", "image": np.int64(99)}
    made = list(broken_images.replace_broken(data, decode, lambda *element: element, placeholder, 4, 1, full=full))
    assert [int(index) for index, *_ in made] == [100, 104, 108, 112]
    for k, (_, images, _, (indices, names, _)) in enumerate(made):
        places = range(4 * k, 4 * k + 4)
        sound = [i for i in places if i not in broken] or [99]
        sound = [sound[i % len(sound)] for i in range(4)] if full else sound
        assert images[:, 0].numpy().tolist() == sound
        assert [100 + int(name) for name in names.numpy()] == indices.numpy().tolist()
        assert {*places} & broken == {int(name) for name in names.numpy()}
    assert sorted(number for number in decoded if number != 99) == list(range(16))


def test_broken_image_does_not_cancel_running_loop():
    """An augmentation's loop may start from the index alone, while a Python function still decodes the image."""

    def load(number):
        time.sleep(0.01)
        if number % 4 == 3:
            raise ValueError("broken")
        return np.float32(number)

    @tf.function(autograph=False, experimental_attributes={"_noinline": True})
    def loaded(number):
        return tf.ensure_shape(tf.numpy_function(load, [number], "float32"), ())

    def prepare(index, image, label):
        # The loop runs longer than it takes an image to fail.
        rounds = tf.while_loop(lambda i: i < index + 10_000, lambda i: i + 1, [index], parallel_iterations=1)[0]
        return index, image + tf.cast(rounds - index, "float32"), label

    records = tf.data.Dataset.range(32).map(lambda i: {"name": "", "image": i})
    data = tf.data.Dataset.zip(tf.data.Dataset.range(32), records)
    made = broken_images.replace_broken(
        data, lambda index, record: (index, loaded(record["image"]), ()), prepare, {"image": 0}, 4, 2
    )
    found = np.concatenate([images - 10_000 for _, images, *_ in made])
    np.testing.assert_array_equal(found, [i for i in range(32) if i % 4 < 3])
