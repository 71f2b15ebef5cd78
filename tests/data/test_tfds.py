import numpy as np
import pytest
import tensorflow as tf

from keras_vit.data import load, splits
from keras_vit.data import tfds as module
from tests.data.images import batches, picture

tfds = pytest.importorskip("tensorflow_datasets")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Returns the folder of a TFDS dataset of gray images, whose brightness is their number."""
    folder = tmp_path_factory.mktemp("tfds")

    def rows(numbers, labels=True):
        signature = {"image": tf.TensorSpec((20, 20, 1), tf.uint8), "label": tf.TensorSpec((), tf.int64)}
        made = [{"image": picture(i, (20, 20, 1)), "label": i % 3 if labels else -1} for i in numbers]
        return tf.data.Dataset.from_generator(lambda: iter(made), output_signature=signature)

    image, label = tfds.features.Image(shape=(20, 20, 1)), tfds.features.ClassLabel(names=["a", "b", "c"])
    tfds.dataset_builders.store_as_tfds_dataset(
        name="tiny",
        version="1.0.0",
        features=tfds.features.FeaturesDict({"image": image, "label": label}),
        split_datasets={"train": rows(range(30)), "test": rows(range(6)), "unlabelled": rows(range(6), labels=False)},
        data_dir=str(folder),
        disable_shuffling=True,
    )
    return folder


def test_load_images_and_labels(folder):
    data = load("tiny", "test", data_dir=folder, image_size=8, batch_size=6, normalize=False)
    images, labels = next(iter(data))
    assert (images.shape, labels.dtype) == ((6, 8, 8, 3), "int32")
    assert labels.numpy().tolist() == [0, 1, 2, 0, 1, 2] and data.class_names == ["a", "b", "c"]
    np.testing.assert_array_equal(images[..., 0], images[..., 2])
    gray = load("tiny", "test", data_dir=folder, image_size=20, batch_size=6, normalize=False, channels=1)
    np.testing.assert_allclose(next(iter(gray))[0][5], picture(5, (20, 20, 1)), atol=1e-4)


@pytest.mark.long
def test_load_shuffles_training_split_by_seed(folder):
    options = {"data_dir": folder, "image_size": 8, "batch_size": 15, "labels": "one_hot"}
    data = [load("tiny", "train[:50%]", **options, seed=seed) for seed in (0, 0, 1)]
    first, again, other = (batches(each)[0] for each in data)
    np.testing.assert_array_equal(first[0], again[0])
    assert data[0].num_images == 15 and not np.array_equal(first[0], other[0])
    assert first[1].shape == (15, 3) and first[1].argmax(axis=1).tolist() != [0, 1, 2] * 5
    assert splits("tiny", data_dir=folder)("test", training=False, image_size=8).num_images == 6


@pytest.mark.long
def test_shards_share_the_batches_of_one_process(folder):
    options = {"data_dir": folder, "image_size": 8, "batch_size": 10, "drop_remainder": True, "shuffle": 9}
    shards = [load("tiny", "train", **options, num_shards=2, shard_index=i) for i in range(2)]
    whole, first, second = (batches(data) for data in (load("tiny", "train", **options), *shards))
    assert len(whole) == 3
    for (images, _), (former, _), (latter, _) in zip(whole, first, second, strict=True):
        np.testing.assert_array_equal(np.concatenate([former, latter]), images)


def test_load_refuses_missing_dataset_or_labels(folder, tmp_path):
    for name in ("cifar10", "vtab/dtd", "no_such_dataset"):
        with pytest.raises(FileNotFoundError, match=f"to be prepared in '{tmp_path}'.*download_and_prepare"):
            load(name, "train800" if "/" in name else "train", data_dir=tmp_path)
    with pytest.raises(ValueError, match="a task of VTAB-1k, one of caltech101, .*'vtab/mnist'"):
        load("vtab/mnist", "test", data_dir=tmp_path)
    with pytest.raises(ValueError, match="a split of 'tiny' or a part of one: .*'train': 30.* Received: 'validation'"):
        load("tiny", "validation", data_dir=folder)
    with pytest.raises(ValueError, match="a label of 0 to 2 for each image of split 'unlabelled' .* Received: -1"):
        load("tiny", "unlabelled", data_dir=folder)


def test_load_replaces_and_names_broken_records(folder, monkeypatch):
    # TFDS checks the images that it stores, so they are damaged after reading.
    monkeypatch.setattr(module, "_scaled", lambda image, gain: tf.where(tf.strings.length(image) % 2 == 0, image, b"x"))
    data = load("tiny", "train", data_dir=folder, image_size=8, batch_size=4, shuffle=7)
    count = sum(len(labels) for _, labels in batches(data))
    # Other images of a batch replace the broken ones.
    assert count == 30 and 0 < len(data.broken) < 30
    assert all(name.startswith("tiny-train.tfrecord-00000-of-00001__") for name in data.broken)
