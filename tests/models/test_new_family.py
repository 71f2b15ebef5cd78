"""A new family is one folder and one row. A new source is one name table and one case of `read_config`."""

import dataclasses
from typing import ClassVar

import keras
import numpy as np
import pytest
import safetensors.numpy

import keras_vit
from keras_vit import arguments
from keras_vit.config import ModelConfig, checked, checked_activation
from keras_vit.models import catalog
from keras_vit.models.family import Family, build, dense_head
from keras_vit.weights import codecs
from keras_vit.weights.found import DEFAULT, STATED, Found
from keras_vit.weights.record import read_record
from keras_vit.weights.source import Name, Source, dense
from tests.errors import refuses
from tests.models.small import answers, images
from tests.tiny import randomize
from tests.weights.helpers import state_of

# The folder of a family: its config, its graph, its name table and its `read_config`.


@dataclasses.dataclass(frozen=True, kw_only=True)
class ToyConfig(ModelConfig):
    family: ClassVar[str] = "toy"
    sizes: ClassVar[tuple[str, ...]] = ("width", "num_classes")

    width: int = checked(arguments.positive_int)
    activation: str = checked(checked_activation, default="relu")

    block_names: ClassVar[list[str]] = ["stage_1"]

    @staticmethod
    def variant_sizes(variant):
        return {"width": {"small": 4, "large": 6}[variant]}


def connect(x, config, *, head_init="zeros"):
    for name in ("stem_conv", "stage_1"):
        x = keras.layers.Conv2D(config.width, 3, 2, data_format="channels_last", name=name)(x)
        x = keras.layers.Activation(config.activation, name=f"{name}_activation")(x)
    x = keras.layers.GlobalAveragePooling2D(data_format="channels_last", name="pooling")(x)
    return dense_head(x, config, head_init)


TORCH = Source(
    "toy_torch",
    {
        **dense("stem_conv", "toy.stem", codecs.TORCH_CONV),
        **dense("stage_1", "toy.stage", codecs.TORCH_CONV),
        **dense("head", "toy.fc"),
    },
    family="toy",
    activation=None,
    layer_norm_epsilon=None,
)

# A second source.
FLAX = Source(
    "toy_flax",
    {
        f"{layer}/{kind}": Name((f"{key}/{kind}",))
        for layer, key in (("stem_conv", "Conv_0"), ("stage_1", "Conv_1"), ("head", "Dense_0"))
        for kind in ("kernel", "bias")
    },
    family="toy",
    activation=None,
    layer_norm_epsilon=None,
)


def read_config(file, grid_size=None):
    found, kernel = Found(file.path), file.weights["stem_conv/kernel"]
    found.put(STATED, in_channels=kernel[2], width=kernel[3], num_classes=file.size("head/bias", 1, 0) or 0)
    if "config" in file.own:
        read_record(file, found)
    else:
        found.put(f"{DEFAULT} {file.source.name}", activation="relu", preprocessing=keras_vit.Preprocessing(mean=0.25))
        if file.source.name == FLAX.name:
            found.leave("flax models differ in it", "activation")
    return found


TOY = Family(
    config=ToyConfig,
    connect=connect,
    builder="Toy",
    above=("pooling",),
    sources=(TORCH, FLAX),
    read_config=read_config,
    settings=("activation",),
    formats={"npz": FLAX, "timm": TORCH},
)


@pytest.fixture(autouse=True)
def row(monkeypatch):
    """The row in the catalog."""
    monkeypatch.setitem(catalog.FAMILIES, "toy", TOY)


def toy(variant="small", **changes):
    return build(TOY, variant, {"image_size": 16, "num_classes": 5, **changes})


def test_file_of_a_new_family_becomes_a_model(tmp_path):
    model = randomize(toy())
    safetensors.numpy.save_file(state_of(model, TORCH), tmp_path / "toy.safetensors")
    found = keras_vit.from_pretrained(tmp_path / "toy.safetensors", image_size=16)
    assert found.config == model.config.replace(preprocessing={"mean": 0.25}) and found.name == "toy"
    np.testing.assert_allclose(answers(found, images(2, 16, 16, 3)), answers(model, images(2, 16, 16, 3)), rtol=1e-5)
    again = toy(weights=tmp_path / "toy.safetensors")
    np.testing.assert_array_equal(again.get_layer("head").kernel, model.get_layer("head").kernel)


def test_new_source_leaves_and_loads_settings(tmp_path):
    model = randomize(toy("large", activation="silu"))
    np.savez(tmp_path / "toy.npz", **state_of(model, FLAX))
    refuses("Pass activation= to from_pretrained", keras_vit.from_pretrained, tmp_path / "toy.npz")
    found = keras_vit.from_pretrained(tmp_path / "toy.npz", activation="silu", image_size=(None, None))
    np.testing.assert_allclose(answers(found, images(2, 16, 16, 3)), answers(model, images(2, 16, 16, 3)), rtol=1e-5)
    report = keras_vit.load_weights(toy("large"), tmp_path / "toy.npz", source="toy_flax")
    assert report.source == "toy_flax" and len(report.loaded) == 6
    refuses("(?s)does not fit .*differ in width", keras_vit.load_weights, toy(), tmp_path / "toy.npz")


@pytest.mark.parametrize("format", ["npz", "timm"])
def test_saved_model_of_a_new_family_is_read_again(tmp_path, format):
    model = randomize(toy("large", activation="silu", class_names=list("abcde")))
    path = tmp_path / {"npz": "toy.npz", "timm": "toy.safetensors"}[format]
    keras_vit.save_weights(model, path, format)
    model.save(tmp_path / "toy.keras")
    for file in (path, tmp_path / "toy.keras"):
        again = keras_vit.from_pretrained(file)
        assert again.config == model.config and again.config.class_names == tuple("abcde")
        np.testing.assert_allclose(answers(again, images(2, 16, 16, 3)), answers(model, images(2, 16, 16, 3)), 1e-5)
    refuses("activation='silu'", keras_vit.load_weights, toy("large"), path)
    assert len(keras_vit.load_weights(toy("large"), path, allow="activation").loaded) == 6
    refuses("(?s)does not fit .*differ in width", keras_vit.load_weights, toy(), path)
    refuses("'npz' or 'timm', the only formats of toy models", keras_vit.save_weights, model, path, "huggingface")
