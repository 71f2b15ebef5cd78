import logging

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
