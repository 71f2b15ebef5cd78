import hashlib
import json
import os
import subprocess
import sys

import numpy as np
import pytest
import safetensors.numpy

from keras_vit import console as progress
from keras_vit.weights.read import open_checkpoint
from keras_vit.weights.write import write_npz, write_safetensors
from tests.errors import file_size_limit, refuses

ARRAYS = {"a": np.arange(6, dtype="float32").reshape(2, 3), "every_other": np.arange(8, dtype="float32")[::2]}
ARRAYS |= {"transposed": ARRAYS["a"].T, "scalar": np.float32(3), "none": np.zeros((0, 2), "float32")}


def test_npz_equals_what_numpy_reads(tmp_path):
    path = tmp_path / "file.npz"
    write_npz(path, ARRAYS, {"grid": (2, 3)})
    with np.load(path) as file:
        assert set(file.files) == set(ARRAYS)
        for key, array in ARRAYS.items():
            np.testing.assert_array_equal(file[key], array)
    assert open_checkpoint(path).facts == {"grid": [2, 3]}


def test_safetensors_file_equals_what_package_reads(tmp_path):
    path = tmp_path / "file.safetensors"
    write_safetensors(path, ARRAYS, {"grid": (2, 3)})
    read = safetensors.numpy.load_file(path)
    assert read.keys() == ARRAYS.keys()
    for key, array in ARRAYS.items():
        assert read[key].dtype == "float32" and read[key].shape == np.shape(array)
        np.testing.assert_array_equal(read[key], array)
    with safetensors.safe_open(path, "np") as file:
        metadata = file.metadata()
    assert metadata["format"] == "pt" and json.loads(metadata["keras_vit"]) == {"grid": [2, 3]}


def test_other_dtypes_are_refused_without_a_file(tmp_path):
    path = tmp_path / "file.safetensors"
    for wrong in (np.arange(3), np.array(["a"]), np.ones(2, bool), np.ones(2, "complex64")):
        with pytest.raises(ValueError, match="Expected arrays of floats. Received: 'b' of dtype"):
            write_safetensors(path, {"a": np.ones(2, "float32"), "b": wrong}, {})
    assert os.listdir(tmp_path) == []


def test_npz_refuses_longer_comments_than_zip_files_hold(tmp_path):
    refuses(".safetensors or .keras", write_npz, tmp_path / "a.npz", ARRAYS, {"class_names": ["species"] * 9000})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("write", [write_npz, write_safetensors])
def test_failed_write_leaves_old_file(tmp_path, write):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    refuses("JSON", write, path, ARRAYS, {"grid": object()}, error=TypeError)
    with file_size_limit(1000):
        refuses("Cannot write.*(?i:too large)", write, path, {"a": np.zeros(1000, "float32")}, {}, error=OSError)
    assert path.read_bytes() == b"old" and os.listdir(tmp_path) == ["file"]


FULL_DISK = """
import resource, signal, sys
from pathlib import Path
import numpy as np
from keras_vit.weights.transformers_config import write_folder
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
write_folder(Path(sys.argv[1]), {"kernel": np.zeros((100, 100), "float32")}, {}, {})
"""


def test_full_disk_names_the_file_and_leaves_no_folder(tmp_path):
    pytest.importorskip("resource", reason="Windows has no limits to try it with")
    command = [sys.executable, "-c", FULL_DISK, str(tmp_path / "folder")]
    last = subprocess.run(command, capture_output=True, text=True).stderr.strip().splitlines()[-1]
    assert last.startswith("OSError: Cannot write ") and "model.safetensors" in last and "File too large" in last
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("write", [write_npz, write_safetensors])
def test_write_renews_sidecar(tmp_path, write):
    path = tmp_path / "file"
    (tmp_path / "file.sha256").write_text(f"{'0' * 64}  file\n")
    write(path, ARRAYS, {})
    assert (tmp_path / "file.sha256").read_text() == f"{hashlib.sha256(path.read_bytes()).hexdigest()}  file\n"
    assert open_checkpoint(path).entries.keys() == ARRAYS.keys()


def test_read_shows_progress(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(progress, "DELAY", 0)
    write_npz(tmp_path / "file.npz", {name: np.ones(750_000, "float32") for name in "ab"}, {})
    assert {name for name, _ in open_checkpoint(tmp_path / "file.npz").read(["a", "b"])} == {"a", "b"}
    shown = capsys.readouterr().out
    assert f"Reading {tmp_path / 'file.npz'}" in shown and "6/6" in shown
