"""The record goes wherever the model goes; and what was saved by version 0.1.0, before there were records."""

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


# What a user does with a model before it goes anywhere.
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
@pytest.mark.parametrize("around", [lambda model: model, own_head, nested], ids=["plain", "own_head", "nested"])
@pytest.mark.parametrize("change", CHANGES)
def test_record_answers_and_what_is_trained_go_where_the_model_goes(around, change, tmp_path):
    if change == "int8" and around is not own_head:
        pytest.skip("It takes long on TensorFlow, and tests/training/test_lora.py has the others")
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
@pytest.mark.parametrize("change", ["frozen", "lora"])
def test_a_saved_model_answers_as_what_it_was_made_of(change, tmp_path):
    tf = pytest.importorskip("tensorflow")
    model = own_head(build(num_classes=0))
    CHANGES[change](model)
    keras_vit.export.saved_model(model, tmp_path / "1")
    served = tf.saved_model.load(str(tmp_path / "1")).signatures["serving_default"]
    outputs = served(images=tf.constant(IMAGES))["outputs"].numpy()
    np.testing.assert_allclose(outputs, keras.ops.convert_to_numpy(model(IMAGES)), atol=1e-5)


FOLDER = GOLDEN_FOLDER / "version_0_1"
NAMES = sorted(path.stem for path in FOLDER.glob("*.keras"))


@pytest.mark.parametrize("name", NAMES)
def test_a_file_of_version_0_1_loads_and_answers_the_same(name, tmp_path):
    model = keras.saving.load_model(FOLDER / f"{name}.keras")
    with np.load(FOLDER / "io.npz") as io:
        images, answers = io[f"{name}/images"], io[f"{name}/answers"]
    np.testing.assert_allclose(keras.ops.convert_to_numpy(model(images)), answers, atol=1e-4)
    config = keras_vit.config_of(model)
    inputs = keras.Input(model.input_shape[1:])
    nested = keras.Model(inputs, keras.layers.Identity()(model(inputs)))
    nested.save(tmp_path / "nested.keras")
    assert keras_vit.config_of(keras.saving.load_model(tmp_path / "nested.keras")) == config


def test_the_files_of_version_0_1_are_all_kinds():
    assert NAMES == ["bit", "distilled", "hybrid", "map_relative", "own_head", "raw_gap", "vit"]
    raw = keras_vit.config_of(keras.saving.load_model(FOLDER / "raw_gap.keras"))
    assert raw.preprocessing == keras_vit.Preprocessing(
        mean=(0.4, 0.5, 0.6), interpolation="bicubic", crop_fraction=0.9
    )
    assert raw.any_size and raw.grid == (56, 56) and not raw.class_token_position and raw.num_registers == 2
    assert keras_vit.config_of(keras.saving.load_model(FOLDER / "own_head.keras")).num_classes == 0


@pytest.mark.parametrize("kind", KINDS)
def test_what_layers_tell_is_what_the_record_says(kind):
    model = build(**KINDS[kind])
    assert _of_version_0_1(model, carrier_of(model)) == model.config


def test_a_resnet_and_a_hybrid_likewise():
    arguments = {"stages": (1, 1), "width_factor": 0.5, "image_size": 32, "num_classes": 3}
    hybrid = keras_vit.ViT("B/16", **arguments, patch_size=1, hidden_dim=12, num_layers=1, num_heads=3, mlp_dim=8)
    for model in (keras_vit.BiT("R50x1", **arguments, pool_padding="zeros"), hybrid):
        assert _of_version_0_1(model, carrier_of(model)) == model.config


def test_a_part_of_a_model_of_version_0_1_has_its_record():
    model = keras.saving.load_model(FOLDER / "vit.keras")
    part = keras.Model(model.input, model.get_layer("block_00").output)
    assert keras_vit.config_of(part).hidden_dim == 12
