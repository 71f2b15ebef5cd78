from pathlib import Path
from types import SimpleNamespace

import keras
import numpy as np
import pytest

from keras_vit.export import ParityError, parity
from keras_vit.export.formats import Format, write_file
from keras_vit.export.parity import PRECISIONS
from tests import tiny
from tests.errors import refuses


def write_weights(model, path, settings):
    Path(path).write_bytes(b"model")
    Path(path).with_suffix(".data").write_bytes(settings["precision"].encode())


def check(model, path, answer, write=write_weights, precisions=PRECISIONS, packages=(), **arguments):
    """Writes a "format" whose runtime is a function from images to outputs."""

    def run(draft, batches, settings):
        assert draft.is_file() and draft.name == path.name
        assert settings["names"] == ["outputs"]
        return [[answer(batch)] for batch in batches]

    code = SimpleNamespace(write_x=write, run_x=run)
    form = Format("x", ".x", keras.backend.backend(), packages, code, precisions)
    return write_file(form, model, path, **arguments)


@pytest.fixture(scope="module")
def model():
    return tiny.build(num_layers=1)


def exact(model):
    return lambda images: parity.model_outputs(model, images)[0]


def test_matching_export_is_moved_and_reported(model, tmp_path):
    images = np.random.default_rng(0).uniform(-1, 1, (9, 16, 16, 3))
    path = tmp_path / "new" / "model.x"
    report = check(model, path, exact(model), images=images, labels=np.zeros(9, int))
    assert sorted(p.name for p in path.parent.iterdir()) == ["model.data", "model.x"]
    assert report["difference"] < 1e-5
    assert (report["path"], report["size"], report["num_checked"], report["precision"]) == (path, 12, 15, "float32")
    assert report["change"]["same_top1"] == report["change"]["num_images"] == 9
    # Six of the images are random.
    text = parity.summary(report)
    assert "15 images" in text and "same top-1 on 9" in text and "accuracy 0." in text


@pytest.mark.parametrize("wrong, message", [(0.25, "0.25 apart"), (np.nan, "inf apart")])
def test_differing_export_is_removed_with_difference(model, tmp_path, wrong, message):
    with pytest.raises(ParityError, match=message):
        check(model, tmp_path / "model.x", lambda images: exact(model)(images) + np.float32(wrong))
    assert list(tmp_path.iterdir()) == []
    if wrong == 0.25:
        assert check(model, tmp_path / "model.x", lambda images: exact(model)(images) + 0.25, tolerance=0.3)


def test_change_is_measured_from_original_model(tmp_path):
    model = tiny.randomize(tiny.build(num_layers=1))
    seen = []

    def write(reduced, path, settings):
        seen.append(reduced)
        write_weights(reduced, path, settings)

    images = np.random.default_rng(0).uniform(-1, 1, (4, 16, 16, 3)).astype("float32")
    report = check(model, tmp_path / "model.x", lambda x: exact(seen[0])(x), write, images=images, precision="bfloat16")
    assert report["difference"] < 1e-5 < report["change"]["largest"]
    assert report["change"]["largest"] == pytest.approx(np.abs(exact(seen[0])(images) - exact(model)(images)).max())


def test_existing_files_are_replaced_with_overwrite_only(model, tmp_path):
    path = tmp_path / "model.x"
    side = tmp_path / "model.data"
    side.write_text("of another")
    refuses(r"model\.data", check, model, path, exact(model), error=FileExistsError)
    path.write_text("old")
    refuses("overwrite=True", check, model, path, exact(model), error=FileExistsError)
    with pytest.raises(ParityError):
        check(model, path, lambda images: exact(model)(images) + 1, overwrite=True)
    assert (path.read_text(), side.read_text()) == ("old", "of another")
    check(model, path, exact(model), overwrite=True)
    assert (path.read_text(), side.read_text()) == ("model", "float32")


def test_invalid_argument_or_missing_package_is_named(model, tmp_path):
    refuses("to end in '.x'", check, model, tmp_path / "model.y", None)
    images = np.zeros((2, 16, 16, 3))
    for arguments, message in (
        ({"precision": "bfloat16", "precisions": ("float32",)}, "Expected one of 'float32'. Received"),
        ({"labels": [1]}, "Expected `images`"),
        ({"packages": ("sys", "no_such_a", "no_such_b"), "error": ImportError}, "pip install no-such-a no-such-b"),
        ({"images": images, "labels": [0, 9]}, "a class for each of 2 images"),
        ({"images": images + 200}, "Expected images of -1 to 1"),
    ):
        refuses(message, check, model, tmp_path / "model.x", None, **arguments)
    options = {"images": images, "labels": [0, 1]}
    refuses("one output", check, tiny.build(num_classes=1), tmp_path / "model.x", None, **options)
