import json
import os

import numpy as np
import pytest

from keras_vit.weights.read import open_checkpoint
from keras_vit.weights.write import write_safetensors
from tests.errors import not_found, refuses
from tests.weights.read.damage import check_unreadable, contents, flipped, write_sidecar

FILES = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
VIT = {"model_type": "vit", "hidden_size": 64}
TIMM = {"architecture": "vit_tiny_patch16_224", "num_classes": 5, "pretrained_cfg": {"mean": [0.5, 0.5, 0.5]}}
INVALID_CONFIGS = [
    ("", "config.json': it is empty"),
    ("{", "config.json': it is not a JSON file"),
    ("[1]", "config.json': it holds a JSON list"),
    ("[" * 50_000, "config.json': it is not a JSON file"),
    ({"hidden_size": 64}, "neither a model_type nor timm's architecture"),
    ({"model_type": 3}, "neither a model_type nor timm's architecture"),
]
NO_INDEX = [
    ('{"weight_map": {}}', "no weight_map"),
    ('{"weight_map": {"a": "b.txt"}}', "expected .safetensors or .bin"),
    ('{"weight_map": {"/layers/dense/vars": ["model_00000.weights.h5"]}}', "expected the name of a file"),
    ('{"weight_map": {"/layers/dense/vars": "model_00000.weights.h5"}}', "expected .safetensors or .bin"),
    ('{"weight_map": ', "is not a JSON file"),
]


@pytest.fixture
def shards(tmp_path, arrays):
    """Writes two shards and their index with changed entries, and returns the path of the index."""

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
def test_shard_name_outside_folder_is_refused(shards, name):
    check_unreadable("expected the name of a file in the same folder", shards(scale=name))


def test_index_that_contradicts_shards_is_refused(shards, tmp_path):
    check_unreadable("'scale' to '.*00001.*does not hold 'scale'", shards(scale=FILES[0]))
    check_unreadable("'more' to .*does not hold 'more'", shards(more=FILES[0]))
    path = shards()
    index = json.loads(path.read_text())
    del index["weight_map"]["scale"]
    path.write_text(json.dumps(index))
    check_unreadable("holds 'scale', and the index maps it to None", path)
    path = shards()
    (tmp_path / FILES[1]).unlink()
    not_found(f"{FILES[1]}.*not in the same folder", open_checkpoint, path)


@pytest.mark.parametrize("text, expected", NO_INDEX)
def test_json_without_shard_index_is_refused(tmp_path, text, expected):
    path = tmp_path / "model.index.json"
    path.write_text(text)
    check_unreadable(f"model.index.json.*{expected}", path)


@pytest.mark.parametrize("sidecar", [False, True])
def test_damaged_shard_is_refused(shards, tmp_path, sidecar):
    path, shard = shards(), tmp_path / FILES[1]
    if sidecar:
        write_sidecar(shard)
    data = shard.read_bytes()
    shard.write_bytes(flipped(data, len(data) - 1, 3))
    if sidecar:
        check_unreadable(f"{FILES[1]}.*its SHA-256 is", path)
    refuses(FILES[1], contents, path)


@pytest.fixture
def folder(tmp_path, arrays):
    """Writes a folder with the given config.json, and returns its path."""

    def write(config=VIT, **more):
        texts = {"config.json": config, **{f"{name}.json": value for name, value in more.items()}}
        for name, value in texts.items():
            (tmp_path / name).write_text(value if isinstance(value, str) else json.dumps(value))
        write_safetensors(tmp_path / "model.safetensors", arrays, {"by": "us"})
        return tmp_path

    return write


def refusal(path):
    with pytest.raises(ValueError, match="Cannot read weights") as error:
        open_checkpoint(path)
    return str(error.value)


def test_transformers_folder_gives_config_and_arrays(folder, arrays):
    path = folder(preprocessor_config={"image_mean": [0.5]})
    checkpoint = open_checkpoint(path)
    assert checkpoint.container == "huggingface" and checkpoint.path == str(path)
    assert checkpoint.facts["config"] == VIT and checkpoint.facts["preprocessor"] == {"image_mean": [0.5]}
    assert checkpoint.facts["timm"] is None and checkpoint.facts["keras_vit"] == {"by": "us"}
    for key, array in checkpoint.read(arrays):
        np.testing.assert_array_equal(array, arrays[key])


def test_timm_folder_gives_pretrained_cfg(folder):
    facts, _ = contents(folder(TIMM))
    assert open_checkpoint(folder(TIMM)).container == "timm"
    assert facts["timm"] == TIMM["pretrained_cfg"] and facts["preprocessor"] is None
    older = {"architecture": "vit_tiny_patch16_224", "mean": [0, 0, 0]}
    assert contents(folder(older))[0]["timm"] == older
    assert "pretrained_cfg" in refusal(folder({**TIMM, "pretrained_cfg": 3}))


def test_folder_with_only_pytorch_file_is_read(folder, arrays):
    torch = pytest.importorskip("torch")
    path = folder()
    (path / "model.safetensors").unlink()
    torch.save({key: torch.from_numpy(array) for key, array in arrays.items()}, path / "pytorch_model.bin")
    facts, read = contents(path)
    assert read.keys() == arrays.keys() and facts["wrapper"] is None
    (path / "pytorch_model.bin").rename(path / "part.bin")
    (path / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": dict.fromkeys(arrays, "part.bin")}))
    assert contents(path)[1].keys() == arrays.keys()


@pytest.mark.parametrize("config, expected", INVALID_CONFIGS)
def test_invalid_config_is_refused(folder, config, expected):
    assert expected in refusal(folder(config))


def test_huge_config_and_missing_files_are_refused(folder):
    path = folder()
    os.truncate(path / "config.json", 10**10)
    assert "config.json': it is larger than" in refusal(path)
    path = folder()
    (path / "model.safetensors").unlink()
    assert "holds none of model.safetensors, " in refusal(path)
    (path / "config.json").unlink()
    assert "is a folder that holds no config.json; to read weights without a config.json" in refusal(path)
    (path / "model.keras").touch()
    assert f"holds no config.json; read '{path / 'model.keras'}' with keras_vit.from_pretrained" in refusal(path)


def test_sidecar_of_each_file_in_folder_is_checked(folder):
    for name in ("config.json", "preprocessor_config.json", "model.safetensors"):
        path = folder(preprocessor_config={})
        write_sidecar(path / name)
        open_checkpoint(path)
        (path / name).write_bytes((path / name).read_bytes() + b" ")
        assert f"{name}': it is damaged or another file" in refusal(path)
        (path / f"{name}.sha256").unlink()
