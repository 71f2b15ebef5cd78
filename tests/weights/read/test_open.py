import os
import pickle

import pytest

from keras_vit.weights.read import WeightsFile, open_checkpoint
from keras_vit.weights.write import write_npz, write_safetensors
from tests.errors import not_found
from tests.weights.read.damage import check_damage, check_unreadable


def test_format_is_found_by_contents_not_name(tmp_path, arrays):
    write_npz(tmp_path / "npz.safetensors", arrays, {"a": 1})
    write_safetensors(tmp_path / "safetensors.npz", arrays, {"a": 1})
    found = {"npz.safetensors": {"a": 1}, "safetensors.npz": {"format": "pt", "keras_vit": {"a": 1}}}
    for name, facts in found.items():
        for path in (tmp_path / name, str(tmp_path / name), os.fsencode(tmp_path / name)):
            checkpoint = open_checkpoint(path)
            assert isinstance(checkpoint, WeightsFile) and checkpoint.path == str(tmp_path / name)
            assert checkpoint.container == name.split(".")[0] and checkpoint.facts == facts


@pytest.mark.parametrize(
    "data, expected",
    [
        (b"", "is empty"),
        (b"x", "is not an .npz archive, nor a .safetensors, .pth or .h5 file"),
        (b"\xef\xbb\xbf \n<!DOCTYPE html><html>404 Not Found", "it is a web page, which a server sent in place"),
        (b"<?xml version='1.0'?><Error><Code>AccessDenied", "it is a web page"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 3\n", "Git LFS pointer.*git lfs pull"),
        (pickle.dumps({"w": [1.0]}), "a Python pickle could run code and is never read"),
        (b"PK\x03\x04 and no more", "truncated or damaged"),
        (b"PK\x05\x06" + bytes(18), "holds no arrays"),
        (b"\x89HDF\r\n\x1a\n" + bytes(99), "truncated or damaged"),
        (b'{"weight_map": 3}', "no weight_map"),
    ],
)
def test_files_of_other_formats_are_refused(tmp_path, data, expected):
    path = tmp_path / "file.npz"
    path.write_bytes(data)
    check_unreadable(f"file.npz.*{expected}", path)
    # The name of the file makes no difference.
    check_unreadable(f"file.pth.*{expected}", path.rename(tmp_path / "file.pth"))


def write_pth(path, arrays, facts):
    torch = pytest.importorskip("torch")
    torch.save({key: torch.from_numpy(array) for key, array in arrays.items()}, path)


@pytest.mark.parametrize("write, refused_at_least", [(write_npz, 70), (write_safetensors, 80), (write_pth, 60)])
def test_random_damage_is_refused_or_harmless(tmp_path, arrays, write, refused_at_least):
    path = tmp_path / "damaged.weights"
    write(path, arrays, {"grid": [4, 6]})
    check_damage(path, refused_at_least)


def test_web_page_as_config_is_refused(tmp_path):
    (tmp_path / "config.json").write_bytes(b"<!doctype html>")
    check_unreadable("config.json.*web page", tmp_path)


def test_missing_file_and_pipe_are_refused(tmp_path):
    not_found("nowhere.npz", open_checkpoint, tmp_path / "nowhere.npz")
    os.mkfifo(tmp_path / "pipe")
    check_unreadable("not a regular file", tmp_path / "pipe")
