"""Reads CoAtNets of timm and compares their logits with those of timm."""

import keras
import numpy as np
import pytest
import safetensors.numpy

import keras_vit
from keras_vit.models import catalog as names
from keras_vit.models.coatnet.checkpoint import fields_from_arrays, timm_variant
from keras_vit.weights.write import write_safetensors
from tests.golden import GOLDEN_FOLDER
from tests.models.coatnet.test_model import build, images, randomize
from tests.peers import peer
from tests.weights.helpers import check_not_saved, check_refused, outputs, shapes_of, timm_folder

SMALL = {"embed_dim": [8, 8, 16, 16], "depths": [1, 1, 2, 1], "stem_width": [4, 8], "img_size": [32, 64]}
HEADS = {"transformer_dim_head": 8}
# Arguments of the timm models in the golden files.
GOLDEN = {
    "coatnet_0": {"head_hidden_size": 12, "transformer_rel_pos_dim": 512, **HEADS},
    "coatnet_0_rw": {"transformer_init_values": 0.5, **HEADS},
    "coatnet_rmlp_1_rw": {"transformer_rel_pos_dim": 12, **HEADS},
    "coatnet_bn_0_rw": HEADS,
}
# These have the arithmetic of Keras' code and of timm's.
EVERYWHERE = dict.fromkeys(("coatnet_0", "coatnet_rmlp_1_rw"), pytest.mark.every_backend)
CFG = {"input_size": [3, 224, 224], "interpolation": "bicubic", "crop_pct": 0.95, "mean": [0.5] * 3, "std": [0.5] * 3}
UNSUPPORTED = [
    ({"architecture": "maxvit_tiny_rw_224"}, "timm's 'maxvit_tiny_rw_224' is not supported. .*coatnet_0_rw_224"),
    ({"args": {"conv_kernel_size": 5}}, "conv_kernel_size=5 in its config is not supported"),
    ({"args": {"embed_dim": 7}}, "model_args are invalid. .*`widths`"),
    ({"global_pool": "max"}, "global_pool='max' in its config is not supported"),
]
SAVED = [("test_coatnet", {"image_size": 64}), ("coatnet_0", {"image_size": (64, 96)})]
SAVED += [("coatnet_nano_cc", {"image_size": 64}), ("coatnet_rmlp_nano_rw", {"image_size": 64})]
SAVED += [("coatnet_0_rw", {"image_size": 64, "num_classes": 0, "in_channels": 1})]
OTHER_ARRAYS = [
    ("stages.0.blocks.0.attn_block.norm1.weight", r"attention in windows \(MaxViT\)"),
    ("stages.0.blocks.0.conv_dw.weight", "ConvNeXt blocks"),
    ("stem.conv1.bias", "convolutions of the stem with a bias"),
]


def folder(path, name="coatnet_0_rw", architecture=None, args=None, **config):
    """Writes a folder as timm does, and returns its path."""
    config = {"num_classes": 10, "global_pool": "avg", "pretrained_cfg": CFG, **config}
    config["model_args"] = {**SMALL, **GOLDEN[name], **(args or {})}
    return timm_folder(path, f"timm_{name}", architecture=architecture or f"{name}_224", **config)


def check_golden(model, name):
    io = np.load(GOLDEN_FOLDER / f"timm_{name}.io.npz")
    np.testing.assert_allclose(outputs(model, io["images"]), io["logits"], atol=1e-5 * np.abs(io["logits"]).max())


@pytest.mark.parametrize("name", [pytest.param(name, marks=EVERYWHERE.get(name, ())) for name in GOLDEN])
def test_state_dict_of_timm_comes_back_bit_for_bit(name, tmp_path):
    model = keras_vit.from_pretrained(folder(tmp_path / "timm", name))
    assert model.name == name and model.config.image_size == (32, 64)
    check_golden(model, name)
    files = tmp_path / "timm" / "model.safetensors", tmp_path / "back.safetensors"
    keras_vit.save_weights(model, files[1], "timm")
    before, after = map(safetensors.numpy.load_file, files)
    assert {key: value.tobytes() for key, value in before.items()} == {k: v.tobytes() for k, v in after.items()}
    assert keras_vit.from_pretrained(files[1]).config == model.config


def test_written_timm_folder_keeps_the_config(tmp_path):
    preprocessing = keras_vit.Preprocessing(mean=[0.5] * 3, std=[0.4] * 3, antialias=True)
    model = keras_vit.CoAtNet("test_coatnet", image_size=(32, 64), num_classes=3, preprocessing=preprocessing)
    keras_vit.save_weights(model, tmp_path, "timm")
    file = tmp_path / "model.safetensors"
    # The file of timm does not contain this package's record.
    safetensors.numpy.save_file(safetensors.numpy.load_file(file), file)
    assert keras_vit.from_pretrained(tmp_path).config == model.config


def test_builder_takes_file_and_refuses_other_settings(tmp_path):
    path = folder(tmp_path / "timm")
    sizes = {"depths": (1, 1, 2, 1), "widths": (8, 8, 16, 16), "stem_widths": (4, 8), "head_dim": 8}
    sizes |= {"image_size": (32, 64), "num_classes": 10, "layer_scale_init": 1.0, "weights": path}
    model = keras_vit.CoAtNet("coatnet_0_rw", **sizes)
    check_golden(model, "coatnet_0_rw")
    for name, value in {"downsampling": "depthwise", "se_activation": "silu", "batch_norm_epsilon": 1e-3}.items():
        changes = {"weights": None, "preprocessing": model.preprocessing, name: value}
        other = keras_vit.CoAtNet("coatnet_0_rw", **{**sizes, **changes})
        check_refused(f"was trained with {name}=", path, into=other)
        keras_vit.load_weights(other, path, allow=name)
    assert keras_vit.from_pretrained(path, downsampling="depthwise").config.downsampling == "depthwise"
    # A new head keeps the hidden layer.
    model = keras_vit.from_pretrained(folder(tmp_path / "timm", "coatnet_0"), num_classes=3)
    assert model.output_shape == (None, 3) and model.config.representation_size == 12
    assert not keras.ops.convert_to_numpy(model.get_layer("head").kernel).any()


@pytest.mark.parametrize("changes, message", UNSUPPORTED)
def test_unsupported_timm_config_is_refused(changes, message, tmp_path):
    check_refused(message, folder(tmp_path / "timm", **changes))


@pytest.mark.parametrize("key, message", OTHER_ARRAYS)
def test_arrays_of_other_timm_models_are_refused(key, message, tmp_path):
    arrays = safetensors.numpy.load_file(GOLDEN_FOLDER / "timm_coatnet_0_rw.safetensors")
    write_safetensors(tmp_path / "model.safetensors", {**arrays, key: np.zeros(4, "float32")}, {})
    check_refused(message, tmp_path / "model.safetensors")


def test_state_dict_of_unknown_size_needs_variant():
    path = GOLDEN_FOLDER / "timm_coatnet_0_rw.safetensors"
    check_refused("Pass preprocessing=, variant= to from_pretrained", path)
    given = {"variant": "coatnet_0_rw", "image_size": (32, 64), "preprocessing": keras_vit.Preprocessing()}
    check_golden(keras_vit.from_pretrained(path, **given), "coatnet_0_rw")


@pytest.mark.parametrize(
    "name", ["pico_rw", "0_rw", "bn_0_rw", "2_rw", "3_rw", "rmlp_1_rw", "rmlp_1_rw2", "nano_cc", "0"]
)
def test_arrays_of_published_sizes_show_variant(name):
    with keras.StatelessScope(initialize_variables=False):
        model = keras_vit.CoAtNet(f"coatnet_{name}", layer_scale_init=0.1 if name == "3_rw" else None)
        shapes = shapes_of(model, names.sources()["timm_coatnet"].spelled_for(model.config))
    assert timm_variant(fields_from_arrays(shapes)) == f"coatnet_{name}"
    keras.utils.clear_session(free_memory=False)


@pytest.mark.parametrize("changes", [{"pool_type": "max3"}, {"image_size": (48, 64)}, {"norm_after_pooling": False}])
def test_model_beyond_timm_is_not_written(changes, tmp_path):
    model = build(**{"image_size": 64, **changes})
    check_not_saved("a size or options for which timm has no name", model, tmp_path / "folder", "timm")
    check_not_saved("`format`. Expected 'timm', the only format of coatnet models", model, tmp_path / "model.npz")
    assert not list(tmp_path.iterdir())


@pytest.mark.long
@pytest.mark.parametrize("variant, changes", SAVED)
def test_timm_computes_same_from_saved_folder(variant, changes, tmp_path):
    timm, torch = peer("timm"), peer("torch")
    model = keras_vit.CoAtNet(variant, **{"num_classes": 3, **changes})
    randomize(model, np.random.default_rng(0))
    keras_vit.save_weights(model, tmp_path / "folder", "timm")
    module = timm.create_model(f"local-dir:{tmp_path / 'folder'}", pretrained=True).eval()
    x = images(2, *model.input_shape[1:])
    with torch.no_grad():
        expected = module(torch.from_numpy(x).permute(0, 3, 1, 2)).numpy()
    np.testing.assert_allclose(outputs(model, x), expected, rtol=1e-3, atol=1e-4)
    assert keras_vit.from_pretrained(tmp_path / "folder").config == model.config


@pytest.mark.long
@pytest.mark.parametrize("name", ["coatnet_0_224", "coatnet_1_rw_224", "coatnet_rmlp_nano_rw_224", "test_coatnet"])
def test_larger_image_size_computes_same_as_timm(name, tmp_path):
    timm, torch = peer("timm"), peer("torch")
    from timm.models import save_for_hf

    args = {**SMALL, "transformer_dim_head": 8, "img_size": 64}
    args |= {"head_hidden_size": 12} if name == "coatnet_0_224" else {}
    module = timm.create_model(name, num_classes=5, **args).eval()
    with torch.no_grad():
        for weight in module.parameters():
            weight.add_(torch.randn(weight.shape, generator=torch.Generator().manual_seed(0)) * 0.1)
    save_for_hf(module, tmp_path, model_args=args, safe_serialization=True)
    model = keras_vit.from_pretrained(tmp_path, image_size=(96, 160))
    module.set_input_size((96, 160))
    x = images(2, 96, 160, 3)
    with torch.no_grad():
        expected = module(torch.from_numpy(x).permute(0, 3, 1, 2)).numpy()
    np.testing.assert_allclose(outputs(model, x), expected, rtol=1e-3, atol=1e-4 * np.abs(expected).max())
