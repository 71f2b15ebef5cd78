"""Tests that copies of models and models around them keep the config."""

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.training import enable_lora
from tests.tiny import build


def test_config_of_saved_tap_and_of_models_without_record(tmp_path):
    model = build(num_classes=0, norm_after_pooling=True)
    tap = keras.Model(model.input, model.get_layer("block_00").output)
    around = keras.Sequential([model, keras.layers.Dense(2)])
    for each in (tap, around):
        each.save(tmp_path / "model.keras")
        for same in (each, keras.saving.load_model(tmp_path / "model.keras")):
            assert keras_vit.config_of(same) == model.config
    with pytest.raises(ValueError, match="in which no layer stores a config"):
        keras_vit.config_of(keras.Sequential([keras.Input((2,)), keras.layers.Dense(2)]))


@pytest.mark.backends("tensorflow")
def test_saved_model_with_lora_gives_the_same_outputs(tmp_path):
    tf = pytest.importorskip("tensorflow")
    backbone = build(num_classes=0)
    model = keras.Model(backbone.input, keras.layers.Dense(3, name="mine")(backbone.output))
    enable_lora(model, 2, alpha=3.0)
    for weight in model.weights:
        if "lora_kernel_b" in weight.path:
            weight.assign(0.1 * np.ones(weight.shape, "float32"))
    keras_vit.export.saved_model(model, tmp_path / "1")
    served = tf.saved_model.load(str(tmp_path / "1")).signatures["serving_default"]
    images = np.random.default_rng(0).normal(size=(2, 16, 16, 3)).astype("float32")
    outputs = served(images=tf.constant(images))["outputs"].numpy()
    np.testing.assert_allclose(outputs, keras.ops.convert_to_numpy(model(images)), atol=1e-5)
