"""Tests that copies of models and models around them keep the config."""

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.training import enable_lora
from tests.tiny import build

IMAGES = np.random.default_rng(0).normal(size=(2, 16, 16, 3)).astype("float32")


def lora(model):
    enable_lora(model, 2, alpha=3.0)
    for layer in model.layers:
        for weight in layer.weights:
            if "lora_kernel_b" in weight.path:
                weight.assign(0.1 * np.ones(weight.shape, "float32"))


def own_head(model):
    return keras.Model(model.input, keras.layers.Dense(3, name="mine")(model.output))


def test_config_of_saved_tap_and_of_models_without_record(tmp_path):
    model = build(num_classes=0, norm_after_pooling=True)
    tap = keras.Model(model.input, model.get_layer("block_00").output)
    around = keras.Sequential([model, keras.layers.Dense(2)])
    for each in (tap, around):
        each.save(tmp_path / "model.keras")
        for same in (each, keras.saving.load_model(tmp_path / "model.keras")):
            assert keras_vit.config_of(same) == model.config
    with pytest.raises(ValueError, match="none of whose layers stores a config"):
        keras_vit.config_of(keras.Sequential([keras.Input((2,)), keras.layers.Dense(2)]))


@pytest.mark.backends("tensorflow")
def test_saved_model_with_lora_gives_the_same_outputs(tmp_path):
    tf = pytest.importorskip("tensorflow")
    model = own_head(build(num_classes=0))
    lora(model)
    keras_vit.export.saved_model(model, tmp_path / "1")
    served = tf.saved_model.load(str(tmp_path / "1")).signatures["serving_default"]
    outputs = served(images=tf.constant(IMAGES))["outputs"].numpy()
    np.testing.assert_allclose(outputs, keras.ops.convert_to_numpy(model(IMAGES)), atol=1e-5)
