import logging

import numpy as np
import pytest
from PIL import Image

from keras_vit import data
from keras_vit.images.files import read_pixels
from tests.data.images import HUGE_PNG
from tests.errors import not_found, refuses


def gradient(height, width):
    rows, columns = np.mgrid[:height, :width]
    return np.stack([rows % 256, columns % 256, (rows + columns) % 256], axis=-1).astype("uint8")


@pytest.fixture
def folder(tmp_path):
    for name, shape in {"cat/0.png": (30, 40), "cat/1.JPG": (50, 20), "dog/sub/2.jpeg": (8, 9)}.items():
        path = tmp_path / "photos" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(gradient(*shape)).save(path, quality=100)
    linked = path.parents[1].rename(tmp_path / "linked")
    (tmp_path / "photos" / "dog").symlink_to(linked)
    (linked / "back").symlink_to(tmp_path / "photos")
    return tmp_path / "photos"


def test_resize_folder_reduces_large_images_and_copies_others(folder, tmp_path):
    assert data.resize_folder(folder, tmp_path / "small", shorter_side=10) == {}
    found = {str(path.relative_to(tmp_path / "small")) for path in (tmp_path / "small").rglob("*.*")}
    assert found == {"cat/0.png.jpg", "cat/1.JPG", "dog/sub/2.jpeg"}
    assert read_pixels(tmp_path / "small/cat/1.JPG").shape == (25, 10, 3)
    expected = Image.fromarray(gradient(30, 40)).resize((13, 10), Image.Resampling.BICUBIC)
    image = read_pixels(tmp_path / "small/cat/0.png.jpg")
    assert image.shape == (10, 13, 3) and np.abs(image - np.asarray(expected, "float32")).max() < 30
    assert (tmp_path / "small/dog/sub/2.jpeg").read_bytes() == (folder / "dog/sub/2.jpeg").read_bytes()
    batches = data.from_directory(tmp_path / "small", image_size=8, batch_size=3, training=False)
    assert batches.class_names == ["cat", "dog"] and next(iter(batches))[1].numpy().tolist() == [0, 0, 1]


def test_resize_folder_keeps_existing_files(folder, tmp_path):
    (tmp_path / "small" / "cat").mkdir(parents=True)
    (tmp_path / "small" / "cat" / "0.png.jpg").write_text("kept")
    data.resize_folder(folder, tmp_path / "small", shorter_side=10)
    assert (tmp_path / "small" / "cat" / "0.png.jpg").read_text() == "kept"
    assert (tmp_path / "small" / "cat" / "1.JPG").exists()


def test_resize_folder_lists_broken_images(folder, tmp_path, caplog):
    (folder / "dog" / "half.jpg").write_bytes((folder / "cat" / "1.JPG").read_bytes()[:300])
    (folder / "dog" / "huge.png").write_bytes(HUGE_PNG)
    with caplog.at_level(logging.WARNING, "keras_vit.data"):
        errors = data.resize_folder(folder, tmp_path / "small", shorter_side=10)
    assert list(errors) == [str(folder / "dog" / name) for name in ("half.jpg", "huge.png")]
    assert "2 of 5 files were left out" in caplog.text and "half.jpg" in caplog.text
    assert len(list((tmp_path / "small").rglob("*.*"))) == 3


def test_resize_folder_refuses_invalid_arguments(folder, tmp_path):
    for name, value in (("shorter_side", 0), ("quality", 0), ("quality", 101)):
        with pytest.raises(ValueError, match=f"`{name}`. Expected an integer .*Received: {value}"):
            data.resize_folder(folder, tmp_path / "small", **{name: value})
    not_found("Expected `path` to be a folder of images", data.resize_folder, tmp_path / "nothing", tmp_path / "small")
    refuses("`out`. Expected a folder outside", data.resize_folder, folder, folder / "small")
    # Two files would have the same name.
    Image.fromarray(gradient(9, 9)).save(folder / "cat" / "0.png.jpg")
    with pytest.raises(ValueError, match=r"Expected no file whose name is another file's name .*0\.png\.jpg"):
        data.resize_folder(folder, tmp_path / "small")
