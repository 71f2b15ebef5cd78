import os

import numpy as np
import pytest

import keras_vit
from tests.tiny import build, randomize


def test_the_official_file_comes_back_bit_for_bit(shared, tmp_path):
    source = shared / "weights" / "ViT-B_16-224.npz"
    model = keras_vit.ViTB16(weights=source)
    keras_vit.save_weights(model, tmp_path / "back.npz")
    with np.load(source) as before, np.load(tmp_path / "back.npz") as after:
        assert set(before.files) == set(after.files)
        for key in before.files:
            assert before[key].dtype == after[key].dtype and np.array_equal(before[key], after[key]), key


@pytest.mark.parametrize("name", ["vit_token_prelogits", "vit_gap"])
def test_golden_files_come_back_bit_for_bit(shared, tmp_path, name):
    source = shared / "golden" / f"{name}.npz"
    arguments = {"pooling": "gap"} if name == "vit_gap" else {"representation_size": 48}
    model = keras_vit.ViT(
        "B/8",
        image_size=32,
        hidden_dim=64,
        num_layers=3,
        num_heads=4,
        mlp_dim=128,
        num_classes=10,
        weights=source,
        **arguments,
    )
    keras_vit.save_weights(model, tmp_path / "back.npz")
    with np.load(source) as before, np.load(tmp_path / "back.npz") as after:
        assert {k: before[k].tobytes() for k in before.files} == {k: after[k].tobytes() for k in after.files}


def test_a_width_that_heads_do_not_divide_comes_back(tmp_path):
    model = randomize(build(hidden_dim=16))
    keras_vit.save_weights(model, tmp_path / "model.npz")
    again = build(hidden_dim=16)
    keras_vit.load_weights(again, tmp_path / "model.npz")
    assert all(np.array_equal(a, b) for a, b in zip(model.get_weights(), again.get_weights(), strict=True))


@pytest.mark.parametrize(
    "changes, named",
    [
        ({"layer_scale_init": 0.1}, "block_00/layer_scale_1/gamma"),
        ({"num_registers": 2}, "registers/tokens"),
        ({"position_embedding": "learned2d"}, "position_embedding/column_embeddings"),
        ({"qk_norm": True}, "block_00/attention/query_norm/gamma"),
        ({"pooling": "map"}, "pooling/probe"),
        ({"position_embedding": "sincos2d"}, "sincos2d"),
        ({"pooling": "gap", "class_token": True}, "beside a class token"),
    ],
)
def test_weights_that_the_format_has_no_place_for_are_named(tmp_path, changes, named):
    with pytest.raises(ValueError, match=named):
        keras_vit.save_weights(build(**changes), tmp_path / "model.npz")
    assert not os.listdir(tmp_path)


def test_another_activation_is_saved_only_if_allowed(tmp_path):
    with pytest.raises(ValueError, match="activation"):
        keras_vit.save_weights(build(activation="gelu"), tmp_path / "model.npz")
    keras_vit.save_weights(build(activation="gelu"), tmp_path / "model.npz", allow=("activation",))


def test_an_unknown_format_is_refused(tiny, tmp_path):
    with pytest.raises(ValueError, match="`format`"):
        keras_vit.save_weights(tiny, tmp_path / "model.npz", format="pickle")


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tiny, tiny_file, monkeypatch):
    before = tiny_file.read_bytes()

    def full_disk(file, **arrays):
        file.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez", full_disk)
    with pytest.raises(OSError, match="No space left"):
        keras_vit.save_weights(tiny, tiny_file)
    assert tiny_file.read_bytes() == before
    assert os.listdir(tiny_file.parent) == [tiny_file.name]


def test_others_can_read_the_file(tiny_file):
    assert tiny_file.stat().st_mode & 0o044 == 0o666 & ~_umask() & 0o044


def _umask():
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_a_missing_folder_is_named(tiny, tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        keras_vit.save_weights(tiny, tmp_path / "nowhere" / "model.npz")
