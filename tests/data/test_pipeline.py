import numpy as np
import pytest
import tensorflow as tf

from keras_vit.data import Policy, from_directory
from tests.data.images import batches, equal, write_classes


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("images")
    write_classes(folder, 24)
    return folder


def make(folder, **options):
    return from_directory(folder, **{"image_size": 8, "batch_size": 8, **options})


@pytest.mark.parametrize(
    "options",
    [
        {},
        pytest.param({"policy": "deit"}, marks=pytest.mark.tried_on("tensorflow")),
        {"policy": "strong1", "cache": True},
    ],
    ids=str,
)
def test_the_same_seed_gives_the_same_batches(folder, options):
    first, again, threads, other = (
        batches(make(folder, **options, **more).take(6)) for more in ({}, {}, {"num_parallel_calls": 5}, {"seed": 1})
    )
    assert equal(first, again) and equal(first, threads)
    assert not equal(first, other)


def test_epochs_differ_and_are_repeatable(folder):
    first, second = make(folder), make(folder)
    epochs = [batches(first), batches(second), batches(first), batches(second)]
    assert equal(epochs[0], epochs[1]) and equal(epochs[2], epochs[3])
    assert not equal(epochs[0], epochs[2])
    repeated = batches(make(folder, repeat=True).take(6))
    assert equal(repeated, epochs[0] + epochs[2])


@pytest.mark.parametrize("repeat", [False, True])
@pytest.mark.tried_on("tensorflow")
def test_goes_on_where_a_run_stopped(folder, repeat):
    options = {"batch_size": 5, "repeat": repeat, "policy": "light1"}
    whole = make(folder, **options)
    stream = batches(whole.take(13)) if repeat else batches(whole) + batches(whole) + batches(whole)
    for skipped in (4, 7):
        rest = make(folder, **options, skip_batches=skipped)
        found = batches(rest.take(13 - skipped)) if repeat else batches(rest) + batches(rest)
        assert equal(found, stream[skipped:][: len(found)])


def test_evaluation_is_in_order_and_the_same_each_time(folder):
    data = make(folder, training=False)
    assert equal(batches(data), batches(data))
    assert np.concatenate([labels for _, labels in batches(data)]).tolist() == sorted(i % 4 for i in range(24))


@pytest.mark.tried_on("tensorflow")
def test_shards_are_apart_and_complete(folder):
    options = {"training": False, "batch_size": 30}
    whole = batches(make(folder, **options))[0][0]
    parts = [batches(make(folder, **options, num_shards=5, shard_index=i))[0][0] for i in range(5)]
    assert [len(p) for p in parts] == [5, 5, 5, 5, 4]
    assert {x.tobytes() for p in parts for x in p} == {x.tobytes() for x in whole}
    crops = [batches(make(folder, shuffle=False, num_shards=2, shard_index=i))[0][0] for i in range(2)]
    assert not np.array_equal(crops[0], crops[1])


def test_repeated_augmentation(folder):
    # Brightness tells the images apart; the crop makes the copies differ.
    data = make(folder, policy=Policy(repeats=3), batch_size=6, normalize=False, scale=(0.8, 1.0))
    labels = []
    for images, these in batches(data):
        labels += these.tolist()
        for i in (0, 3):
            copies = images[i : i + 3]
            assert len({x.tobytes() for x in copies}) == 3
            assert np.ptp(copies.mean((1, 2, 3))) < 4
            assert len(set(these[i : i + 3].tolist())) == 1
    assert len(labels) == data.num_images == 24


@pytest.mark.tried_on("tensorflow")
def test_labels(folder):
    one_hot = next(iter(make(folder, labels="one_hot")))[1].numpy()
    assert one_hot.dtype == "float32" and set(one_hot.ravel()) == {0, 1} and (one_hot.sum(1) == 1).all()
    assert make(folder, policy="light2").element_spec[1].shape == (None, 4)
    np.testing.assert_allclose(next(iter(make(folder, policy="deit")))[1].numpy().sum(1), 1, atol=1e-5)


@pytest.mark.tried_on("tensorflow")
def test_shapes_are_static(folder):
    images, labels = make(folder, drop_remainder=True, policy="deit").element_spec
    assert (images.shape, images.dtype, labels.shape) == ((8, 8, 8, 3), tf.float32, (8, 4))
    assert make(folder, repeat=True).element_spec[0].shape == (8, 8, 8, 3)
    assert (
        len(make(folder, drop_remainder=True, batch_size=7))
        == 3
        == len(batches(make(folder, drop_remainder=True, batch_size=7)))
    )


def test_cached_on_disk(folder, tmp_path):
    options = {"cache": tmp_path / "cache", "training": False}
    first = batches(make(folder, **options))
    assert list(tmp_path.iterdir()) and equal(first, batches(make(folder, training=False)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"policy": "heavy"}, "`policy` to be a Policy or one of none, light1, .*'heavy'"),
        ({"labels": "sparse"}, "`labels` to be 'int', 'one_hot' or None"),
        ({"labels": "int", "policy": "deit"}, "one-hot labels for a policy that mixes"),
        ({"policy": "light1", "channels": 1}, "RGB images for a policy with RandAugment. Received: channels=1"),
        ({"mean": (0.5, 0.5)}, "`mean` and `std` as numbers, or 3 each"),
        ({"std": 0}, "`std` above 0"),
        ({"batch_size": 0}, "`batch_size` to be an integer of at least 1. Received: 0"),
        ({"image_size": 0}, "`image_size` to be an integer of at least 1"),
        ({"skip_batches": -1}, "`skip_batches` to be an integer of at least 0. Received: -1"),
        ({"num_shards": 2, "shard_index": 2}, "`shard_index` from 0 to 1. Received: 2"),
        ({"num_shards": 30}, "an image for each shard. Received: 24 for 30 shards"),
        ({"drop_remainder": True, "batch_size": 25}, "at most 24 images a batch"),
        ({"crop": "random"}, "`kind` to be one of"),
    ],
)
def test_refuses(folder, options, message):
    with pytest.raises(ValueError, match=message):
        make(folder, **options)


def test_the_order_differs_from_epoch_to_epoch(folder):
    data = make(folder, crop="eval", flip=False, batch_size=24)
    first, second = (batches(data)[0][0] for _ in range(2))
    assert not np.array_equal(first, second)
    assert {x.tobytes() for x in first} == {x.tobytes() for x in second}
