import pytest

from keras_vit.images.constants import IMAGENET_PREPROCESSING
from keras_vit.models.vit import timm_models
from keras_vit.weights import timm_config, transformers_config
from keras_vit.weights.read import WeightsFile
from tests.errors import refuses
from tests.peers import peer

CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
CROP_FRACTIONS = [({"height": 256, "width": 256}, {"height": 224, "width": 224}, True, 0.875)]
CROP_FRACTIONS += [({"shortest_edge": 256}, 224, True, 0.875), (256, None, True, 1.0), (224, 256, True, 1.0)]
CROP_FRACTIONS += [(256, 224, False, 1.0)]
MISSING = [
    ("CLIPImageProcessor", {}, {"mean": CLIP_MEAN, "interpolation": "bicubic", "resize_mode": "crop"}),
    ("BitImageProcessorFast", {"size": 256}, {"mean": CLIP_MEAN, "crop_fraction": 0.875, "resize_mode": "crop"}),
    ("DeiTFeatureExtractor", {}, {"mean": 0.5, "crop_fraction": 0.875, "resize_mode": "squash"}),
    ("ViTImageProcessor", {"size": 32, "default_to_square": False}, {"resize_mode": "crop"}),
    ("ConvNextImageProcessor", {"crop_pct": 0.9, "size": {"shortest_edge": 224}}, {"crop_fraction": 0.9}),
    ("ConvNextImageProcessor", {}, {"crop_fraction": 1.0, "resize_mode": "squash"}),
]


def test_timm_config_gives_preprocessing():
    config = {"mean": [0.1, 0.2, 0.3], "std": [1, 1, 1], "interpolation": "bicubic", "crop_pct": 0.95}
    expected = {"mean": [0.1, 0.2, 0.3], "std": [1, 1, 1], "interpolation": "bicubic", "crop_fraction": 0.95}
    assert timm_config.preprocessing_from_cfg(config) == {**expected, "antialias": True, "resize_mode": "crop"}
    whole = timm_config.preprocessing_from_cfg({"interpolation": "bilinear", "crop_pct": 1.0, "crop_mode": "center"})
    assert whole["resize_mode"] == "crop" and whole["antialias"]
    modes = [timm_config.preprocessing_from_cfg({"crop_mode": mode})["resize_mode"] for mode in ("squash", "border")]
    assert modes == ["squash", "pad"]
    refuses("`crop_mode` .* Received: 'corner'", timm_config.preprocessing_from_cfg, {"crop_mode": "corner"})


def test_missing_timm_values_are_those_of_timm():
    found = timm_config.preprocessing_from_cfg({"input_size": [3, 32, 32], "mean": None})
    assert found == {**IMAGENET_PREPROCESSING, "antialias": True, "resize_mode": "crop"}


@pytest.mark.parametrize("size, crop, center, fraction", CROP_FRACTIONS)
def test_crop_fraction_of_transformers_config(size, crop, center, fraction):
    config = {"size": size, "crop_size": crop, "do_center_crop": center, "resample": 3}
    found = transformers_config.preprocessing_from_processor("folder", config, {})
    assert found["crop_fraction"] == fraction and found["interpolation"] == "bicubic" and found["antialias"]
    assert found["resize_mode"] == ("crop" if size == {"shortest_edge": 256} else "squash")


@pytest.mark.parametrize("kind, stated, expected", MISSING)
def test_missing_values_are_those_of_the_image_processor(kind, stated, expected):
    found = transformers_config.preprocessing_from_processor("folder", {"image_processor_type": kind, **stated}, {})
    assert {name: found[name] for name in expected} == expected


@pytest.mark.long
# The processor of DINOv3 needs torchvision.
@pytest.mark.parametrize("name", [name for name in transformers_config.PROCESSORS if name != "DINOv3ViT"])
def test_defaults_are_those_of_the_installed_transformers(name):
    module = peer(f"transformers.models.{name.lower()}.image_processing_pil_{name.lower()}")
    theirs = getattr(module, f"{name}ImageProcessorPil")
    defaults = {"do_center_crop": None, "crop_size": None, "default_to_square": True}
    ours = defaults | transformers_config.PROCESSORS[name]
    for key, value in ours.items():
        default = getattr(theirs, key, None)
        if key in ("size", "crop_size") and isinstance(value, int):
            value = {"height": value, "width": value}
        if key in ("image_mean", "image_std"):
            assert list(default) == pytest.approx([value] * 3 if isinstance(value, float) else list(value)), key
        else:
            assert default == value, key


@pytest.mark.long
@pytest.mark.parametrize("name", transformers_config.CONFIGS)
def test_config_defaults_are_those_of_transformers(name):
    theirs = peer("transformers").CONFIG_MAPPING[name]()
    theirs = getattr(theirs, "vision_config", theirs)
    ours = transformers_config.CONFIGS[name]
    assert {key: getattr(theirs, key, value) for key, value in ours.items()} == ours


@pytest.mark.long
def test_preprocessing_of_architectures_is_that_of_timm():
    timm, known = peer("timm"), 0
    for name in timm_models.MODELS:
        file = WeightsFile(name)
        file.container = "pth"
        timm_config.state_architecture(file, name, preprocessing=True)
        if file.facts["timm"] is not None:
            known += 1
            theirs = timm_config.preprocessing_from_cfg(timm.get_pretrained_cfg(name).to_dict())
            ours = timm_config.preprocessing_from_cfg(file.facts["timm"])
            assert {**ours, "mean": tuple(ours["mean"]), "std": tuple(ours["std"])} == theirs, name
    assert known >= 60


@pytest.mark.long
def test_defaults_are_those_of_the_installed_timm():
    theirs = peer("timm.data").resolve_data_config(pretrained_cfg={"num_classes": 3})
    assert theirs["mean"] == IMAGENET_PREPROCESSING["mean"] and theirs["std"] == IMAGENET_PREPROCESSING["std"]
    assert theirs["interpolation"] == "bicubic" and theirs["crop_mode"] == "center"
    assert theirs["crop_pct"] == IMAGENET_PREPROCESSING["crop_fraction"]
