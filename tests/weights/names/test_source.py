import keras
import pytest

import keras_vit
from keras_vit.weights import names
from keras_vit.weights.model import weights_of
from tests.tiny import build

# Models that between them have every weight that a source knows.
MODELS = {
    "official": [
        {"representation_size": 8},
        {"stages": (1, 1), "width_factor": 0.5, "patch_size": 1, "image_size": 32},
    ],
    "big_vision": [{"pooling": "map", "representation_size": 8}, {}],
    "timm": [
        {"norm_before_blocks": True, "attention_norm": True, "mlp_norm": True},
        {"distillation_token": True, "num_registers": 2, "layer_scale_init": 0.1, "qk_norm": True},
        {"pooling": "map", "representation_size": 8},
        {"pooling": "gap", "norm_after_pooling": True},
        {"norm_before_blocks": True, "attention_norm": True, "gated_mlp": True, "mlp_norm": True},
        {"stages": (1, 1), "width_factor": 0.5, "patch_size": 1, "image_size": 32},
    ],
    "huggingface": [{"distillation_token": True}, {"representation_size": 12}],
    "dinov2": [{"num_registers": 2, "layer_scale_init": 0.1}],
    "dinov3": [{"num_registers": 2, "layer_scale_init": 0.1, "position_embedding": "none", "num_classes": 0}],
    "siglip": [{"pooling": "map"}],
    "clip": [{"norm_before_blocks": True, "projection_dim": 7, "num_classes": 0}],
    "keras": [
        {"distillation_token": True, "num_registers": 2, "layer_scale_init": 0.1, "qk_norm": True},
        {"pooling": "map", "representation_size": 8},
        {"pooling": "gap", "norm_after_pooling": True},
        {"stages": (1, 1), "width_factor": 0.5, "patch_size": 1, "image_size": 32},
    ],
}


# The sources of BiT, and how their keys begin.
BIT = {"bit": "resnet/", "timm_bit": "", "huggingface_bit": "bit."}


def weights(name):
    if name in BIT:
        models = [keras_vit.BiT("R50x1", stages=(1, 2), width_factor=0.5, image_size=32, num_classes=3)]
    else:
        models = [build(**arguments) for arguments in MODELS[name]]
    return [set(weights_of(model)) for model in models]


@pytest.mark.parametrize("name", [*MODELS, *BIT])
def test_each_weight_has_its_own_key_and_is_found_by_it(name):
    source = names.SOURCES[name]
    for found in weights(name):
        keys = {weight: source.find(weight).keys for weight in found}
        if name not in ("timm", "siglip"):
            # Their attention pooling keeps several weights in one array.
            assert len({key for own in keys.values() for key in own}) == sum(len(own) for own in keys.values())
        for weight, own in keys.items():
            assert {source.layer_of(key) for key in own} == {weight.split("/")[0]}
            if name not in ("timm", "siglip") or not weight.startswith("pooling/attention/"):
                assert {source.weight_of(key) for key in own} == {weight}


@pytest.mark.parametrize("name", [name for name in [*MODELS, *BIT] if name != "keras"])
def test_no_row_is_without_a_weight(name):
    found = set().union(*weights(name))
    source = names.SOURCES[name]
    for row in source.names:
        paths = {row.format(block=0, stage=stage, unit=1) for stage in (1, 2)} if "{" in row else {row}
        assert paths & found, row


@pytest.mark.parametrize("name", [*MODELS, *BIT])
def test_a_source_is_recognised_by_its_keys(name):
    source = names.SOURCES[name]
    for found in weights(name):
        keys = {key for weight in found for key in source.find(weight).keys}
        prefix = {"big_vision": "params/", **BIT}.get(name, "")
        assert names.recognise({prefix + key for key in keys}, "npz", {}) is source


def test_deit_is_timm_in_a_wrapper():
    keys = {"patch_embed.proj.weight", "head.weight"}
    assert names.recognise(keys, "pth", {"wrapper": "model"}) is names.DEIT
    assert names.recognise(keys, "pth", {"wrapper": None}) is names.TIMM


def test_unknown_keys_are_of_no_source():
    assert names.recognise({"encoder.weight", "bias"}, "npz", {}) is None
    assert names.OFFICIAL.weight_of("encoder.weight") is None and names.OFFICIAL.find("block_00/nothing") is None


def test_numbers_above_the_padding_are_understood():
    name = names.TIMM.find("block_117/norm_1/gamma")
    assert name.keys == ("blocks.117.norm1.weight",)
    assert names.TIMM.weight_of("blocks.117.norm1.weight") == "block_117/norm_1/gamma"
    assert names.BIT.find("stage_3_unit_36/conv_2/kernel").keys == ("block3/unit36/b/standardized_conv2d/kernel",)


def test_numbered_modules_of_a_bit_file_are_known():
    canonical, _ = names.BIT.canonical_keys(["resnet/block2/unit03/b/standardized_conv2d_14/kernel"])
    assert list(canonical) == ["block2/unit03/b/standardized_conv2d/kernel"]


def test_keras_keys_follow_the_order_of_the_variables():
    for arguments in MODELS["keras"]:
        for layer in build(**arguments)._flatten_layers(include_self=False):
            own = [v for v in layer._trainable_variables if v.path.rpartition("/")[0].endswith(layer.name)]
            if isinstance(layer, keras.layers.Layer) and own:
                numbers = [names.KERAS.find(f"{layer.name}/{v.path.rpartition('/')[2]}").keys[0] for v in own]
                assert numbers == [f"{layer.name}/{i}" for i in range(len(own))]


def test_keys_may_count_from_0():
    name = names.TIMM.find("stage_1_unit_03/conv_proj/kernel")
    assert name.keys == ("patch_embed.backbone.stages.0.blocks.2.downsample.conv.weight",)
    assert names.TIMM.weight_of(name.keys[0]) == "stage_1_unit_03/conv_proj/kernel"


@pytest.mark.parametrize(
    "keys",
    [
        {"stem.conv.weight", "stages.0.blocks.0.mlp.weight"},
        {"stem.conv.weight", "stages.0.0.conv1.weight"},
        {"resnet.embedder.embedder.convolution.weight"},
        {"conv1.weight", "layer1.0.conv1.weight"},
    ],
)
def test_other_resnets_are_not_taken_for_bit(keys):
    assert names.recognise(keys, "safetensors", {}) is None
