import keras
import numpy as np
import pytest

import keras_vit
from tests.tiny import build, randomize

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
    "prefix", ["module.", "_orig_mod.", "module._orig_mod.", "_orig_mod.module.", "timm_model.", "backbone."]
)
def test_wrapper_prefixes_are_removed(prefix, weights, model, tmp_path):
    assert_same(tmp_path / "w.pth", prefixed(weights, prefix), model)


@pytest.mark.parametrize("wrapper", ["model", "state_dict", "model_state_dict", "net", "ema"])
def test_state_dict_inside_a_training_checkpoint_is_read(wrapper, weights, model, tmp_path):
    assert_same(tmp_path / "w.pth", {"epoch": 3, wrapper: weights, "optimizer": {"state": {}}}, model)


@pytest.mark.parametrize("average, raw", [("state_dict_ema", "state_dict"), ("model_ema", "model"), ("ema", "net")])
def test_moving_average_is_read_before_raw_weights(average, raw, weights, model, tmp_path):
    other = {key: value + 1 for key, value in weights.items()}
    assert_same(tmp_path / "w.pth", {raw: other, average: weights}, model)


def test_counter_of_averaged_model_is_ignored(weights, model, tmp_path):
    content = {"n_averaged": torch.tensor(5), **prefixed(weights, "module.")}
    assert_same(tmp_path / "w.pth", content, model)


def test_lightning_keys_outside_the_model_are_ignored(weights, model, tmp_path):
    content = {"state_dict": {**prefixed(weights, "model."), "criterion.weight": torch.ones(5)}}
    assert_same(tmp_path / "w.pth", content, model)


def test_two_models_in_one_file_are_refused(weights, tmp_path):
    torch.save({**prefixed(weights, "first."), **prefixed(weights, "second.")}, tmp_path / "w.pth")
    with pytest.raises(ValueError, match="Expected the weights of one model. Received: several, .* first., second."):
        keras_vit.from_pretrained(tmp_path / "w.pth", num_heads=3)


def test_file_of_newer_keras_names_its_version(model, tmp_path):
    import json
    import zipfile

    from keras_vit.models.pretrained import read_model

    model.save(tmp_path / "model.keras")
    with zipfile.ZipFile(tmp_path / "model.keras") as old, zipfile.ZipFile(tmp_path / "new.keras", "w") as new:
        for name in old.namelist():
            data = old.read(name)
            if name == "metadata.json":
                data = json.dumps({**json.loads(data), "keras_version": "99.1.0"})
            if name == "config.json":
                data = data.replace(
                    b'"class_name": "Dense", "config": {', b'"class_name": "Dense", "config": {"new": 1, '
                )
            new.writestr(name, data)
    with pytest.raises(ValueError, match=f"Keras 99.1.0 saved it, and Keras {keras.__version__} is installed"):
        read_model(tmp_path / "new.keras")
