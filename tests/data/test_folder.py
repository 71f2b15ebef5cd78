import logging
import os
import shutil
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_vit.data import from_directory, load
from tests.data.images import HUGE_PNG, batches, jpeg, picture, write_classes
from tests.errors import not_found, refuses


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("images")
    write_classes(folder, 40)
    return folder


def values(data):
    """Returns the brightness of each image, which identifies it, and its label."""
    found = [(float(x.mean()), int(y)) for images, labels in batches(data) for x, y in zip(images, labels, strict=True)]
    return sorted((round(value), label) for value, label in found)


def test_from_directory_images_and_labels(folder, caplog):
    data = from_directory(folder, image_size=(12, 8), batch_size=16, training=False, normalize=False)
    images, labels = next(iter(data))
    assert (images.shape, images.dtype, labels.dtype) == ((16, 12, 8, 3), "float32", "int32")
    assert data.class_names == [f"class{i}" for i in range(4)] and data.num_classes == 4
    assert (data.num_images, len(data), len(data.file_paths)) == (40, 3, 40)
    assert data.element_spec[0].shape == (None, 12, 8, 3)
    scaled, _ = next(iter(from_directory(folder, image_size=(12, 8), batch_size=16, training=False)))
    np.testing.assert_allclose(scaled, (images - 127.5) / 127.5, atol=1e-6)
    found = values(data)
    assert len(found) == 40
    # The number of an image is its brightness (apart from clipping at 0), and determines its class.
    numbers = sorted(range(40), key=lambda i: (np.round(picture(i).mean()), i % 4))
    np.testing.assert_allclose([v for v, _ in found], [picture(i).mean() for i in numbers], atol=2.5)
    assert sorted(label for _, label in found) == sorted(i % 4 for i in range(40))
    assert not data.broken and not caplog.records and "no broken images so far" in repr(data.broken)


def test_validation_split_is_stratified_and_not_augmented(folder):
    train, validation = from_directory(folder, image_size=8, validation_split=0.2, subset="both", batch_size=40)
    assert not set(train.file_paths) & set(validation.file_paths)
    assert (train.num_images, validation.num_images) == (32, 8)
    # Validation images keep the order of the folder, and each class has as many.
    assert next(iter(validation))[1].numpy().tolist() == validation.file_labels == [0, 0, 1, 1, 2, 2, 3, 3]
    same, other = (
        from_directory(folder, image_size=8, validation_split=0.2, subset="validation", seed=seed) for seed in (0, 1)
    )
    assert same.file_paths == validation.file_paths != other.file_paths
    options = {"image_size": 8, "validation_split": 0.2, "batch_size": 40, "augment": "strong1", "flip": True}
    images, labels = next(iter(from_directory(folder, subset="validation", repeat=True, crop="finetune", **options)))
    np.testing.assert_array_equal(images, next(iter(validation))[0])
    np.testing.assert_array_equal(labels, np.eye(4)[validation.file_labels])
    kept, _ = next(iter(from_directory(folder, subset="validation", training=False, **options)))
    assert not np.array_equal(kept, images)


def test_class_names_select_and_order_classes(folder):
    data = from_directory(folder, class_names=["class3", "class1"], image_size=8, training=False, batch_size=40)
    assert data.file_labels == [0] * 10 + [1] * 10


def test_validation_folder_without_a_class_keeps_labels(folder, tmp_path):
    for name in ("class0", "class2"):
        shutil.copytree(folder / name, tmp_path / name)
    names = from_directory(folder, image_size=8).class_names
    data = from_directory(tmp_path, class_names=names, image_size=8, training=False, batch_size=40)
    assert data.file_labels == [0] * 10 + [2] * 10 and data.class_names == names
    refuses(r"There is none for: \['clas3'\]", from_directory, tmp_path, class_names=["class0", "clas3"], image_size=8)


@pytest.fixture(scope="module")
def ten_broken(tmp_path_factory):
    """A folder of 200 images, and the paths of ten of them that are broken in as many ways.

    The first and the last image are broken, and some neighbours.
    """
    folder = tmp_path_factory.mktemp("broken")
    paths = write_classes(folder, 200)
    whole = jpeg(200, (60, 60, 3))
    broken = {
        0: b"",
        1: whole[: len(whole) // 2],
        2: whole[:-30],
        50: b"this is text",
        77: HUGE_PNG,
        78: b"%PDF-1.4\n" + b"x" * 300,
        79: tf.io.encode_png(picture(1)).numpy()[:50],
        120: whole[:100],
        150: b"\xff\xd8\xff" + bytes(400),
        199: bytes(1000),
    }
    for number, content in broken.items():
        paths[number].write_bytes(content)
    # A PNG whose name ends with .jpg is not broken.
    paths[160].write_bytes(tf.io.encode_png(picture(160)).numpy())
    return folder, {str(paths[number]) for number in broken}


class Count(keras.metrics.Sum):
    """Counts the images of an epoch."""

    def update_state(self, y_true, y_pred, sample_weight=None):
        super().update_state(keras.ops.ones_like(y_pred[:, 0]))


def test_fit_replaces_and_reports_broken_images(ten_broken, caplog):
    folder, broken = ten_broken
    options = {"num_parallel_calls": 3, "cache": True, "augment": "light1"}
    data = from_directory(folder, image_size=16, batch_size=16, **options)
    model = keras.Sequential([keras.Input((16, 16, 3)), keras.layers.Flatten(), keras.layers.Dense(4)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss, metrics=[Count(name="count")], jit_compile=False)
    with caplog.at_level(logging.WARNING, "keras_vit.data"):
        history = model.fit(data, epochs=2, verbose=0).history
    assert history["count"] == [200, 200]
    assert set(data.broken) == broken
    summaries = [record.getMessage() for record in caplog.records if record.name == "keras_vit.data"]
    assert len(summaries) == 2
    for summary in summaries:
        assert summary.startswith("10 of 200 images were skipped in this epoch. They cannot be decoded:")
        assert all(name in summary for name in broken)
    assert repr(data.broken) == f"<BrokenImages: {summaries[-1]}>"
    assert len(data) == 13


def test_repeated_epochs_replace_and_report_broken_images(ten_broken, caplog):
    folder, broken = ten_broken
    data = from_directory(folder, image_size=8, batch_size=19, repeat=True, normalize=False, crop="eval", flip=False)
    shapes, images = set(), []
    # 22 batches are more than two epochs.
    for batch, _ in data.take(22):
        shapes.add(tuple(batch.shape))
        images += [x.tobytes() for x in batch.numpy()]
    assert shapes == {(19, 8, 8, 3)}
    sets = [set(images[i : i + 200]) for i in (0, 200)]
    assert len(sets[0] | sets[1]) == 190 and min(map(len, sets)) >= 189
    assert set(data.broken) == broken
    assert [record.getMessage()[:21] for record in caplog.records] == ["10 of 200 images were"] * 2


def test_concurrent_iterators_report_only_broken_images(ten_broken, caplog):
    folder, broken = ten_broken
    data = from_directory(folder, image_size=8, batch_size=32)
    one, other = iter(data), iter(data)
    # Two iterators take turns, and only the first one reaches its end. A peek and a whole epoch follow.
    for _ in range(6):
        next(one), next(other)
    next(one)
    next(iter(data))
    list(data)
    assert set(data.broken) == broken
    assert [record.getMessage()[:21] for record in caplog.records] == ["10 of 200 images were"] * 2


def test_folder_without_labels(folder, tmp_path):
    for i in (2, 0, 1):
        (tmp_path / f"{i}.jpg").write_bytes(jpeg(90 * i))
    refuses(r"at least two classes .* Without classes, pass labels='none'", from_directory, tmp_path)
    data = from_directory(tmp_path, labels="none", image_size=8, batch_size=2, normalize=False)
    assert [path[-5:] for path in data.file_paths] == ["0.jpg", "1.jpg", "2.jpg"] and data.class_names == []
    found = np.concatenate([part for batch in batches(data) for part in batch]).mean((1, 2, 3))
    np.testing.assert_allclose(found, [picture(90 * i).mean() for i in range(3)], atol=2.5)
    data = from_directory(folder, labels="none", image_size=8)
    assert data.file_paths == sorted(map(str, folder.rglob("*.jpg"))) and data.file_labels is None
    with pytest.raises(ValueError, match="Expected images in .* Received: none"):
        (tmp_path / "nothing").mkdir()
        from_directory(tmp_path / "nothing", labels="none")


def test_file_names_that_are_not_utf8(tmp_path):
    names = [os.path.join(tmp_path, os.fsdecode(name)) for name in (b"a/caf\xe9.jpg", b"b/caf\xe9.jpg", b"b/x\xe9.jpg")]
    for name, content in zip(names, (jpeg(1), jpeg(2), b"broken"), strict=True):
        os.makedirs(os.path.dirname(name), exist_ok=True)
        try:
            with open(name, "wb") as file:
                file.write(content)
        except OSError:
            pytest.skip("the file system takes only UTF-8 names")
    data = from_directory(tmp_path, image_size=8, training=False)
    assert data.file_paths == names and len(batches(data)[0][1]) == 2 and list(data.broken) == names[2:]
    assert "x\\udce9.jpg" in repr(data.broken)


@pytest.mark.parametrize("names", [("train", "test"), ("Training", "val", "notes")])
def test_train_and_test_folders_are_not_classes(tmp_path, names):
    for name in names:
        write_classes(tmp_path / name, 2, num_classes=2)
    with pytest.raises(ValueError, match=f"already split into .*. Pass '.*{names[0]}', or use keras_vit.data.splits"):
        from_directory(tmp_path, image_size=8)
    assert from_directory(tmp_path, image_size=8, class_names=names[:2]).class_names == [*names[:2]]
    # With a folder "car" beside it, "train" is a class.
    (tmp_path / names[1]).rename(tmp_path / "car")
    assert "car" in from_directory(tmp_path, image_size=8).class_names


def test_from_directory_refuses_invalid_folder_or_option(folder, tmp_path):
    not_found("`path` to be a folder .*nowhere'", from_directory, tmp_path / "nowhere")
    refuses(r"two classes in .*, such as .*cat'.* Received: 0 files, and the folders \[\]", from_directory, tmp_path)
    shutil.copytree(folder / "class0", tmp_path / "class0")
    refuses(r"at least two classes in .* the folders \['class0'\]. Without classes, pass", from_directory, tmp_path)
    shutil.copytree(folder, tmp_path / "outer" / "photos")
    with pytest.raises(ValueError, match=f"folders .*. Pass {str(tmp_path / 'outer' / 'photos')!r}, which has"):
        from_directory(tmp_path / "outer")
    shutil.rmtree(tmp_path / "outer")
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / ".DS_Store").write_bytes(b"clutter")
    refuses("images of each class. Received: none in '.*empty'", from_directory, tmp_path)
    shutil.copy(folder / "class1" / "001.jpg", tmp_path / "empty")
    refuses(
        "enough images of each class to split. Received: 1 of 'empty'", from_directory, tmp_path, validation_split=0.2
    )
    for options, message in (
        ({"subset": "both"}, "Expected a `validation_split` for subset='both'"),
        ({"class_names": {"class0", "class1"}}, "`class_names`. Expected a sequence of values"),
        ({"class_names": ["cat", "cat"]}, r"`class_names` without repetition. Received twice: \['cat'\]"),
        ({"class_names": ["cat", "dog"]}, r"There is none for: \['cat', 'dog'\]"),
    ):
        refuses(message, from_directory, folder, **options)


def test_error_without_tensorflow_names_package(folder, monkeypatch):
    # An import of a module that is None fails.
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    for make in (lambda: from_directory(folder), lambda: load("cifar10", "train")):
        refuses("needs TensorFlow on every backend: pip install tensorflow", make, error=ImportError)
