import json

import numpy as np
import pytest

from keras_vit.weights.read import open_checkpoint
from keras_vit.weights.write import write_safetensors
from tests.weights.read.damage import contents, flipped, write_sidecar

FILES = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]


@pytest.fixture
def shards(tmp_path, arrays):
    """Writes two shards and their index, changed as asked, and returns the index's path."""

    def write(**changes):
        keys = list(arrays)
        for name, some in zip(FILES, (keys[:2], keys[2:]), strict=True):
            write_safetensors(tmp_path / name, {key: arrays[key] for key in some}, {})
        weight_map = {key: FILES[i > 1] for i, key in enumerate(keys)}
        index = {"metadata": {"total_size": 1}, "weight_map": {**weight_map, **changes}}
        path = tmp_path / "model.safetensors.index.json"
        path.write_text(json.dumps(index, indent=2))
        return path

    return write


def test_shards_are_read_as_one_file(shards, arrays):
    checkpoint = open_checkpoint(shards())
    assert checkpoint.container == "safetensors"
    keys = [*reversed(arrays), "a/bias", "c/kernel"]
    read = list(checkpoint.read(keys))
    assert [key for key, _ in read] == keys
    for key, array in read:
        np.testing.assert_array_equal(array, arrays[key])
        assert checkpoint.entries[key].shape == array.shape


@pytest.mark.parametrize("name", ["../other.safetensors", "/etc/x.safetensors", "..", "a\\b.safetensors", "C:x", "", 3])
def test_names_that_leave_the_folder_are_refused(shards, name):
    with pytest.raises(ValueError, match="expected the name of a file beside it"):
        open_checkpoint(shards(scale=name))


def test_a_missing_shard_is_named(shards, tmp_path):
    path = shards()
    (tmp_path / FILES[1]).unlink()
    with pytest.raises(FileNotFoundError, match=f"{FILES[1]}.*not beside"):
        open_checkpoint(path)


def test_index_and_shards_must_agree(shards):
    with pytest.raises(ValueError, match="'scale' is in '.*00001.*does not hold it"):
        open_checkpoint(shards(scale=FILES[0]))
    with pytest.raises(ValueError, match="'more' is in .*does not hold it"):
        open_checkpoint(shards(more=FILES[0]))
    path = shards()
    index = json.loads(path.read_text())
    del index["weight_map"]["scale"]
    path.write_text(json.dumps(index))
    with pytest.raises(ValueError, match="holds 'scale', and the index has it in None"):
        open_checkpoint(path)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{}", "no weight_map"),
        ('{"weight_map": {}}', "no weight_map"),
        ('{"weight_map": {"a": "b.txt"}}', "expected .safetensors or .bin"),
        ('{"weight_map": {"/layers/dense/vars": ["model_00000.weights.h5"]}}', "sharded Keras weights"),
        ('{"weight_map": {"/layers/dense/vars": "model_00000.weights.h5"}}', "sharded Keras weights"),
        ('{"weight_map": ', "is no JSON file"),
    ],
)
def test_other_json_is_refused(tmp_path, text, expected):
    path = tmp_path / "model.index.json"
    path.write_text(text)
    with pytest.raises(ValueError, match="model.index.json") as error:
        open_checkpoint(path)
    assert expected in str(error.value)


def test_damage_to_a_shard_is_refused(shards, tmp_path):
    path = shards()
    data = (tmp_path / FILES[1]).read_bytes()
    (tmp_path / FILES[1]).write_bytes(flipped(data, len(data) - 1, 3))
    with pytest.raises(ValueError, match=FILES[1]):
        contents(path)


def test_the_sidecar_of_each_shard_is_checked(shards, tmp_path):
    path = shards()
    write_sidecar(tmp_path / FILES[1])
    data = (tmp_path / FILES[1]).read_bytes()
    (tmp_path / FILES[1]).write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(ValueError, match=f"{FILES[1]}.*its SHA-256 is"):
        open_checkpoint(path)
