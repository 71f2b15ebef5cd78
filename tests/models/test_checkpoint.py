import json

import keras
import numpy as np
import pytest

import keras_vit
from tests.tiny import build, randomize
from tests.weights.helpers import check_refused, read, rewrite_member

torch = pytest.importorskip("torch", reason="it writes the .pth files")
IMAGES = np.random.default_rng(0).normal(size=(2, 16, 16, 3)).astype("float32")


@pytest.fixture(scope="module")
def model():
    return randomize(build(activation="gelu"), scale=0.1)


@pytest.fixture(scope="module")
def weights(model, tmp_path_factory):
    """The model's weights as a state dict of timm."""
    from safetensors.torch import load_file

    path = tmp_path_factory.mktemp("timm") / "weights.safetensors"
    keras_vit.save_weights(model, path, format="timm")
    return load_file(path)


def assert_same(path, content, model):
    torch.save(content, path)
    found = keras_vit.from_pretrained(path, num_heads=3, preprocessing=keras_vit.Preprocessing())
    np.testing.assert_allclose(found.predict(IMAGES, verbose=0), model.predict(IMAGES, verbose=0), atol=1e-5)


def prefixed(weights, prefix):
    return {prefix + key: value for key, value in weights.items()}


@pytest.mark.parametrize(
    "prefix", ["module._orig_mod.", "_orig_mod.module.", "timm_model.", "backbone.", "module.model."]
)
def test_wrapper_prefixes_are_removed(prefix, weights, model, tmp_path):
    assert_same(tmp_path / "w.pth", prefixed(weights, prefix), model)


WRAPS = [lambda average: average, lambda average: {"module": average, "decay": 0.9}]
WRAPS += [lambda average: {"state_dict": average}, lambda average: {**average, "updates": 3}]
WRAPS += [lambda average: {"shadow": average, "decay": 0.9}]


@pytest.mark.parametrize("average, raw", [("state_dict_ema", "state_dict"), ("model_ema", "model"), ("ema", "net")])
@pytest.mark.parametrize("wrap", WRAPS)
def test_moving_average_is_read_before_raw_weights(average, raw, wrap, weights, model, tmp_path):
    other = {key: value + 1 for key, value in weights.items()}
    assert_same(tmp_path / "w.pth", {raw: other, average: wrap(weights)}, model)


@pytest.mark.parametrize("average", [{"decay": 0.99}, {}, 5])
def test_entry_named_ema_without_weights_is_ignored(average, weights, model, tmp_path, caplog):
    assert_same(tmp_path / "w.pth", {"state_dict": weights, "ema": average}, model)
    assert ("ema: the file's 'state_dict' is read" in caplog.text) == isinstance(average, dict)


@pytest.mark.parametrize("keys", [("model",), ("model", "model_ema")])
def test_average_has_the_source_of_its_model(keys, weights, tmp_path):
    torch.save(dict.fromkeys(keys, weights), tmp_path / "w.pth")
    assert read(tmp_path / "w.pth")[0].source.name == "deit"


def test_ignored_keys_below_a_prefix_keep_their_names(weights, tmp_path):
    torch.save(prefixed({**weights, "mask_token": torch.zeros(1, 1, 12)}, "model."), tmp_path / "w.pth")
    file, _ = read(tmp_path / "w.pth", source="mae")
    assert file.ignored == ["model.mask_token"] and not file.outside


def test_counter_and_keys_outside_the_model_are_reported(weights, model, tmp_path, caplog):
    assert_same(tmp_path / "w.pth", {"n_averaged": torch.tensor(5), **prefixed(weights, "module.")}, model)
    lightning = {**prefixed(weights, "model."), "criterion.weight": torch.ones(5)}
    with caplog.at_level("WARNING", "keras_vit"):
        assert_same(tmp_path / "w.pth", {"epoch": 3, "state_dict": lightning, "optimizer": {"state": {}}}, model)
    assert "criterion.weight" in caplog.text and "outside of 'model.'" in caplog.text


def test_two_models_in_one_file_are_refused(weights, tmp_path):
    torch.save({**prefixed(weights, "first."), **prefixed(weights, "second.")}, tmp_path / "w.pth")
    message = "Expected the weights of one model. Received: several models, .* first., second."
    check_refused(message, tmp_path / "w.pth", num_heads=3)


def test_file_of_newer_keras_names_its_version(model, tmp_path):
    model.save(tmp_path / "new.keras")
    dense = b'"class_name": "Dense", "config": {'
    rewrite_member(tmp_path / "new.keras", "config.json", lambda data: data.replace(dense, dense + b'"new": 1, '))
    version = json.dumps({"keras_version": "99.1.0"}).encode()
    rewrite_member(tmp_path / "new.keras", "metadata.json", lambda data: version)
    with pytest.raises(ValueError, match=f"Keras 99.1.0 saved it, and Keras {keras.__version__} is installed"):
        keras_vit.from_pretrained(tmp_path / "new.keras")
