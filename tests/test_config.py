import dataclasses
import inspect
import json

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.config import ModelConfig
from keras_vit.models import builders
from keras_vit.models.vit.config import ViTFields
from tests.errors import refuses
from tests.tiny import TINY, build

TINY_CONFIG = keras_vit.ViTConfig.from_variant(
    "B/16", **{name: value for name, value in TINY.items() if name != "head_init"}
)
WRONG = [
    ({"hidden_dimm": 3}, "Expected the fields of a ViTConfig: .*hidden_dim, .* Received: .*'hidden_dimm'"),
    ({"layer_norm_epsilon": 1e30}, "`layer_norm_epsilon`. Expected a number above 0, at most 1. Received: 1e"),
    ({"hidden_dim": 2**20}, "`hidden_dim`. Expected an integer of at most 65536"),
    ({"image_size": 10**9}, "`image_size`. Expected an integer of at most 65536. Received: 1000000000"),
    ({"stages": [1] * 9}, "`stages`. Expected at most 8 stages"),
    ({"preprocessing": {"std": 1e-30}}, "`std`. Expected positive numbers of at least 1e-06"),
    ({"num_heads": 5}, r"Expected head_dim=2 \("),
    ({"head_dim": 7}, "Expected head_dim=4 .* head_dim=7"),
    ({"image_size": 3}, "at least one patch, 4 x 4 pixels. Received: images of 3 x 3"),
    ({"grid_size": (4, 4)}, "grid_size=None with images of a known size"),
    ({"class_token": False}, "Expected a class token"),
    ({"rotary_embedding": "eva02", "hidden_dim": 9}, "heads of a multiple of 4 channels"),
    ({"rotary_embedding": "dinov3", "rotary_grid": 4}, "`rotary_grid` only with"),
    ({"projection_dim": 3, "pooling": "none"}, 'no projection_dim with pooling="none"'),
    ({"pooling": "token_gap", "class_token": False}, "a class token with pooling='token_gap'"),
    ({"activation": "gelu_tahn"}, "`activation`.*Received: 'gelu_tahn'"),
    ({"stages": 3}, "`stages`. Expected the number of units of each stage, as in .3, 4, 9.. Received: 3"),
    ({"width_factor": 2.0}, "width_factor=1 without a ResNet. Received: width_factor=2.0"),
    ({"resnet_epsilons": "timm"}, 'resnet_epsilons="official" without a ResNet'),
    ({"stages": (1,), "width_factor": 0.3, "image_size": 64}, "`width_factor`. Expected a multiple of 0.5"),
    ({"preprocessing": {"median": 0.5}}, "fields of a Preprocessing: .* Received: .*'median'"),
    ({"class_names": ["a", 2]}, "`class_names`"),
]


def is_heavy(name):
    """Keras infers the shape of attention pooling by computing it, which takes a second for large models."""
    return name.startswith("SigLIP") and name != "SigLIPB16"


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.long] * is_heavy(name)) for name in builders.__all__]
)
def test_config_of_each_builder_survives_json(name):
    builder = getattr(keras_vit, name)
    assert builder.__name__ == name and "variant" not in inspect.signature(builder).parameters
    shallow = {"stages": (1,), "repeats": (1,) * 7, "depths": (1,) * 4}
    sizes = {"BiT": "stages", "VTR": "stages", "Eff": "repeats", "CoA": "depths"}
    size = sizes.get(name[:3], "num_layers")
    with keras.StatelessScope(initialize_variables=False):
        config = builder(**{size: shallow.get(size, 1)}, image_size=64).config
    keras.utils.clear_session(free_memory=False)
    again = ModelConfig.from_dict(json.loads(json.dumps(config.to_dict())))
    assert again == config and type(again) is type(config)
    assert eval(repr(config), vars(keras_vit)) == config


def test_fields_of_vit_config_are_arguments_of_vit():
    fields = {field.name: field.type for field in dataclasses.fields(keras_vit.ViTConfig)}
    visible = set(inspect.signature(keras_vit.ViT).parameters)
    assert set(fields) <= visible | set(ViTFields.__annotations__)
    assert not visible & set(ViTFields.__annotations__)
    assert all(fields[name] == kind for name, kind in ViTFields.__annotations__.items())


def test_config_of_model_matches_its_arguments():
    changes = {"pooling": "gap", "class_token": True, "num_registers": 2, "activation": "gelu"}
    model = build(**changes, preprocessing={"mean": 0.1}, class_names=list("abcde"))
    expected = TINY_CONFIG.replace(**changes, preprocessing=keras_vit.Preprocessing(mean=0.1))
    assert model.config == expected and model.config.class_names == tuple("abcde")
    assert (model.config.grid, model.config.num_prefix_tokens) == ((4, 4), 3)
    assert model.blocks == [model.get_layer("block_00"), model.get_layer("block_01")]
    assert model.head is model.get_layer("head")
    assert build(num_classes=0).head is None and model.preprocessing.mean == (0.1,)


def test_config_keeps_a_users_own_activation():
    @keras.saving.register_keras_serializable("test_config")
    def twice(x):
        return 2 * x

    config = TINY_CONFIG.replace(activation=twice)
    assert config.activation is twice
    assert keras_vit.ViTConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config
    assert TINY_CONFIG.replace(activation=keras.activations.gelu) == TINY_CONFIG.replace(activation="gelu")
    assert TINY_CONFIG.replace(classifier_activation=None) == TINY_CONFIG


@pytest.mark.parametrize("change, message", WRONG)
def test_wrong_field_is_named(change, message):
    for make in (TINY_CONFIG.replace, lambda **change: keras_vit.ViTConfig.from_dict(TINY_CONFIG.to_dict() | change)):
        refuses(message, make, **change)


def test_config_of_another_family_is_refused():
    values = TINY_CONFIG.to_dict()
    refuses("`family` to be one of 'bit'. Received: 'vit'", keras_vit.BiTConfig.from_dict, values)
    refuses("`family` to be one of .*'vit'.*Received: 'swin'", ModelConfig.from_dict, {**values, "family": "swin"})
    del values["mlp_dim"]
    refuses("Expected the fields of a ViTConfig: .* Received: .*'mlp_dim'", keras_vit.ViTConfig.from_dict, values)
    refuses("Expected a dict", keras_vit.ViTConfig.from_dict, "B/16")
    refuses("`variant`", keras_vit.BiTConfig.from_variant, "B/16")
    assert keras_vit.BiTConfig.from_variant("R101x3", pool_padding="zeros").width_factor == 3


def test_damaged_config_of_a_layer_is_named():
    config = keras_vit.layers.ImageNormalization(config=TINY_CONFIG).get_config()
    assert keras_vit.layers.ImageNormalization.from_config(config).config == TINY_CONFIG
    config["config"]["num_heads"] = "three"
    with pytest.raises(ValueError, match="`num_heads`. Expected an integer of at least 1. Received: 'three'"):
        keras_vit.layers.ImageNormalization.from_config(config)


def test_new_class_names_change_only_the_config():
    model = build()
    model.get_layer("normalization").class_names = list("abcde")
    assert model.config.class_names == tuple("abcde") and model.config == build().config
    images = np.ones((1, 16, 16, 3), "float32")
    assert keras_vit.decode_predictions(keras.ops.softmax(model(images)), model, top=1)[0][0][1] in "abcde"


def test_replace_updates_dependent_fields():
    config = keras_vit.ViTConfig.from_variant("B/16")
    any_size = config.replace(image_size=(None, None), grid_size=(2, 3), pooling="gap", class_token=True)
    assert any_size.replace(image_size=64).grid_size is None
    assert any_size.replace(image_size=[None, None], pooling="gap") == any_size
    assert config.replace(pooling="gap").replace(pooling="token").class_token
    assert config.replace(qkv_bias=False).replace(qkv_bias=True).key_bias
    assert config.replace(hidden_dim=512, num_heads=6, head_dim=85).replace(hidden_dim=768).hidden_dim == 768
    with pytest.raises(ValueError, match="`mean` to hold one number, or one for each of the images' 1 channels"):
        config.replace(in_channels=1, preprocessing=keras_vit.Preprocessing(mean=(0.1, 0.2, 0.3)))


def test_config_of_saved_tap_and_of_models_without_record(tmp_path):
    model = build(num_classes=0, norm_after_pooling=True)
    tap = keras.Model(model.input, model.get_layer("block_00").output)
    around = keras.Sequential([model, keras.layers.Dense(2)])
    for each in (tap, around):
        each.save(tmp_path / "model.keras")
        for same in (each, keras.saving.load_model(tmp_path / "model.keras")):
            assert keras_vit.config_of(same) == model.config
    plain = keras.Sequential([keras.Input((2,)), keras.layers.Dense(2)])
    refuses("in which no layer stores a config", keras_vit.config_of, plain)
