import errno
import zipfile
import zlib

import pytest

from keras_vit.weights.read import open_checkpoint
from keras_vit.weights.read.file import Entry, WeightsFile
from keras_vit.weights.read.pth import PthFile


class Raising(WeightsFile):
    """Its one array raises an error when it is read."""

    def __init__(self, path, error):
        super().__init__(path)
        self.entries["a"], self.error = Entry((1,), "float32"), error

    def _read(self, source, key):
        raise self.error


def read(tmp_path, error):
    (tmp_path / "file.npz").write_bytes(b"x")
    return dict(Raising(tmp_path / "file.npz", error).read(["a"]))


@pytest.mark.parametrize(
    "error",
    [MemoryError(), PermissionError(errno.EACCES, "no"), OSError(errno.EIO, "disk"), TypeError("ours"), KeyError("a")],
    ids=repr,
)
def test_what_is_no_damage_is_not_called_so(tmp_path, error):
    with pytest.raises(type(error)) as caught:
        read(tmp_path, error)
    assert caught.value is error


@pytest.mark.parametrize(
    "error",
    [zipfile.BadZipFile("bad"), zlib.error("bad"), EOFError("bad"), OSError("bad"), OSError(errno.EINVAL, "bad")],
    ids=repr,
)
def test_damage_names_the_file(tmp_path, error):
    with pytest.raises(ValueError, match=r"file\.npz.*it is damaged \(.*bad"):
        read(tmp_path, error)


def test_a_header_that_python_cannot_parse_is_damage(tmp_path):
    path = tmp_path / "deep.npz"
    with zipfile.ZipFile(path, "w") as archive:
        header = b"-" * 9000 + b"1"
        archive.writestr("a.npy", b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)
    with pytest.raises(ValueError, match=r"deep\.npz.*damaged"):
        open_checkpoint(path)


def test_memory_that_is_not_there_is_no_damage_of_a_pth(tmp_path, monkeypatch):
    torch = pytest.importorskip("torch")
    torch.save({"a": torch.ones(2)}, tmp_path / "file.pth")

    def load(*args, **kwargs):
        raise MemoryError

    monkeypatch.setattr(torch, "load", load)
    with pytest.raises(MemoryError):
        PthFile(tmp_path / "file.pth")
