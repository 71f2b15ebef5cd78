"""Tests that copies of models and models around them keep the config."""

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.training import enable_lora, freeze
from tests.tiny import build

IMAGES = np.random.default_rng(0).normal(size=(2, 16, 16, 3)).astype("float32")


def lora(model):
    enable_lora(model, 2, alpha=3.0)
    for layer in model.layers:
        for weight in layer.weights:
            if "lora_kernel_b" in weight.path:
                weight.assign(0.1 * np.ones(weight.shape, "float32"))


CHANGES = {
    "as it is": lambda model: None,
    "frozen": lambda model: freeze(model, blocks=1),
    "lora": lora,
    "int8": lambda model: model.quantize("int8"),
}


def own_head(model):
    return keras.Model(model.input, keras.layers.Dense(3, name="mine")(model.output))


def nested(model):
    inputs = keras.Input((16, 16, 3))
    return keras.Model(inputs, keras.layers.Dense(3, name="mine")(model(inputs)))


@pytest.mark.filterwarnings("ignore:.*does not have a `quantize` method")
@pytest.mark.parametrize(
    ("change", "around"),
    [("as it is", nested), ("frozen", own_head), ("lora", lambda model: model), ("lora", nested), ("int8", own_head)],
)
def test_copies_keep_config_outputs_and_trainable_weights(change, around, tmp_path):
    backbone = build(
        num_classes=0, class_names=list("abc"), qk_norm=True, activation="gelu", preprocessing={"mean": 0.4}
    )
    model = around(backbone)
    CHANGES[change](model)
    model.save(tmp_path / "model.keras")
    clone = keras.models.clone_model(model)
    clone.set_weights(model.get_weights())
    answers = keras.ops.convert_to_numpy(model(IMAGES))
    for copy in (clone, keras.saving.load_model(tmp_path / "model.keras")):
        assert keras_vit.config_of(copy) == backbone.config and keras_vit.config_of(copy).class_names == tuple("abc")
        assert [w.path for w in copy.trainable_weights] == [w.path for w in model.trainable_weights]
        np.testing.assert_allclose(keras.ops.convert_to_numpy(copy(IMAGES)), answers, atol=1e-5)


def test_config_of_saved_tap_and_of_models_without_record(tmp_path):
    model = build(num_classes=0, norm_after_pooling=True)
    tap = keras.Model(model.input, model.get_layer("block_00").output)
    tap.save(tmp_path / "model.keras")
    around = keras.Sequential([model, keras.layers.Dense(2)])
    for each in (tap, around, keras.saving.load_model(tmp_path / "model.keras")):
        assert keras_vit.config_of(each) == model.config
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
