import errno
import hashlib
import os
import re
import zipfile
import zlib

import numpy as np
import pytest
from safetensors.numpy import save_file

from keras_vit.weights.read import check_sha256, open_checkpoint, sha256
from keras_vit.weights.read.file import Entry, WeightsFile, checked
from keras_vit.weights.write import write_safetensors
from tests.errors import refuses
from tests.weights.read.damage import check_unreadable, write_sidecar

DATA = b"weights" * 1000
DIGEST = hashlib.sha256(DATA).hexdigest()
TEXTS = ("", "{0}  other.npz\n", "hello  file.npz\n", "\x00\n")
SIDECARS = [(text, "does not contain one SHA-256") for text in TEXTS]
SIDECARS += [("{0}  file.npz\n{1}  file.npz\n", "does not contain one SHA-256"), ("\xff\xfe", "not a text file")]


class Raising(WeightsFile):
    """A file whose only array raises an error when it is read."""

    def __init__(self, path, error):
        super().__init__(path)
        self.entries["a"], self.error = Entry((1,), "float32"), error

    def _read(self, source, key):
        raise self.error


def read(tmp_path, error):
    (tmp_path / "file.npz").write_bytes(b"x")
    return dict(Raising(tmp_path / "file.npz", error).read(["a"]))


@pytest.mark.parametrize(
    "error", [MemoryError(), PermissionError(errno.EACCES, "no"), OSError(errno.EIO, "disk")], ids=repr
)
def test_memory_and_disk_errors_are_raised_unchanged(tmp_path, error):
    with pytest.raises(type(error)) as caught:
        read(tmp_path, error)
    assert caught.value is error


@pytest.mark.parametrize(
    "error",
    [zipfile.BadZipFile("bad"), zlib.error("bad"), EOFError("bad"), OSError("bad"), OSError(errno.EINVAL, "bad")],
    ids=repr,
)
def test_error_of_damage_names_file(tmp_path, error):
    refuses(r"file\.npz.*it is truncated or damaged \(.*bad.*copy it again", read, tmp_path, error)


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "file.npz"
    path.write_bytes(DATA)
    return path


def test_file_with_other_digest_is_refused(path):
    assert sha256(path) == DIGEST
    check_sha256(path, DIGEST)
    check_sha256(path, DIGEST.upper())
    refuses(f"file.npz.*is {DIGEST}, expected {'0' * 64}", check_sha256, path, "0" * 64)
    for invalid in ("", "abc", "g" * 64, DIGEST + "0", None):
        refuses("argument `sha256`", check_sha256, path, invalid)


@pytest.mark.parametrize(
    "text", ["{0}  file.npz\n", "{0} *file.npz", "{0}\n", "{1}  other.npz\n{0}  file.npz\n{1}  more/file.npz\n"]
)
def test_sidecar_of_sha256sum_is_checked(path, text):
    checked(path)
    path.with_name("file.npz.sha256").write_text(text.format(DIGEST, "0" * 64))
    checked(path)
    path.write_bytes(DATA[:-1])
    refuses("file.npz.*its SHA-256 is", checked, path)


@pytest.mark.parametrize("text, message", SIDECARS)
def test_sidecar_without_one_digest_is_refused(path, text, message):
    path.with_name("file.npz.sha256").write_text(text.format(DIGEST, "0" * 64), encoding="latin-1")
    refuses(f"file.npz.sha256.*{message}", checked, path)
    path.with_name("file.npz.sha256").unlink()
    # Opening a pipe would wait for ever.
    os.mkfifo(path.with_name("file.npz.sha256"))
    refuses("file.npz.sha256.*not a regular file", checked, path)


def test_hub_cache_link_is_checked_by_name_of_blob(tmp_path):
    (tmp_path / "blobs").mkdir()
    (tmp_path / "blobs" / DIGEST).write_bytes(DATA)
    (tmp_path / "model.safetensors").symlink_to(tmp_path / "blobs" / DIGEST)
    checked(tmp_path / "model.safetensors")
    (tmp_path / "blobs" / DIGEST).write_bytes(DATA[:-1] + b"t")
    refuses(f"model.safetensors.*its SHA-256 is .*expected {DIGEST}", checked, tmp_path / "model.safetensors")
    # This is Git's hash of "hello\\n".
    blob = tmp_path / "blobs" / "ce013625030ba8dba906f756967f9e9ca394464a"
    blob.write_bytes(b"hello\n")
    (tmp_path / "config.json").symlink_to(blob)
    checked(tmp_path / "config.json")
    blob.write_bytes(b"hallo\n")
    refuses("config.json.*its Git hash is .*expected ce013625", checked, tmp_path / "config.json")


def test_hash_prefix_in_file_name_is_checked(tmp_path):
    path = tmp_path / "deit_tiny_patch16_224-a1311bcf.pth"
    path.write_bytes(DATA)
    check_unreadable("its SHA-256 is .*expected a1311bcf", path)
    path.with_name(f"{path.name}.sha256").write_text(f"{DIGEST}  {path.name}\n")
    checked(path)


@pytest.mark.parametrize("value", [2e4, -1e36])
def test_huge_weight_is_refused_unless_hash_is_known(tmp_path, value):
    path = tmp_path / "model.safetensors"
    save_file({"head.bias": np.array([0.5, value, -9999], "float32")}, path)
    with pytest.raises(ValueError, match=rf"'head.bias' holds {re.escape(f'{value:g}')}, too large for a weight"):
        dict(open_checkpoint(path).read(["head.bias"]))
    write_sidecar(path)
    ((_, array),) = open_checkpoint(path).read(["head.bias"])
    assert array[1] == np.float32(value)


def test_verified_is_true_for_checksummed_files(tmp_path):
    arrays = {"a": np.ones(2, "float32")}
    np.savez(tmp_path / "a.npz", **arrays)
    save_file(arrays, tmp_path / "theirs.safetensors")
    write_safetensors(tmp_path / "ours.safetensors", arrays, {})
    assert [open_checkpoint(tmp_path / n).verified for n in ("a.npz", "ours.safetensors")] == [True, True]
    assert not open_checkpoint(tmp_path / "theirs.safetensors").verified
    write_sidecar(tmp_path / "theirs.safetensors")
    assert open_checkpoint(tmp_path / "theirs.safetensors").verified
