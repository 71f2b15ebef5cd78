import os

import numpy as np
import pytest

from keras_vit.evaluation import imagenet_real_accuracy
from keras_vit.export.serving import read_labels
from keras_vit.files import draft_folder, put_folder, replacing
from keras_vit.images.files import read_pixels
from keras_vit.images.table import csv_rows, read_columns
from keras_vit.prediction.files import find_images
from keras_vit.semi_supervised import PseudoLabels
from tests.errors import refuses

READERS = {
    "image": read_pixels,
    "table": read_columns,
    "rows": csv_rows,
    "images in a table": lambda path: find_images([path]),
    "listed image": lambda path: find_images([path.with_suffix(".png")]),
    "class names": lambda path: read_labels(path, 5),
    "pseudo labels": PseudoLabels.load,
    "real labels": lambda path: imagenet_real_accuracy(None, np.zeros((1, 5)), path),
}


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="Windows has no named pipes")
@pytest.mark.parametrize("name", READERS)
def test_pipe_and_device_are_refused_before_reading(tmp_path, name):
    pipe, device = tmp_path / "pipe.csv", tmp_path / "device.csv"
    for path in (pipe, pipe.with_suffix(".png")):
        os.mkfifo(path)
    for path in (device, device.with_suffix(".png")):
        path.symlink_to("/dev/zero")
    expected = "Expected .*(which is a pipe, a device or a socket|There are none at)"
    refuses(expected, READERS[name], pipe, error=FileNotFoundError)
    refuses(expected, READERS[name], device, error=FileNotFoundError)
    refuses("Expected ", READERS[name], tmp_path / "none.csv", error=FileNotFoundError)


def names(folder):
    return sorted(child.name for child in folder.iterdir())


def write(path, text):
    with replacing(path) as draft:
        draft.write_text(text)


def test_failed_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "a[1].txt"
    write(path, "old")
    with pytest.raises(OSError, match="full"), replacing(path) as draft:
        assert draft.name == path.name and draft.parent.parent == tmp_path
        draft.write_text("ne")
        raise OSError("full")
    assert (path.read_text(), names(tmp_path)) == ("old", [path.name])
    write(path, "new")
    assert (path.read_text(), names(tmp_path)) == ("new", [path.name])
    refuses("no folder", write, tmp_path / "none" / "a.txt", "new", error=FileNotFoundError)
    refuses(f"{tmp_path}': it is a folder", write, tmp_path, "new", error=IsADirectoryError)


def test_write_through_a_link_keeps_the_link(tmp_path):
    (tmp_path / "folder").mkdir()
    link, target = tmp_path / "a.txt", tmp_path / "folder" / "b.txt"
    link.symlink_to(target)
    for text in ("new", "again"):
        write(link, text)
        assert link.is_symlink() and target.read_text() == text
    assert names(tmp_path / "folder") == ["b.txt"]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="Windows has no named pipes")
def test_write_into_a_pipe_keeps_the_pipe(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write(pipe, "contents")
    assert os.read(reader, 100) == b"contents"
    os.close(reader)
    assert pipe.is_fifo() and names(tmp_path) == ["pipe"]


def test_failed_swap_puts_the_old_folder_back(tmp_path):
    path = tmp_path / "1"
    path.mkdir()
    (path / "old").touch()
    with pytest.raises(FileNotFoundError), draft_folder(path) as folder:
        put_folder(folder / "1", path)
    assert (names(path), names(tmp_path)) == (["old"], ["1"])
    with draft_folder(path) as folder:
        (folder / "1").mkdir()
        put_folder(folder / "1", path)
    assert (names(path), names(tmp_path)) == ([], ["1"])
