import json

import numpy as np
import pytest

from keras_vit.weights.read import open_checkpoint
from keras_vit.weights.write import write_safetensors
from tests.golden import GOLDEN_FOLDER
from tests.weights.read.damage import contents, write_sidecar

VIT = {"model_type": "vit", "hidden_size": 64}
TIMM = {"architecture": "vit_tiny_patch16_224", "num_classes": 5, "pretrained_cfg": {"mean": [0.5, 0.5, 0.5]}}


@pytest.fixture
def folder(tmp_path, arrays):
    """Writes a folder, with what is given in place of its config.json, and returns its path."""

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


def test_a_transformers_folder(folder, arrays):
    path = folder(preprocessor_config={"image_mean": [0.5]})
    checkpoint = open_checkpoint(path)
    assert checkpoint.container == "huggingface" and checkpoint.path == str(path)
    assert checkpoint.facts["config"] == VIT and checkpoint.facts["preprocessor"] == {"image_mean": [0.5]}
    assert checkpoint.facts["timm"] is None and checkpoint.facts["keras_vit"] == {"by": "us"}
    for key, array in checkpoint.read(arrays):
        np.testing.assert_array_equal(array, arrays[key])


def test_a_timm_folder(folder):
    facts, _ = contents(folder(TIMM))
    assert open_checkpoint(folder(TIMM)).container == "timm"
    assert facts["timm"] == TIMM["pretrained_cfg"] and facts["preprocessor"] is None
    older = {"architecture": "vit_tiny_patch16_224", "mean": [0, 0, 0]}
    assert contents(folder(older))[0]["timm"] == older
    assert "pretrained_cfg" in refusal(folder({**TIMM, "pretrained_cfg": 3}))


def test_a_sharded_folder(folder, arrays):
    path = folder()
    (path / "model.safetensors").rename(path / "part.safetensors")
    index = {"weight_map": dict.fromkeys(arrays, "part.safetensors")}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))
    checkpoint = open_checkpoint(path)
    assert checkpoint.container == "huggingface" and checkpoint.entries.keys() == arrays.keys()
    assert len(dict(checkpoint.read(arrays))) == len(arrays)


def test_a_folder_with_pytorch_s_file_alone(folder, arrays):
    torch = pytest.importorskip("torch")
    path = folder()
    (path / "model.safetensors").unlink()
    torch.save({key: torch.from_numpy(array) for key, array in arrays.items()}, path / "pytorch_model.bin")
    facts, read = contents(path)
    assert read.keys() == arrays.keys() and facts["wrapper"] is None
    (path / "pytorch_model.bin").rename(path / "part.bin")
    (path / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": dict.fromkeys(arrays, "part.bin")}))
    assert contents(path)[1].keys() == arrays.keys()


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ("", "config.json': it is empty"),
        ("{", "config.json': it is no JSON file"),
        ("[1]", "config.json': it holds a JSON list"),
        ("[" * 50_000, "config.json': it is no JSON file"),
        ({"hidden_size": 64}, "neither a model_type nor timm's architecture"),
        ({"model_type": 3}, "neither a model_type nor timm's architecture"),
    ],
)
def test_a_wrong_config_is_refused(folder, config, expected):
    assert expected in refusal(folder(config))


def test_missing_files_are_named(folder):
    path = folder()
    (path / "model.safetensors").unlink()
    assert "holds none of model.safetensors, " in refusal(path)
    (path / "config.json").unlink()
    assert "is a folder that holds no config.json" in refusal(path)


def test_sidecars_of_all_files_are_checked(folder):
    for name in ("config.json", "preprocessor_config.json", "model.safetensors"):
        path = folder(preprocessor_config={})
        write_sidecar(path / name)
        open_checkpoint(path)
        (path / name).write_bytes((path / name).read_bytes() + b" ")
        assert f"{name}': it is damaged or another file" in refusal(path)
        (path / f"{name}.sha256").unlink()


def test_golden_folders():
    for name in ("hf_vit", "hf_deit_distilled"):
        facts, read = contents(GOLDEN_FOLDER / name)
        assert facts["config"]["hidden_size"] == 64 and len(read) > 50
