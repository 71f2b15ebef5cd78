import functools

import pytest

import keras_vit
from keras_vit.models import catalog as names
from keras_vit.weights.read.file import Entry
from keras_vit.weights.tokens import weights_by_path
from tests.models.efficientnet import test_model as efficientnet
from tests.tiny import build

# For each source: models that together have every weight of its table.
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


# Sources of EfficientNet and BiT, with the prefix of their keys.
EFFICIENTNET = {"timm_efficientnet": "", "efficientnet": "efficientnet-b0/", "keras_applications": ""}
BIT = {"bit": "resnet/", "timm_bit": "", "huggingface_bit": "bit."}
STAGES = "patch_embed.backbone.stages"
SOURCES = [*MODELS, *BIT, *EFFICIENTNET]


@functools.cache
def weights(name):
    """Returns the paths of the weights of each model that a source is tried with."""
    models = [build(**arguments) for arguments in MODELS.get(name, [])]
    if name in BIT:
        models.append(keras_vit.BiT("R50x1", stages=(1, 2), width_factor=0.5, image_size=32, num_classes=3))
    if name in EFFICIENTNET or name == "keras":
        models.append(efficientnet.build())
    return [set(weights_by_path(model)) for model in models]


@pytest.mark.parametrize("name", SOURCES)
def test_each_weight_has_its_own_key(name):
    source = names.sources()[name]
    for found in weights(name):
        keys = {weight: source.find(weight).keys for weight in found}
        if name not in ("timm", "siglip"):
            # timm and SigLIP store several weights of the attention pooling in one array.
            assert len({key for own in keys.values() for key in own}) == sum(len(own) for own in keys.values())
        for weight, own in keys.items():
            assert {source.find_layer_name(key) for key in own} == {weight.split("/")[0]}
            if name not in ("timm", "siglip") or not weight.startswith("pooling/attention/"):
                assert {source.find_weight_path(key) for key in own} == {weight}


@pytest.mark.parametrize("name", [name for name in SOURCES if name != "keras"])
def test_each_row_has_a_weight(name):
    found = set().union(*weights(name))
    source = names.sources()[name]
    for row in source.names:
        paths = {row.format(block=0, stage=stage, unit=1) for stage in (1, 2)} if "{" in row else {row}
        assert paths & found, row


@pytest.mark.parametrize("name", SOURCES)
def test_source_is_recognised_by_its_keys(name):
    source = names.sources()[name]
    prefix = {"big_vision": "params/", **BIT, **EFFICIENTNET}.get(name, "")
    for found in weights(name):
        keys = {prefix + key for weight in found for key in source.find(weight).keys}
        if name == "keras_applications":
            keys = {key.replace("_1_", "a_").replace("_2_", "b_") for key in keys}
        recognised = names.recognise(dict.fromkeys(keys, Entry((1,), None)), "npz", {})
        assert recognised is source if name != "keras" else recognised.name == name
    if name == "keras":
        assert recognised.family == "efficientnet" and names.recognise(["block_00/norm_1/0"], "h5", {}).family == "vit"


@pytest.mark.parametrize(
    "source, weight, key",
    [
        (names.sources()["timm"], "block_117/norm_1/gamma", "blocks.117.norm1.weight"),
        (names.sources()["timm"], "stage_1_unit_03/conv_proj/kernel", f"{STAGES}.0.blocks.2.downsample.conv.weight"),
        (names.sources()["bit"], "stage_3_unit_36/conv_2/kernel", "block3/unit36/b/standardized_conv2d/kernel"),
    ],
)
def test_numbers_in_keys_are_converted(source, weight, key):
    assert source.find(weight).keys == (key,) and source.find_weight_path(key) == weight


def test_numbered_modules_of_bit_are_canonical():
    canonical, _ = names.sources()["bit"].canonical_keys(["resnet/block2/unit03/b/standardized_conv2d_14/kernel"])
    assert list(canonical) == ["block2/unit03/b/standardized_conv2d/kernel"]


@pytest.mark.parametrize(
    "keys",
    [
        {"stem.conv.weight", "stages.0.blocks.0.mlp.weight"},
        {"stem.conv.weight", "stages.0.0.conv1.weight"},
        {"resnet.embedder.embedder.convolution.weight"},
        {"conv1.weight", "layer1.0.conv1.weight"},
        {"encoder.weight", "bias"},
    ],
)
def test_keys_of_other_models_have_no_source(keys):
    assert names.recognise(keys, "safetensors", {}) is None and names.recognise(keys, "npz", {}) is None
    assert (
        names.sources()["official"].find_weight_path("encoder.weight") is None
        and names.sources()["official"].find("block_00/nothing") is None
    )


def test_deit_is_recognised_by_wrapper():
    keys = {"patch_embed.proj.weight", "head.weight"}
    assert names.recognise(keys, "pth", {"wrapper": "model"}) is names.sources()["deit"]
    assert names.recognise(keys, "pth", {"wrapper": None}) is names.sources()["timm"]


def test_official_efficientnet_blocks_are_found_by_shape():
    def block(number, kernel, width, expands):
        start = f"efficientnet-b1/blocks_{number}/"
        project = f"{start}conv2d_1/kernel" if expands else f"{start}conv2d/kernel"
        arrays = {f"{start}depthwise_conv2d/depthwise_kernel": (kernel, kernel, 6, 1), project: (1, 1, 6, width)}
        return arrays | ({f"{start}conv2d/kernel": (1, 1, 1, 6)} if expands else {})

    # With 10 or more blocks, the names are not in numerical order. The first two blocks have no expansion.
    kinds = [(3, 8, False), (3, 8, False), (3, 8, True), *[(5, 8, True)] * 8, (5, 16, True)]
    shapes = {key: Entry(shape, None) for i, kind in enumerate(kinds) for key, shape in block(i, *kind).items()}
    canonical, ignored = names.sources()["efficientnet"].canonical_keys(dict(sorted(shapes.items())))
    kernels = {key.split("/")[1]: name.split("/")[0] for name, key in canonical.items() if "depthwise" in name}
    places = ["0_0", "0_1", "1_0", *[f"2_{i}" for i in range(8)], "3_0"]
    assert kernels == {f"blocks_{i}": f"blocks_{place}" for i, place in enumerate(places)} and not ignored
