import numpy as np
import pytest

import keras_vit
from keras_vit.weights.write import write_safetensors
from tests.golden import GOLDEN_FOLDER
from tests.weights.helpers import changed, check_refused, timm_folder

HYBRID = {"patch_embed.proj.weight": (8, 64, 1, 1)}
BIT = {"stages.0.blocks.0.conv1.weight": (64, 64, 1, 1)}
CFG = {"input_size": [3, 64, 96], "interpolation": "bicubic", "crop_pct": 0.9, "mean": [0.1] * 3, "std": [0.2] * 3}
OTHER_ARRAYS = [
    ({**HYBRID, "patch_embed.backbone.conv1.0.weight": (32, 3, 3, 3)}, "a backbone that is no ResNet"),
    ({"patch_embed.backbone.0.conv.weight": (192, 3, 4, 4)}, "a backbone that is no ResNet"),
    ({**HYBRID, "patch_embed.backbone.stages.4.blocks.0.conv1.weight": (4, 4, 1, 1)}, "of more than four stages"),
    ({**BIT, "stem.conv1.weight": (32, 3, 3, 3)}, "another stem than BiT's"),
    ({**BIT, "stem.conv.weight": (64, 3, 7, 7), "norm.running_mean": (64,)}, "batch normalization"),
    ({**BIT, "stages.4.blocks.0.conv1.weight": (64, 64, 1, 1)}, "more than four stages"),
    ({"embedder.convolution.weight": (64, 3, 7, 7), "embedder.norm.weight": (64,)}, "the type 'bottleneck'"),
]
OTHER_CONFIGS = [
    ("hf_bit", {"layer_type": "bottleneck"}, r"\(bit\) with layer_type='bottleneck'.*Expected: 'preactivation'"),
    ("hf_bit", {"global_padding": "SAME"}, "global_padding='SAME'"),
    ("timm_bit", {"global_pool": "max"}, r"\(resnetv2_50x1_bit\) with global_pool='max'"),
    ("timm_bit", {"model_args": {"stem_type": "same"}}, "stem_type='same'"),
]
UNSUPPORTED = [
    ("vit_base_patch16_rope_mixed_224", {}, "learned frequencies"),
    ("vit_x_224", {}, "num_heads="),
    ("eva02_base_patch14_224", {"global_pool": "map"}, "pools all tokens"),
    ("vit_small_patch16_dinov3", {"global_pool": "map", "use_rot_pos_emb": False}, "pools all tokens"),
]


def folder(tmp_path, name, **config):
    config = {"architecture": "resnetv2_50x1_bit", "num_classes": 10, "pretrained_cfg": CFG, **config}
    return timm_folder(tmp_path, name, **config)


@pytest.mark.parametrize("name", ["timm_hybrid", "timm_hybrid_stem", "timm_bit"])
def test_timm_folder_gives_config_and_logits(tmp_path, name):
    told = {} if name == "timm_bit" else {"architecture": "vit_tiny_r_s16_p8_224", "model_args": {"num_heads": 4}}
    model = keras_vit.from_pretrained(folder(tmp_path, name, **told))
    io = np.load(GOLDEN_FOLDER / f"{name}.io.npz")
    np.testing.assert_allclose(model.predict_on_batch(io["images"]), io["logits"], atol=1e-4)
    record = model.config
    assert record.image_size == (64, 96) and record.width_factor == 0.5 and record.resnet_epsilons == "timm"
    assert record.stages == (() if name == "timm_hybrid_stem" else (2, 1))
    assert record.preprocessing == keras_vit.Preprocessing(
        mean=[0.1] * 3, std=[0.2] * 3, interpolation="bicubic", crop_fraction=0.9, resize_mode="crop", antialias=True
    )


@pytest.mark.parametrize(
    "preprocessor", [{"crop_size": {"height": 64, "width": 64}, "do_center_crop": True}, {"size": 64}]
)
def test_transformers_folder_gives_image_size_of_bit(tmp_path, preprocessor):
    path = changed(tmp_path, "hf_bit", "preprocessor_config.json", **preprocessor)
    assert keras_vit.from_pretrained(path).config.image_size == (64, 64)


@pytest.mark.parametrize("shapes, message", OTHER_ARRAYS)
def test_arrays_of_other_resnets_are_refused(tmp_path, shapes, message):
    arrays = {key: np.zeros(shape, "float32") for key, shape in shapes.items()}
    write_safetensors(tmp_path / "model.safetensors", arrays, {})
    message = f"it is a model of .* with .*{message}.* does not have. Received: the key"
    check_refused(message, tmp_path / "model.safetensors")


@pytest.mark.parametrize("name, changes, message", OTHER_CONFIGS)
def test_config_of_other_resnet_is_refused(tmp_path, name, changes, message):
    path = changed(tmp_path, name, **changes) if name == "hf_bit" else folder(tmp_path, name, **changes)
    check_refused(message, path)


@pytest.mark.parametrize("name, args, part", UNSUPPORTED)
def test_timm_config_beyond_this_package_is_refused(tmp_path, name, args, part):
    timm_folder(tmp_path, "timm_vit", architecture=name, pretrained_cfg={}, model_args=args)
    check_refused(part, tmp_path)
