import logging

import numpy as np
import pytest

import keras_vit
from keras_vit.weights.read import sha256
from tests.tiny import build, randomize
from tests.weights.read.damage import write_sidecar


@pytest.fixture
def said(caplog):
    """Returns a function for the [(level, message)] that were logged since its last call."""
    caplog.set_level(logging.INFO, logger="keras_vit")

    def records():
        found = [(r.levelname, r.getMessage()) for r in caplog.records if r.name == "keras_vit"]
        caplog.clear()
        return found

    return records


@pytest.mark.parametrize(
    "changes, level, words",
    [
        ({}, "INFO", "Loaded tiny.npz (source 'official') into vit_B16"),
        ({"image_size": 32}, "WARNING", "resized  position_embedding/embeddings: 4 x 4 -> 8 x 8"),
        ({"patch_size": 8, "image_size": 32}, "WARNING", "resized  patch_embedding/kernel: patches of 4 x 4 -> 8 x 8"),
        ({"in_channels": 1}, "WARNING", "adapted  patch_embedding/kernel: 3 -> 1 channels (summed)"),
        ({"in_channels": 5}, "WARNING", "adapted  patch_embedding/kernel: 3 -> 5 channels (tiled, times 3/5)"),
        ({"num_classes": 7}, "WARNING", "kept     head/kernel: zero"),
        ({"num_classes": 0}, "WARNING", "skipped  head/kernel: 5 classes in the file, none in the model"),
    ],
)
def test_builder_logs_once_and_warns_of_changes(tiny_file, said, changes, level, words):
    build(weights=tiny_file, **changes)
    ((found, message),) = said()
    assert found == level and words in message


def test_from_pretrained_warns_of_changes_once(tiny_file, said):
    keras_vit.from_pretrained(tiny_file)
    assert [level for level, _ in said()] == ["INFO"]
    keras_vit.from_pretrained(tiny_file, image_size=32)
    ((level, message),) = said()
    assert level == "WARNING" and "4 x 4 -> 8 x 8" in message
    keras_vit.load_weights(build(image_size=32), tiny_file)
    assert not said(), "it returns its report"


def test_bit_builder_warns_of_new_head(tmp_path, said):
    options = {"stages": (1, 1), "width_factor": 0.5, "image_size": 32}
    keras_vit.save_weights(randomize(keras_vit.BiT("R50x1", num_classes=5, **options)), tmp_path / "bit.npz")
    for num_classes, level in ((5, "INFO"), (3, "WARNING")):
        keras_vit.BiT("R50x1", num_classes=num_classes, weights=tmp_path / "bit.npz", **options)
        assert [found for found, _ in said()] == [level]


def test_skipped_optimizer_state_is_no_warning(tmp_path, tiny_arrays, said):
    arrays = {f"opt/target/{key}": value for key, value in tiny_arrays.items()}
    np.savez(tmp_path / "run.npz", **arrays, **{"opt/state/step": np.zeros(1, "float32")})
    build(weights=tmp_path / "run.npz")
    ((level, message),) = said()
    assert level == "INFO" and "opt/state/step: holds no weights" in message


def test_file_without_checksum_is_warned_of(tmp_path, said):
    model, path = randomize(build()), tmp_path / "model.weights.h5"
    model.save_weights(path)
    build(weights=path)
    ((level, message),) = said()
    assert level == "WARNING" and "unchecked model.weights.h5: damage is not noticed without a SHA-256" in message
    assert not keras_vit.load_weights(model, path, sha256=sha256(path)).unchecked
    write_sidecar(path)
    build(weights=path)
    assert [level for level, _ in said()] == ["INFO"]
