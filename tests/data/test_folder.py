import logging
import shutil

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_vit.data import from_directory
from tests.data.images import HUGE_PNG, batches, equal, jpeg, picture, write_classes


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("images")
    write_classes(folder, 40)
    return folder


def values(data):
    """The brightness of each image, which says which one it is, with its label."""
    found = [(float(x.mean()), int(y)) for images, labels in batches(data) for x, y in zip(images, labels, strict=True)]
    return sorted((round(value), label) for value, label in found)


def test_images_and_labels(folder):
    data = from_directory(folder, image_size=(12, 8), batch_size=16, training=False, normalize=False)
    images, labels = next(iter(data))
    assert (images.shape, images.dtype, labels.dtype) == ((16, 12, 8, 3), "float32", "int32")
    assert data.class_names == [f"class{i}" for i in range(4)] and data.num_classes == 4
    assert (data.num_images, len(data), len(data.file_paths)) == (40, 3, 40)
    assert data.element_spec[0].shape == (None, 12, 8, 3)
    found = values(data)
    assert len(found) == 40
    # The number of an image is its brightness, less what is clipped at 0, and gives its class.
    numbers = sorted(range(40), key=lambda i: (np.round(picture(i).mean()), i % 4))
    np.testing.assert_allclose([v for v, _ in found], [picture(i).mean() for i in numbers], atol=2.5)
    assert sorted(label for _, label in found) == sorted(i % 4 for i in range(40))


def test_values_are_normalized(folder):
    raw, default, imagenet = (
        next(iter(from_directory(folder, image_size=8, batch_size=4, training=False, **options)))[0].numpy()
        for options in (
            {"normalize": False},
            {},
            {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)},
        )
    )
    np.testing.assert_allclose(default, (raw - 127.5) / 127.5, atol=1e-6)
    expected = (raw / 255 - np.array([0.485, 0.456, 0.406])) / np.array([0.229, 0.224, 0.225])
    np.testing.assert_allclose(imagenet, expected, atol=1e-5)


def test_splits_each_class(folder):
    train, validation = from_directory(folder, image_size=8, validation_split=0.2, subset="both", batch_size=40)
    assert not set(train.file_paths) & set(validation.file_paths)
    assert (train.num_images, validation.num_images) == (32, 8)
    labels = next(iter(validation))[1].numpy()
    # As the folder has them, and as many of each class.
    assert labels.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    alone = from_directory(folder, image_size=8, validation_split=0.2, subset="validation", batch_size=40)
    assert equal(batches(alone), batches(validation))
    other = from_directory(folder, image_size=8, validation_split=0.2, subset="validation", seed=1)
    assert other.file_paths != validation.file_paths


def test_chosen_classes(folder):
    data = from_directory(folder, class_names=["class3", "class1"], image_size=8, training=False, batch_size=40)
    assert next(iter(data))[1].numpy().tolist() == [0] * 10 + [1] * 10


def test_arrays_of_many_channels(tmp_path):
    for name in "ab":
        (tmp_path / name).mkdir()
        for i in range(2):
            np.save(tmp_path / name / f"{i}.npy", np.full((9, 9, 5), i, "uint16"))
    images, _ = next(iter(from_directory(tmp_path, channels=5, image_size=8, normalize=False, batch_size=4)))
    assert images.shape == (4, 8, 8, 5)
    np.save(tmp_path / "a" / "2.npy", np.zeros((9, 9, 4)))
    with pytest.raises(ValueError, match=r"arrays of one number of channels. Received: 5 in .*0.npy', 4 in .*2.npy'"):
        from_directory(tmp_path, channels=5)


def break_ten(paths):
    """Breaks ten images in as many ways; images next to each other, the first and the last among them."""
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
    # A picture that is called something else is a picture.
    paths[160].write_bytes(tf.io.encode_png(picture(160)).numpy())
    return {str(paths[number]) for number in broken}


class Seen(keras.callbacks.Callback):
    """Counts the images of each epoch by a model's metric."""

    def on_epoch_end(self, epoch, logs=None):
        self.__dict__.setdefault("counts", []).append(round(float(logs["count"])))


@keras.saving.register_keras_serializable("tests")
class Count(keras.metrics.Sum):
    """How many images came."""

    def update_state(self, y_true, y_pred, sample_weight=None):
        super().update_state(keras.ops.ones_like(y_pred[:, 0]))


@pytest.mark.parametrize(
    "options",
    [
        {},
        pytest.param({"num_parallel_calls": 3, "cache": True}, marks=pytest.mark.tried_on("tensorflow")),
        {"policy": "light1"},
    ],
)
def test_ten_broken_images_of_200_are_named_and_the_others_trained_on(tmp_path, caplog, options):
    broken = break_ten(write_classes(tmp_path, 200))
    data = from_directory(tmp_path, image_size=16, batch_size=16, **options)
    model = keras.Sequential([keras.Input((16, 16, 3)), keras.layers.Flatten(), keras.layers.Dense(4)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss, metrics=[Count(name="count")])
    seen = Seen()
    with caplog.at_level(logging.WARNING, "keras_vit.data"):
        model.fit(data, epochs=2, verbose=0, callbacks=[seen])
    assert seen.counts == [190, 190]
    assert set(data.broken) == broken
    summaries = [record.getMessage() for record in caplog.records if record.name == "keras_vit.data"]
    assert len(summaries) == 2
    for summary in summaries:
        assert summary.startswith("10 of 200 images were skipped in this epoch, since they do not decode:")
        assert all(name in summary for name in broken)
    assert repr(data.broken) == f"<BrokenImages: {summaries[-1]}>"
    assert len(data) == 12


def test_broken_images_while_repeating(tmp_path):
    broken = break_ten(write_classes(tmp_path, 200))
    data = from_directory(tmp_path, image_size=8, batch_size=19, repeat=True, normalize=False, crop="eval", flip=False)
    shapes, epochs = set(), []
    # 30 batches are exactly three epochs of 190.
    for images, _ in data.take(30):
        shapes.add(tuple(images.shape))
        epochs += [x.tobytes() for x in images.numpy()]
    assert shapes == {(19, 8, 8, 3)}
    sets = [set(epochs[i : i + 190]) for i in (0, 190, 380)]
    assert len(sets[0]) == 190 and sets[0] == sets[1] == sets[2]
    assert set(data.broken) == broken


def test_a_batch_keeps_its_place_around_a_broken_image(tmp_path):
    paths = write_classes(tmp_path, 12)
    before = batches(from_directory(tmp_path, image_size=8, batch_size=4, training=False))
    paths[4].write_bytes(b"")
    after = batches(from_directory(tmp_path, image_size=8, batch_size=4, training=False))
    # Sorted by class, number 4 comes second.
    whole = np.concatenate([images for images, _ in before])
    np.testing.assert_array_equal(np.concatenate([images for images, _ in after]), np.delete(whole, 1, 0))
    assert [len(images) for images, _ in after] == [4, 4, 3]


def test_nothing_is_said_of_a_sound_folder(folder, caplog):
    data = from_directory(folder, image_size=8)
    batches(data)
    assert not data.broken and not caplog.records and "no broken images so far" in repr(data.broken)


def test_clear_errors_before_training(folder, tmp_path):
    with pytest.raises(FileNotFoundError, match="`path` to be a folder .*nowhere'"):
        from_directory(tmp_path / "nowhere")
    with pytest.raises(ValueError, match=r"two classes or more in .* Received: \[\]"):
        from_directory(tmp_path)
    shutil.copytree(folder / "class0", tmp_path / "class0")
    with pytest.raises(ValueError, match=r"two classes or more in .* Received: \['class0'\]"):
        from_directory(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / ".DS_Store").write_bytes(b"clutter")
    with pytest.raises(ValueError, match="images of each class. There is none in '.*empty'"):
        from_directory(tmp_path)
    shutil.copy(folder / "class1" / "001.jpg", tmp_path / "empty")
    with pytest.raises(ValueError, match="two images or more of each class to split. 'empty' has 1"):
        from_directory(tmp_path, validation_split=0.2)
    for options, message in (
        ({"subset": "both"}, "Expected a `validation_split` for subset='both'"),
        ({"subset": "test"}, "`subset` to be 'training', 'validation' or 'both'"),
        ({"validation_split": 1.5}, r"`validation_split` in \(0, 1\)"),
        ({"class_names": ["cat", "dog"]}, r"There is none for: \['cat', 'dog'\]"),
    ):
        with pytest.raises(ValueError, match=message):
            from_directory(folder, **options)
