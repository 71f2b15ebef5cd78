"""Tests that copies keep the config, and that files of version 0.1.0, which have none, still load."""

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.preprocessing import carrier_of
from keras_vit.record import _of_version_0_1
from keras_vit.training import enable_lora, freeze
from tests.golden import GOLDEN_FOLDER
from tests.models.test_vit import KINDS
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
    backbone = build(num_classes=0, class_names=list("abc"), qk_norm=True, activation="gelu", mean=0.4)
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
    if around is not nested:
        tap = keras.Model(model.input, model.get_layer("block_00").output)
        assert keras_vit.config_of(tap) == backbone.config


@pytest.mark.backends("tensorflow")
def test_saved_model_with_lora_gives_the_same_outputs(tmp_path):
    tf = pytest.importorskip("tensorflow")
    model = own_head(build(num_classes=0))
    lora(model)
    keras_vit.export.saved_model(model, tmp_path / "1")
    served = tf.saved_model.load(str(tmp_path / "1")).signatures["serving_default"]
    outputs = served(images=tf.constant(IMAGES))["outputs"].numpy()
    np.testing.assert_allclose(outputs, keras.ops.convert_to_numpy(model(IMAGES)), atol=1e-5)


FOLDER = GOLDEN_FOLDER / "version_0_1"
NAMES = ["bit", "distilled", "hybrid", "map_relative", "own_head", "raw_gap", "vit"]


@pytest.mark.parametrize("name", NAMES)
def test_file_of_version_0_1_gives_the_same_outputs(name):
    model = keras.saving.load_model(FOLDER / f"{name}.keras")
    with np.load(FOLDER / "io.npz") as io:
        images, answers = io[f"{name}/images"], io[f"{name}/answers"]
    np.testing.assert_allclose(keras.ops.convert_to_numpy(model(images)), answers, atol=1e-4)
    config = keras_vit.config_of(model)
    if name == "raw_gap":
        expected = keras_vit.Preprocessing(mean=(0.4, 0.5, 0.6), interpolation="bicubic", crop_fraction=0.9)
        assert config.preprocessing == expected and config.any_size and config.grid == (56, 56)
        assert not config.class_token_position and config.num_registers == 2
    if name == "own_head":
        assert config.num_classes == 0


def test_parts_and_copies_of_version_0_1_have_its_config(tmp_path):
    assert {path.stem for path in FOLDER.glob("*.keras")} == set(NAMES)
    model = keras.saving.load_model(FOLDER / "vit.keras")
    part = keras.Model(model.input, model.get_layer("block_00").output)
    inputs = keras.Input(model.input_shape[1:])
    keras.Model(inputs, keras.layers.Identity()(model(inputs))).save(tmp_path / "nested.keras")
    config = keras_vit.config_of(model)
    assert keras_vit.config_of(part).hidden_dim == 12
    assert keras_vit.config_of(keras.saving.load_model(tmp_path / "nested.keras")) == config


RESNET = {"stages": (1, 1), "width_factor": 0.5, "image_size": 32, "num_classes": 3}
BUILT = {kind: lambda arguments=arguments: build(**arguments) for kind, arguments in KINDS.items()}
BUILT["bit"] = lambda: keras_vit.BiT("R50x1", **RESNET, pool_padding="zeros")
BUILT["hybrid"] = lambda: build(**RESNET, patch_size=1)


@pytest.mark.parametrize("kind", BUILT)
def test_config_derived_from_layers_is_the_stored_one(kind):
    model = BUILT[kind]()
    assert _of_version_0_1(model, carrier_of(model)) == model.config
