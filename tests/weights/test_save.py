import json
import os

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.weights.read import open_checkpoint
from tests.golden import GOLDEN_FOLDER
from tests.models import test_vt_resnet as vt_resnet
from tests.tiny import build, randomize


@pytest.mark.parametrize("name", ["vit_token_prelogits", "vit_gap"])
def test_golden_files_come_back_bit_for_bit(tmp_path, name):
    source = GOLDEN_FOLDER / f"{name}.npz"
    arguments = {"pooling": "gap"} if name == "vit_gap" else {"representation_size": 48}
    model = keras_vit.ViT(
        "B/8",
        image_size=32,
        hidden_dim=64,
        num_layers=3,
        num_heads=4,
        mlp_dim=128,
        num_classes=10,
        weights=source,
        **arguments,
    )
    keras_vit.save_weights(model, tmp_path / "back.npz")
    with np.load(source) as before, np.load(tmp_path / "back.npz") as after:
        assert {k: before[k].tobytes() for k in before.files} == {k: after[k].tobytes() for k in after.files}


def test_a_width_that_heads_do_not_divide_comes_back(tmp_path):
    model = randomize(build(hidden_dim=16, head_dim=5))
    keras_vit.save_weights(model, tmp_path / "model.npz")
    again = build(hidden_dim=16, head_dim=5)
    keras_vit.load_weights(again, tmp_path / "model.npz")
    assert all(np.array_equal(a, b) for a, b in zip(model.get_weights(), again.get_weights(), strict=True))


@pytest.mark.parametrize(
    "changes, named",
    [
        ({"layer_scale_init": 0.1}, "block_00/layer_scale_1/gamma"),
        ({"num_registers": 2}, "registers/tokens"),
        ({"position_embedding": "learned2d"}, "position_embedding/column_embeddings"),
        ({"qk_norm": True}, "block_00/attention/query_norm/gamma"),
        ({"pooling": "map"}, "pooling/probe"),
        ({"position_embedding": "sincos2d"}, "sincos2d"),
        ({"pooling": "gap", "class_token": True}, "beside a class token"),
    ],
)
def test_weights_that_the_format_has_no_place_for_are_named(tmp_path, changes, named):
    with pytest.raises(ValueError, match=named):
        keras_vit.save_weights(build(**changes), tmp_path / "model.npz")
    assert not os.listdir(tmp_path)


def test_another_activation_is_saved_only_if_allowed(tmp_path):
    with pytest.raises(ValueError, match="activation"):
        keras_vit.save_weights(build(activation="gelu"), tmp_path / "model.npz")
    keras_vit.save_weights(build(activation="gelu"), tmp_path / "model.npz", allow=("activation",))


def test_an_unknown_format_is_refused(tiny, tmp_path):
    with pytest.raises(ValueError, match="`format`"):
        keras_vit.save_weights(tiny, tmp_path / "model.npz", format="pickle")


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tiny, tiny_file, monkeypatch):
    before = tiny_file.read_bytes()

    def full_disk(file, **arrays):
        file.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez", full_disk)
    with pytest.raises(OSError, match="no space left on device: .*tiny.npz"):
        keras_vit.save_weights(tiny, tiny_file)
    assert tiny_file.read_bytes() == before
    assert os.listdir(tiny_file.parent) == [tiny_file.name]


def test_others_can_read_the_file(tiny_file):
    assert tiny_file.stat().st_mode & 0o044 == 0o666 & ~_umask() & 0o044


def _umask():
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_a_missing_folder_is_named(tiny, tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        keras_vit.save_weights(tiny, tmp_path / "nowhere" / "model.npz")


# Other formats ------------------------------------------------------------------------------------------------------

BARE = {"preprocessing": keras_vit.Preprocessing()}
DINOV2 = {"layer_scale_init": 0.1, "mlp_dim": 24, "num_classes": 0}
ROUND_TRIPS = {
    "big_vision": [{"pooling": "map"}, {"representation_size": 8}, {"class_token_position": False}],
    "timm": [
        {
            "distillation_token": True,
            "num_registers": 2,
            "layer_scale_init": 0.1,
            "qk_norm": True,
            "activation": "gelu",
        },
        {"pooling": "map", "activation": "gelu"},
        {"pooling": "gap", "activation": "gelu_tanh"},
        {"pooling": "gap", "norm_after_pooling": True, "activation": "gelu", "image_size": (16, 24)},
    ],
    "huggingface": [
        {},
        {"distillation_token": True, "activation": "gelu"},
        {"num_classes": 0, "representation_size": 12},
    ],
}


@pytest.mark.parametrize("format, arguments", [(f, a) for f, all_ in ROUND_TRIPS.items() for a in all_])
def test_other_formats_come_back_as_the_same_model(tmp_path, format, arguments):
    model = randomize(build(mean=0.4, std=0.3, interpolation="bicubic", **arguments))
    path = tmp_path / {"huggingface": "folder", "timm": "model.safetensors"}.get(format, "model")
    keras_vit.save_weights(model, path, format)
    again = keras_vit.from_pretrained(path)
    assert all(np.array_equal(a, b) for a, b in zip(model.get_weights(), again.get_weights(), strict=True))
    images = np.random.default_rng(0).normal(size=(2, *model.input_shape[1:])).astype("float32")
    np.testing.assert_array_equal(*(keras.ops.convert_to_numpy(m(images)) for m in (model, again)))
    if format != "big_vision":
        ours, theirs = (m.preprocessing for m in (model, again))
        assert np.allclose(ours.mean, theirs.mean[:1]) and theirs.interpolation == "bicubic" and theirs.antialias


@pytest.mark.parametrize(
    "name, told",
    [
        ("bit_2111_x0.5.npz", {"pool_padding": "lowest"}),
        ("hybrid_r50ish_patch1.npz", {}),
        ("bigvision_map.npz", {}),
        ("timm_vit_qknorm_map.safetensors", {**BARE, "activation": "gelu"}),
        ("timm_hybrid.safetensors", {"num_heads": 4, "grid_size": (8, 12), **BARE}),
        ("timm_hybrid_stem.safetensors", {"num_heads": 4, "grid_size": (2, 3), **BARE}),
        ("timm_bit.safetensors", BARE),
        ("hf_bit", {}),
    ],
)
def test_golden_files_of_all_families_come_back_bit_for_bit(tmp_path, name, told):
    formats = {"bigvision": "big_vision", "timm": "timm", "hf": "huggingface"}
    format, source = formats.get(name.split("_")[0], "npz"), GOLDEN_FOLDER / name
    model = keras_vit.from_pretrained(source, **told)
    # Without the suffix it is a folder.
    back = tmp_path / ("back.safetensors" if format == "timm" else "back")
    keras_vit.save_weights(model, back, format)
    before, after = (dict(f.read(f.entries)) for f in map(open_checkpoint, (source, back)))
    assert set(before) == set(after)
    for key, array in before.items():
        assert np.array_equal(array, after[key].reshape(array.shape)), key


@pytest.mark.long
def test_the_real_file_survives_the_way_through_other_formats(shared, tmp_path):
    source = shared / "weights" / "ViT-B_16-224.npz"
    # One model, since to build it takes longer than all the rest; between the formats it holds zeros.
    model = keras_vit.ViTB16(weights=source)
    with np.load(source) as file:
        before = dict(file)
    for format in ("npz", "big_vision", "timm", "huggingface"):
        there, back = tmp_path / format, tmp_path / f"{format}.npz"
        keras_vit.save_weights(model, there, format, allow=("activation",))
        for variable in model.weights:
            variable.assign(np.zeros(variable.shape))
        keras_vit.load_weights(model, there)
        keras_vit.save_weights(model, back)
        with np.load(back) as after:
            assert set(before) == set(after.files), format
            assert all(np.array_equal(before[key], after[key]) for key in before), format


@pytest.mark.parametrize(
    "format, arguments, message",
    [
        ("timm.safetensors", {}, "activation='gelu'"),
        ("timm", {"activation": "gelu", "position_embedding": "sincos2d"}, "sincos2d"),
        ("timm", {"norm_before_blocks": True}, "patch_bias=True with norm_before_blocks=True"),
        ("timm", {"pooling": "token_gap"}, "token_gap"),
        ("timm", {"projection_dim": 8}, "no place for 1 weights"),
        ("timm", {"layer_norm_epsilon": 1e-4}, "layer_norm_epsilon=0.0001"),
        ("timm", {"image_size": (None, None)}, "position_interpolation='linear'"),
        ("timm", {"gated_mlp": True}, "activation='gelu_tanh', expected one of .'silu'"),
        ("timm", {"distillation_token": True, "num_registers": 1}, "registers beside"),
        ("timm", {"distillation_token": True, "layer_norm_epsilon": 1e-5}, "two of a ResNet, a gated MLP"),
        (
            "timm.safetensors",
            {"rotary_embedding": "eva02", "hidden_dim": 24, "pooling": "map", "activation": "gelu"},
            'and pooling="map"',
        ),
        ("timm.safetensors", {"key_bias": False, "distillation_token": True}, "beside a distillation token"),
        ("npz", {"rotary_embedding": "eva02", "hidden_dim": 24}, "rotary_embedding='eva02'"),
        ("npz", {"gated_mlp": True}, "gated_mlp=True"),
        ("big_vision", {"num_registers": 1}, "no place for 1 weights"),
        (
            "huggingface",
            {"pooling": "gap", "class_token": True},
            r"The nearest, ViT.*, needs pooling='token' \(here 'gap'\)",
        ),
        ("huggingface", {"activation": "leaky_relu"}, "needs activation='one that transformers has'"),
        ("huggingface", {"layer_scale_init": 0.1}, r"needs layer_scale=False \(here True\)"),
        ("huggingface", {"representation_size": 12}, r"needs representation_size=None \(here 12\)"),
        ("huggingface", {**DINOV2, "mlp_dim": 25}, r"mlp_dim='a size that an mlp_ratio gives' \(here 25\)"),
        ("huggingface", {**DINOV2, "gated_mlp": True, "activation": "gelu", "mlp_dim": 16}, "needs activation='silu'"),
        ("huggingface", {**DINOV2, "image_size": (16, 24)}, "image_size and patch_size='squares'"),
        ("huggingface", {"stages": (1,), "width_factor": 0.5, "patch_size": 1}, r"stages=None \(here \(1,\)\)"),
        ("timm", {"pooling": "token_gap", "activation": "gelu"}, 'has pooling="token_gap"'),
        ("npz", {"qkv_bias": False}, "has qkv_bias=False"),
        ("npz", {"patch_bias": False}, "has patch_bias=False"),
        ("big_vision", {"gated_mlp": True}, "has gated_mlp=True"),
        ("huggingface", {"hidden_dim": 16, "head_dim": 5}, "heads that divide the width"),
        ("huggingface", {"distillation_token": True, "num_classes": 0}, "needs distillation_token=False"),
        ("flax", {}, "Expected one of 'npz', 'big_vision', 'timm', 'huggingface'"),
    ],
)
def test_what_another_format_cannot_hold_is_refused_and_nothing_written(tmp_path, format, arguments, message):
    format, dot, suffix = format.partition(".")
    suffix = dot + suffix
    with pytest.raises(ValueError, match=message):
        keras_vit.save_weights(build(**arguments), tmp_path / f"model{suffix}", format)
    assert not os.listdir(tmp_path)


def test_a_hugging_face_config_says_what_the_model_computes(tmp_path):
    model = build(image_size=(16, 24), layer_norm_epsilon=1e-12, std=(0.1, 0.2, 0.3))
    keras_vit.save_weights(model, tmp_path / "folder", "huggingface")
    config, preprocessor = (
        json.loads((tmp_path / "folder" / name).read_text()) for name in ("config.json", "preprocessor_config.json")
    )
    assert config["architectures"] == ["ViTForImageClassification"] and config["image_size"] == [16, 24]
    assert config["hidden_act"] == "gelu_pytorch_tanh" and config["layer_norm_eps"] == 1e-12
    assert preprocessor["image_mean"] == [0.5] * 3 and preprocessor["image_std"] == [0.1, 0.2, 0.3]
    assert preprocessor["size"] == {"height": 16, "width": 24}


def test_a_bit_folder_says_what_the_model_computes(tmp_path):
    model = keras_vit.from_pretrained(GOLDEN_FOLDER / "hf_bit", image_size=(64, 96), interpolation="bicubic")
    keras_vit.save_weights(model, tmp_path / "folder", "huggingface")
    before, after = (
        json.loads((folder / "config.json").read_text()) for folder in (GOLDEN_FOLDER / "hf_bit", tmp_path / "folder")
    )
    assert all(before[name] == value for name, value in after.items())
    assert keras_vit.from_pretrained(tmp_path / "folder").config == model.config


def test_more_stages_than_four_are_dilated_in_other_code(tmp_path):
    model = keras_vit.BiT(
        "R50x1", stages=(1,) * 5, width_factor=0.5, num_classes=2, resnet_epsilons="timm", pool_padding="zeros"
    )
    for name, format in (("model.safetensors", "timm"), ("folder", "huggingface")):
        with pytest.raises(ValueError, match="a ResNet of more than four stages"):
            keras_vit.save_weights(model, tmp_path / name, format)


def own_head(model, name="head", **options):
    return keras.Model(model.input, keras.layers.Dense(3, name=name, **options)(model.get_layer("pre_logits").output))


def test_the_record_beside_the_arrays_is_of_the_head_that_the_model_has(tmp_path):
    model = randomize(own_head(build(class_names=list("abcde")), activation="softmax"))
    keras_vit.save_weights(model, tmp_path / "model.npz")
    again = keras_vit.from_pretrained(tmp_path / "model.npz")
    images = np.random.default_rng(0).normal(size=(2, 16, 16, 3)).astype("float32")
    # As the model with the user's own head, one cut by Keras computes all tokens of the last block.
    whole = keras.Model(again.input, again.output)
    np.testing.assert_array_equal(*(keras.ops.convert_to_numpy(m(images)) for m in (model, whole)))
    assert again.config.num_classes == 3 and again.config.class_names is None
    other = keras_vit.from_pretrained(tmp_path / "model.npz", num_classes=7)
    assert other.config.classifier_activation == "linear"


def test_a_pooling_of_the_users_own_is_not_taken_for_the_records(tmp_path):
    tokens = build()
    pooled = keras.layers.GlobalAveragePooling1D()(tokens.get_layer("norm").output)
    model = keras.Model(tokens.input, keras.layers.Dense(5, name="head")(pooled))
    with pytest.raises(ValueError, match="has pooling=None"):
        keras_vit.save_weights(model, tmp_path / "model.npz")
    keras_vit.save_weights(tokens, tmp_path / "tokens.npz")
    with pytest.raises(ValueError, match="pooling='token'"):
        keras_vit.load_weights(model, tmp_path / "tokens.npz")


def test_a_function_of_the_users_own_has_to_be_passed_again(tmp_path):
    def of_ones_own(x):
        return 2 * x

    model = randomize(build(activation=of_ones_own))
    keras_vit.save_weights(model, tmp_path / "model.npz", allow="activation")
    keras_vit.load_weights(build(activation=of_ones_own), tmp_path / "model.npz", allow="activation")
    with pytest.raises(ValueError, match="(?s)Pass activation= .*a function defined by its user"):
        keras_vit.from_pretrained(tmp_path / "model.npz")
    assert keras_vit.from_pretrained(tmp_path / "model.npz", activation=of_ones_own).config.activation is of_ones_own


def test_a_family_that_no_format_holds_is_refused(tmp_path):
    model = vt_resnet.build()
    for format in ("npz", "big_vision", "timm", "huggingface"):
        with pytest.raises(
            ValueError,
            match="Expected a model of a family whose weights other.*family 'vt_resnet'. Use model.save",
        ):
            keras_vit.save_weights(model, tmp_path / "model.npz", format=format)
    assert not list(tmp_path.iterdir())
    model.save_weights(tmp_path / "model.weights.h5")
    with pytest.raises(
        ValueError,
        match="Expected a model of a family whose weights other.* or model.save_weights and model.load_weight",
    ):
        keras_vit.load_weights(model, tmp_path / "model.weights.h5")
