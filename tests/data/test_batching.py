import itertools
import sys
import time

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import example, given, settings
from hypothesis import strategies as st

from keras_vit.data import Policy, batching, from_dataframe
from tests.data.images import batches, equal, jpeg


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("two")
    (folder / "sound").write_bytes(jpeg(9))
    (folder / "broken").write_bytes(jpeg(9)[:200])
    return folder


@settings(max_examples=6)
@given(
    window=st.sampled_from([4, 2048]),
    broken=st.sets(st.integers(0, 9), max_size=9),
    batch_size=st.integers(1, 5),
    skip_batches=st.integers(0, 5),
    options=st.sampled_from([{}, {"repeat": True}, {"drop_remainder": True}, {"cache": True}]),
)
# Whole batches, the first and the last among them; more than an epoch's end; none.
@example(2048, {0, 1, 2, 3, 8, 9}, 2, 0, {})
@example(4, {0, 1, 2, 8, 9}, 3, 1, {"repeat": True})
@example(4, set(), 4, 0, {})
@example(4, {9}, 5, 0, {})
def test_batches_are_the_sound_images_in_order(folder, window, broken, batch_size, skip_batches, options):
    table = {"path": ["broken" if i in broken else "sound" for i in range(10)], "label": list(range(10))}
    options = {**options, "batch_size": batch_size, "skip_batches": skip_batches, "image_size": 8, "training": False}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batching, "WINDOW", window)
        data = from_dataframe(table, directory=folder, num_classes=10, **options)
    repeat, drop = options.get("repeat"), options.get("drop_remainder")
    # Two epochs, since nothing may be left of the first.
    found = [labels.numpy().tolist() for _, labels in (data.take(9) if repeat else itertools.chain(data, data))]

    def sound(start, count=10):
        return [i % 10 for i in range(start, start + count) if i % 10 not in broken]

    def full(numbers, keep_rest):
        groups = [numbers[i : i + batch_size] for i in range(0, len(numbers), batch_size)]
        return [group for group in groups if keep_rest or len(group) == batch_size]

    if repeat:
        expected = full(sound(skip_batches * batch_size, 1000), False)[:9]
    else:
        start = skip_batches % (10 // batch_size if drop else -(-10 // batch_size)) * batch_size
        expected = full(sound(start, 10 - start), not drop) + full(sound(0), not drop)
    assert found == expected


@pytest.mark.parametrize(
    ("broken", "sizes", "num_decoded"),
    # Of two windows of two batches; a broken image is tried again, with those beside it.
    [(set(), [4, 4, 4, 4], 16), ({5}, [4, 4, 4, 3], 16 + 4), (set(range(16)), [], 16 + 16)],
    ids=["none", "one", "all"],
)
def test_only_what_is_missing_is_made_again(monkeypatch, broken, sizes, num_decoded):
    decoded = []

    def load(number):
        decoded.append(int(number))
        if number in broken:
            raise ValueError("broken")
        return np.full(2, number, "float32")

    def decode(index, record):
        return index, tf.ensure_shape(tf.numpy_function(load, [record], "float32"), (2,)), ()

    monkeypatch.setattr(batching, "WINDOW", 8)
    data = tf.data.Dataset.zip(tf.data.Dataset.range(100, 116), tf.data.Dataset.range(16))
    made = list(batching.together(data, decode, lambda *element: element, 4, 1))
    assert [len(images) for _, images, _ in made] == sizes
    assert [int(i) for indices, *_ in made for i in indices] == [100 + i for i in range(16) if i not in broken]
    # A batch ends at its broken image or goes on to its end, as the threads are.
    assert len(decoded) <= num_decoded and set(decoded) == set(range(16))
    assert broken or sorted(decoded) == list(range(16))


def test_no_loop_is_cancelled_by_a_broken_image():
    """As that of an augmentation whose start needs the index alone, while the image is decoded in a function."""

    def load(number):
        time.sleep(0.01)
        if number % 4 == 3:
            raise ValueError("broken")
        return np.float32(number)

    @tf.function(autograph=False, experimental_attributes={"_noinline": True})
    def loaded(number):
        return tf.ensure_shape(tf.numpy_function(load, [number], "float32"), ())

    def prepare(index, image, label):
        # Longer than it takes an image to fail.
        rounds = tf.while_loop(lambda i: i < index + 10_000, lambda i: i + 1, [index], parallel_iterations=1)[0]
        return index, image + tf.cast(rounds - index, "float32"), label

    data = tf.data.Dataset.zip(tf.data.Dataset.range(32), tf.data.Dataset.range(32))
    made = list(batching.together(data, lambda index, record: (index, loaded(record), ()), prepare, 4, 2))
    found = np.concatenate([images - 10_000 for _, images, _ in made])
    np.testing.assert_array_equal(found, [i for i in range(32) if i % 4 < 3])


@pytest.mark.parametrize(
    "options",
    [
        {"policy": Policy(repeats=3, erasing=0.5)},
        {"repeat": True, "num_batches": 6, "num_shards": 2, "shard_index": 1, "skip_batches": 3, "labels": "one_hot"},
    ],
    ids=["repeats", "shard"],
)
def test_both_ways_give_the_same_batches(monkeypatch, folder, options):
    for i in range(12):
        (folder / str(i)).write_bytes(jpeg(20 * i)[: 200 if i in (3, 4, 11) else None])
    table = {"path": [str(i) for i in range(12)], "label": [i % 3 for i in range(12)]}
    monkeypatch.setattr(batching, "WINDOW", 5)

    def make():
        return batches(from_dataframe(table, directory=folder, num_classes=3, image_size=8, batch_size=4, **options))

    found = make()
    monkeypatch.setattr(sys.modules["keras_vit.data.pipeline"], "together", batching.one_by_one)
    assert found and equal(found, make())
