from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from keras_vit import data
from tests.data.images import batches, equal, write_classes
from tests.errors import refuses
from tests.tiny import assert_close

IMAGES = np.arange(12, dtype="float32").reshape(12, 1, 1, 1)


def chosen(indices, labels, num_images):
    choice = {"indices": np.array(indices), "labels": np.array(labels), "class_names": ("cat", "dog")}
    return SimpleNamespace(**choice, settings={"num_images": num_images})


def test_relabelled_source_has_chosen_images_and_labels(tmp_path):
    write_classes(tmp_path, 6, num_classes=1)
    everything = data.from_directory(tmp_path, labels="none", image_size=16)
    assert everything.source.num_images == 6
    (images,) = batches(everything)[0]
    for rows in (np.int32([0, 1, 1, 0]), np.float32([[0.9, 0.1], [0.25, 0.75], [0.25, 0.75], [1, 0]])):
        source = data.relabelled(everything.source, chosen([1, 3, 3, 5], rows, 6))
        assert (source.num_images, source.num_classes, source.class_names) == (4, 2, ("cat", "dog"))
        found, labels = batches(data.pipeline(source, image_size=16, training=False))[0]
        np.testing.assert_array_equal(found, images[[1, 3, 3, 5]])
        np.testing.assert_array_equal(labels, rows)
    policy = data.Policy(mixup=0.5, label_smoothing=0.2)
    _, labels = batches(data.pipeline(source, image_size=16, augment=policy))[0]
    np.testing.assert_allclose(labels.sum(axis=1), 1, atol=1e-6)
    assert labels.min() >= 0.1 - 1e-6
    with pytest.raises(ValueError, match="`source`.*the 7 images that the teacher predicted.*Received: 6"):
        data.relabelled(everything.source, chosen([1], np.int32([0]), 7))


def of(labels, batch_size):
    return tf.data.Dataset.from_tensor_slices((IMAGES[: len(labels)], np.array(labels))).batch(batch_size)


def test_pseudo_label_batch_weights_and_labels():
    soft = np.float32([[0.7, 0.3], [0.2, 0.8], [0.5, 0.5], [1, 0], [0, 1]])
    for labels in ([0, 1], np.eye(2)):
        options = {"num_classes": 2, "label_smoothing": 0.2, "ratio": 0.5}
        joint = data.with_pseudo_labels(of(labels, 2).repeat(), of(soft, 3), **options)
        (images, first, weights), (_, second, others) = batches(joint)
        assert images.reshape(-1).tolist() == [0, 1, 0, 1, 2]
        np.testing.assert_allclose(first, [[0.9, 0.1], [0.1, 0.9], *soft[:3]], atol=1e-6)
        np.testing.assert_allclose(weights, [5 / 2] * 2 + [0.5 * 5 / 3] * 3)
        # The last batch is smaller, and its total weight is the same.
        np.testing.assert_allclose(second[2:], soft[3:])
        np.testing.assert_allclose(others, [4 / 2] * 2 + [0.5 * 4 / 2] * 2)
    hard, smoothed = (
        data.with_pseudo_labels(of([0, 1], 2), of(labels, 2), num_classes=2, label_smoothing=0.2)
        for labels in ([1, 0], np.float32([[0.1, 0.9], [0.9, 0.1]]))
    )
    assert_close(batches(hard)[0], batches(smoothed)[0], atol=1e-6)


def test_set_epoch_is_passed_to_all_datasets():
    epochs = []

    def recording(dataset):
        dataset.set_epoch = epochs.append
        return dataset

    images = [tf.data.Dataset.from_tensor_slices(IMAGES + i).batch(4) for i in (0, 1)]
    joint = data.with_unlabelled(recording(of([0] * 12, 4)), *map(recording, images))
    joint.set_epoch(3)
    data.with_pseudo_labels(recording(of([0, 1], 2)), recording(of([1, 0], 2)), num_classes=2).set_epoch(4)
    assert epochs == [3] * 3 + [4] * 2
    (labelled, plain, augmented), labels = next(iter(joint))
    assert labels.shape == (4,)
    assert np.array_equal(labelled, plain) and np.array_equal(augmented, plain + 1)


@pytest.mark.long
def test_epoch_of_joint_pipelines_decides_their_batches(tmp_path):
    write_classes(tmp_path, 8, num_classes=2)
    labelled = data.from_directory(tmp_path, image_size=8, batch_size=4)
    joint, epochs = data.with_pseudo_labels(labelled, labelled, num_classes=2), []
    for number in (0, 3, 0):
        joint.set_epoch(number)
        epochs.append(batches(joint.take(1)))
    assert equal(epochs[0], epochs[2]) and not equal(epochs[0], epochs[1])


def test_joint_datasets_refuse_other_batches():
    images = tf.data.Dataset.from_tensor_slices(IMAGES).batch(2)
    for bad in (
        lambda: data.with_pseudo_labels(images, of([0, 1], 2), num_classes=2),
        lambda: data.with_pseudo_labels(of([0, 1], 2), images, num_classes=2),
        lambda: data.with_unlabelled(images, images, images),
        lambda: data.with_unlabelled(of([0, 1], 2), images, of([0, 1], 2)),
        lambda: data.with_pseudo_labels(of([0, 1], 2), of([0, 1], 2), num_classes=2, ratio=0),
        lambda: data.with_pseudo_labels(of([0, 1], 2), of([0, 1], 2), num_classes=2, label_smoothing=1),
    ):
        refuses("`(labelled|pseudo_labelled|augmented|ratio|label_smoothing)`", bad)
    parts = of([0, 1], 2), of([0, 1], 2)
    parts[0].class_names, parts[1].class_names = ["a", "b"], ["b", "a"]
    refuses("`pseudo_labelled`. Expected `labelled`'s classes", data.with_pseudo_labels, *parts, num_classes=2)
