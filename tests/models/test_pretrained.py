import json
import shutil
import zipfile

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.models.pretrained import read_model
from keras_vit.weights import fields
from keras_vit.weights.checkpoint import Checkpoint
from keras_vit.weights.read import open_checkpoint
from keras_vit.weights.write import write_safetensors
from tests.golden import GOLDEN_FOLDER
from tests.tiny import build, randomize

# Arguments that a file does not tell, of `from_pretrained` and of `ViT` for `load_weights`.
SIZES = {"patch_size": 8, "hidden_dim": 64, "num_layers": 3, "num_heads": 4, "mlp_dim": 128}
EXACT = {"activation": "gelu"}
SMALL = {"hidden_dim": 32, "num_layers": 2, "mlp_dim": 64}
BARE = {"preprocessing": keras_vit.Preprocessing()}
HEADS = {"num_heads": 4, **BARE}
EVA02 = {"rotary_embedding": "eva02", "rotary_grid": (4, 4)}
DINOV3 = {"rotary_embedding": "dinov3", "rotary_grid": None, "layer_norm_epsilon": 1e-5, "pooling": "gap"}
FC_NORM = {"pooling": "gap", "class_token": True, "norm_after_pooling": True}
GATED = {"gated_mlp": True, "activation": "silu", **SMALL}
BIT = {"image_size": 64, "pool_padding": "lowest"}
TINY = {"hidden_dim": 32, "num_layers": 2, "mlp_dim": 64}
OF_TIMM = {"width_factor": 0.5, "resnet_epsilons": "timm"}
HYBRID, HYBRID_STEM = {"grid_size": (8, 12), **HEADS}, {"grid_size": (2, 3), **HEADS}
GOLDEN = {
    "vit_token.npz": ({}, {}),
    "vit_token_prelogits.npz": ({}, {"representation_size": 48}),
    "vit_gap.npz": ({}, {"pooling": "gap"}),
    "vit_nonsquare.npz": ({"grid_size": (6, 3)}, {}),
    "hybrid_r50ish_patch1.npz": ({}, {"stages": (1, 2, 1), "width_factor": 0.5, "patch_size": 1}),
    "hybrid_stem_only_patch8.npz": ({}, {"stages": ()}),
    "bigvision_tok.npz": ({}, {}),
    "bigvision_gap_sincos2d.npz": ({"image_size": 32}, {"pooling": "gap", "position_embedding": "sincos2d"}),
    "bigvision_map.npz": ({}, {"pooling": "map"}),
    "bigvision_gap_rep.npz": ({}, {"pooling": "gap", "representation_size": 64}),
    "timm_vit.safetensors": (HEADS, EXACT),
    "timm_vit_gap_fcnorm.safetensors": (HEADS, {"pooling": "gap", "norm_after_pooling": True, **EXACT}),
    "timm_vit_reg4_layerscale.safetensors": (HEADS, {"num_registers": 4, "layer_scale_init": 1.0, **EXACT}),
    "timm_vit_qknorm_map.safetensors": ({**BARE, **EXACT}, {"pooling": "map", "qk_norm": True, **EXACT}),
    "timm_deit_distilled.safetensors": ({"num_heads": 4}, {"distillation_token": True, **EXACT}),
    "timm_eva02.safetensors": ({**EVA02, "num_heads": 4, **BARE}, {"key_bias": False, **EVA02, **FC_NORM, **GATED}),
    "timm_eva02_split.safetensors": (
        {**EVA02, "num_heads": 4, **BARE},
        {"key_bias": False, "mlp_norm": True, "attention_norm": True, **EVA02, **FC_NORM, **GATED},
    ),
    "timm_dinov3_gated.safetensors": (
        {**DINOV3, "num_heads": 4, "image_size": 32, **BARE},
        {"position_embedding": "none", "qkv_bias": False, "num_registers": 4, "layer_scale_init": 1.0}
        | {"class_token": True, **DINOV3, **GATED},
    ),
    "timm_clip_quickgelu.safetensors": (
        {"activation": "quick_gelu", "num_heads": 4, **BARE},
        {"norm_before_blocks": True, "patch_bias": False, "layer_norm_epsilon": 1e-5, "activation": "quick_gelu"}
        | {"hidden_dim": 32, "num_layers": 2, "mlp_dim": 64},
    ),
    "hf_vit": ({}, {"layer_norm_epsilon": 1e-12, **EXACT}),
    "hf_deit_distilled": ({}, {"distillation_token": True, "layer_norm_epsilon": 1e-12, **EXACT}),
    "hf_dinov2": ({}, {"layer_scale_init": 1.0, **SMALL, **EXACT}),
    "hf_dinov2_reg2": ({}, {"layer_scale_init": 1.0, "num_registers": 2, **SMALL, **EXACT}),
    "hf_siglip": ({}, {"pooling": "map", **SMALL}),
    "bit_2111_x0.5.npz": (BIT, {"stages": (2, 1, 1, 1)}),
    "timm_hybrid.safetensors": (HYBRID, {"stages": (2, 1), "patch_size": 1, **OF_TIMM, **TINY, **EXACT}),
    "timm_hybrid_stem.safetensors": (HYBRID_STEM, {"stages": (), **OF_TIMM, **TINY, **EXACT}),
    "timm_bit.safetensors": ({"image_size": (64, 96), **BARE}, {"stages": (2, 1), "pool_padding": "zeros", **OF_TIMM}),
    "hf_bit": ({"image_size": (64, 96)}, {"stages": (2, 1), "pool_padding": "zeros", **OF_TIMM}),
}
# Together, these files need every layer and every attention of the ViTs, hybrids and BiTs.
EVERYWHERE = (
    "vit_token.npz",
    "vit_token_prelogits.npz",
    "vit_gap.npz",
    "vit_nonsquare.npz",
    "hybrid_r50ish_patch1.npz",
)
EVERYWHERE += ("bigvision_map.npz", "timm_vit_qknorm_map.safetensors", "timm_deit_distilled.safetensors")
EVERYWHERE += ("timm_eva02_split.safetensors", "timm_dinov3_gated.safetensors", "timm_clip_quickgelu.safetensors")
EVERYWHERE += ("hf_dinov2_reg2", "bit_2111_x0.5.npz", "timm_hybrid.safetensors", "timm_bit.safetensors")
# What files of other code, and state dicts without their wrappers, do not tell.
RESIZED = {
    "hf_clip": {},
    "hf_dinov2_gated": {},
    "hf_dinov3_gated": {},
    "hf_ijepa": BARE,
    "hf_mae": {},
    "original_clip.safetensors": {"num_heads": 2, "activation": "quick_gelu"},
    "original_dino.safetensors": {"source": "dino"},
    "original_dinov2.safetensors": {},
    "original_dinov2_registers.safetensors": {},
    "original_dinov3.safetensors": {},
    "original_eva02_packed.safetensors": {},
    "original_eva02_split.safetensors": {},
    "original_ijepa.safetensors": {"source": "ijepa", "num_heads": 2},
}
# The references' names of activations inside, where the models compute the same.
TAPS = {
    "with_posemb": "position_embedding",
    "encoded": "norm",
    "head_input": "pooling",
    "pre_logits": "pre_logits",
    "embedding": "patch_embedding",
    "Transformer/encoder_norm": "norm",
    **{f"Transformer/encoderblock_{i}": f"block_{i:02d}" for i in range(3)},
    "block_00": "block_00",
}


def golden(name):
    path = GOLDEN_FOLDER / name
    stem = name.removesuffix(".npz").removesuffix(".safetensors")
    return path, np.load(GOLDEN_FOLDER / f"{stem}.io.npz")


def close(model, io, family):
    """Compares the logits, and each activation inside that the reference and the model both name."""
    taps = {key: TAPS.get(key.removeprefix("tap/")) for key in io.files if key.startswith("tap/")}
    if family == "bit":
        taps = {"tap/stem": "root_pool", "tap/pre_logits": "pooling"}
    elif "tap/with_posemb" in taps:
        # big_vision applies tanh within pre_logits, and its class token has no position to be compared.
        taps["tap/pre_logits"] = "pre_logits_tanh"
    found = {layer.name for layer in model.layers}
    if "tap/features" in taps:
        taps["tap/features"] = "norm" if "norm" in found else "block_02"
    taps = {key: layer for key, layer in taps.items() if layer in found}
    tapped = keras.Model(model.input, [model.output, *(model.get_layer(layer).output for layer in taps.values())])
    actual = [keras.ops.convert_to_numpy(y) for y in keras.tree.flatten(tapped(io["images"]))]
    np.testing.assert_allclose(actual[0], io["logits" if "logits" in io else "features"], atol=1e-4)
    for key, y in zip(taps, actual[1:], strict=True):
        expected = io[key].reshape(len(y), -1, y.shape[-1])
        np.testing.assert_allclose(y.reshape(len(y), -1, y.shape[-1])[:, -expected.shape[1] :], expected, atol=1e-4)
    return len(taps)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.every_backend) if name in EVERYWHERE else name for name in GOLDEN]
)
def test_golden_files_through_from_pretrained(name):
    path, io = golden(name)
    model = keras_vit.from_pretrained(path, **GOLDEN[name][0])
    num_taps = close(model, io, name.split("_")[0])
    assert num_taps >= (1 if any(key.startswith("tap/") for key in io.files) else 0)
    if "cls_logits" in io:
        heads = keras.Model(model.input, [model.get_layer(layer).output for layer in ("head", "head_dist")])
        for y, key in zip(heads(io["images"]), ("cls_logits", "dist_logits"), strict=True):
            np.testing.assert_allclose(keras.ops.convert_to_numpy(y), io[key], atol=1e-4)


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_files_through_load_weights(name):
    path, io = golden(name)
    options = {"image_size": io["images"].shape[1:3], "num_classes": io["logits"].shape[1] if "logits" in io else 0}
    if "bit" in name:
        model = keras_vit.BiT("R50x1", **{"width_factor": 0.5, **options, **GOLDEN[name][1]})
    else:
        model = keras_vit.ViT("B/16", **{**SIZES, **options, **GOLDEN[name][1]})
    report = keras_vit.load_weights(model, path)
    assert len(report.loaded) == len(model.weights) and not report.kept
    assert set(report.skipped) <= {"embeddings.mask_token"}
    close(model, io, name.split("_")[0])


@pytest.mark.parametrize("name", [name for name in GOLDEN if GOLDEN[name][1].get("resnet_epsilons")])
def test_golden_resnets_at_other_sizes(name):
    path, io = golden(name)
    cut = io["images"][:, :37, :70]
    for image_size in ((37, 70), (None, None)):
        model = keras_vit.from_pretrained(path, **{**GOLDEN[name][0], "image_size": image_size})
        np.testing.assert_allclose(keras.ops.convert_to_numpy(model(cut)), io["cut/logits"], atol=1e-4)
    # The epsilons of the official code are other ones, and cancel only in the stem's groups of one channel.
    model = keras_vit.from_pretrained(path, **{**GOLDEN[name][0], "resnet_epsilons": "official"})
    difference = np.abs(keras.ops.convert_to_numpy(model(io["images"])) - io["logits"]).max()
    assert (difference > 1e-3) == (name != "timm_hybrid_stem.safetensors")


@pytest.mark.parametrize("name", [name for name in GOLDEN if "logits_24x40" in golden(name)[1]])
def test_golden_files_at_other_sizes(name):
    path, io = golden(name)
    told = GOLDEN[name][0]
    any_size = keras_vit.from_pretrained(path, **{**told, "image_size": (None, None)})
    for height, width in ((48, 48), (24, 40)):
        images = np.tile(io["images"], (1, 2, 2, 1))[:, :height, :width]
        for model in (any_size, keras_vit.from_pretrained(path, **{**told, "image_size": (height, width)})):
            logits = keras.ops.convert_to_numpy(model(images))
            np.testing.assert_allclose(logits, io[f"logits_{height}x{width}"], atol=1e-5)


@pytest.mark.parametrize("name", RESIZED)
def test_golden_files_at_another_size_and_of_any(name):
    path, io = golden(name)
    for image_size in (io["images"].shape[1:3], (None, None)):
        model = keras_vit.from_pretrained(path, image_size=image_size, **RESIZED[name])
        actual = keras.ops.convert_to_numpy(model(io["images"]))
        np.testing.assert_allclose(actual, io["features"], atol=1e-4)


def test_the_real_checkpoint_is_known_by_its_sizes(shared):
    model = keras_vit.from_pretrained(shared / "weights" / "ViT-B_16-224.npz", num_classes=0, image_size=384)
    assert model.name == "vit_B16" and model.input_shape == (None, 384, 384, 3)
    assert model.get_layer("position_embedding").grid_size == (24, 24)
    assert model.get_layer("block_11").attention.num_heads == 12


# What the file does not tell ----------------------------------------------------------------------------------------


def test_what_a_bare_state_dict_does_not_tell_has_to_be_passed(tmp_path):
    model = randomize(build(hidden_dim=128, num_heads=8, activation="gelu"))
    keras_vit.save_weights(model, tmp_path / "model.safetensors", "timm")
    path = _without_facts(tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=r"(?s)Pass .*num_heads= to .*\n  preprocessing: .*\n  num_heads: "):
        keras_vit.from_pretrained(path)
    with pytest.raises(ValueError, match="Pass num_heads= to from_pretrained"):
        keras_vit.from_pretrained(path, mean=0.5, std=0.5, interpolation="bicubic", crop_fraction=0.9)
    loaded = keras_vit.from_pretrained(path, num_heads=8, preprocessing=keras_vit.Preprocessing())
    images = np.random.default_rng(0).normal(size=(2, 16, 16, 3)).astype("float32")
    np.testing.assert_array_equal(*(keras.ops.convert_to_numpy(m(images)) for m in (model, loaded)))
    assert loaded.config == model.config


ROTARY = {"rotary_embedding", "rotary_grid", "layer_norm_epsilon"}
BARE_TIMM = [
    ({"pooling": "gap"}, {"num_heads", "activation"}),
    ({"pooling": "map"}, {"activation"}),
    ({"pooling": "map", "class_token": True}, {"pooling"}),
    ({"pooling": "gap", "norm_after_pooling": True}, set()),
    ({"pooling": "gap", "norm_after_pooling": True, "qkv_bias": False}, {"qkv_bias"}),
    ({"norm_before_blocks": True, "patch_bias": False, "layer_norm_epsilon": 1e-5}, {"activation"}),
    ({"key_bias": False}, {"rotary_embedding", "rotary_grid", "key_bias"}),
    ({"position_embedding": "none", "qkv_bias": False}, {*ROTARY, "pooling"}),
    (
        {"key_bias": False, "rotary_embedding": "eva02", "rotary_grid": (2, 2), "hidden_dim": 24, "activation": "silu"}
        | {"gated_mlp": True, "mlp_norm": True, "attention_norm": True},
        {"rotary_embedding", "rotary_grid"},
    ),
    ({}, set()),
]


@pytest.mark.parametrize("arguments, unknown", BARE_TIMM)
def test_two_models_of_timm_with_the_same_arrays_are_not_told_apart(tmp_path, monkeypatch, arguments, unknown):
    monkeypatch.setattr(fields.variants, "num_heads_of", lambda *sizes: 3)
    model = randomize(build(**{"activation": "gelu", **arguments}))
    keras_vit.save_weights(model, tmp_path / "model.safetensors", "timm")
    path = _without_facts(tmp_path / "model.safetensors")
    assert set(Checkpoint(path).stated.unknown) == {*unknown, "preprocessing"}
    told = {name: getattr(model.config, name) for name in unknown}
    again = keras_vit.from_pretrained(path, image_size=16, **told, **BARE)
    assert again.config == model.config


@pytest.mark.parametrize(
    ("name", "asked"), [("hf_clip", "activation="), ("hf_dinov3_gated", "num_heads=, activation=")]
)
def test_what_only_a_folder_tells_is_asked_for_its_file_alone(monkeypatch, name, asked):
    monkeypatch.setattr(fields.variants, "num_heads_of", lambda *sizes: 4)
    path = GOLDEN_FOLDER / name / "model.safetensors"
    with pytest.raises(ValueError, match=f"Pass {asked} to"):
        keras_vit.from_pretrained(path)
    assert keras_vit.from_pretrained(path, num_heads=4, activation="silu").config.activation == "silu"


def test_our_own_file_holds_the_record(tmp_path):
    changes = {"image_size": (None, None), "grid_size": (3, 5), "position_interpolation": "bicubic", "pooling": None}
    model = randomize(build(**changes, class_names=list("abcde"), classifier_activation="softmax"))
    model.get_layer("normalization").multi_label = True
    with pytest.raises(ValueError, match="pooling=None"):
        keras_vit.save_weights(model, tmp_path / "model.npz")
    model = randomize(build(**{**changes, "pooling": "gap"}, class_names=list("abcde"), num_heads=3))
    model.get_layer("normalization").multi_label = True
    keras_vit.save_weights(model, tmp_path / "model.npz")
    loaded = keras_vit.from_pretrained(tmp_path / "model.npz")
    assert loaded.config == model.config and loaded.config.any_size and loaded.config.multi_label
    assert loaded.config.class_names == tuple("abcde")
    assert keras_vit.from_pretrained(tmp_path / "model.npz", num_classes=3).config.class_names is None


def test_our_own_file_tells_all_that_its_arrays_cannot(tmp_path):
    model = randomize(build(image_size=(16, 24), activation="gelu", mean=0.1, std=(0.2, 0.3, 0.4), crop_fraction=0.9))
    keras_vit.save_weights(model, tmp_path / "model.safetensors", "timm")
    loaded = keras_vit.from_pretrained(tmp_path / "model.safetensors")
    images = np.random.default_rng(0).normal(size=(2, 16, 24, 3)).astype("float32")
    np.testing.assert_array_equal(*(keras.ops.convert_to_numpy(m(images)) for m in (model, loaded)))
    assert loaded.config == model.config


@pytest.mark.parametrize("dtype", ["bfloat16", "mixed_bfloat16"])
def test_weights_are_rounded_to_the_dtype_of_the_variables(tmp_path, dtype):
    model = randomize(build())
    keras_vit.save_weights(model, tmp_path / "vit.safetensors")
    found = keras_vit.from_pretrained(tmp_path / "vit.safetensors", dtype=dtype)
    kinds = set()
    for weight, saved in zip(found.weights, model.weights, strict=True):
        kinds.add(weight.dtype)
        rounded = keras.ops.cast(saved, weight.dtype)
        assert keras.ops.all(keras.ops.equal(rounded, weight)), weight.path
    assert ("bfloat16" in kinds) == (dtype == "bfloat16")


def test_an_unsquare_table_of_positions_needs_its_grid():
    path = GOLDEN_FOLDER / "vit_nonsquare.npz"
    with pytest.raises(ValueError, match=r"pass grid_size=\(rows, columns\)"):
        keras_vit.from_pretrained(path)


@pytest.mark.parametrize(
    "path, message",
    [
        ("nowhere.npz", "which does not exist in the current folder '[^']*'$"),
        ("vit_b16", r"Did you mean 'ViTB16\.\w+' or 'ViTB16\.\w+'\?$"),
        ("google/vit-base-patch16-224", "would be 'hf://google/vit-base-patch16-224'$"),
    ],
)
def test_a_path_that_does_not_exist_is_told_with_what_may_be_meant(path, message):
    with pytest.raises(FileNotFoundError, match=f"hf://owner/name, or the name of .* Received: '{path}', .*{message}"):
        keras_vit.from_pretrained(path)


def test_an_argument_that_the_builder_does_not_have():
    with pytest.raises(
        ValueError, match="keras_vit.ViT: .*num_layers.*Received: img_size=3. Did you mean 'image_size'"
    ):
        keras_vit.from_pretrained(GOLDEN_FOLDER / "vit_token.npz", img_size=3)


def test_sizes_and_settings_passed_overrule_the_file():
    path = GOLDEN_FOLDER / "vit_token.npz"
    model = keras_vit.from_pretrained(
        path, image_size=(None, None), num_classes=3, activation="gelu", in_channels=1, patch_size=4, dropout_rate=0.1
    )
    assert model.input_shape == (None, None, None, 1) and model.output_shape == (None, 3)
    assert model.get_layer("block_00").get_config()["activation"] == "gelu"
    assert not any(w.any() for w in model.get_layer("head").get_weights())
    assert model.get_layer("patch_embedding").kernel.shape == (4, 4, 1, 64)


# Preprocessing ------------------------------------------------------------------------------------------------------

IMAGENET = [[0.485, 0.456, 0.406], [0.229, 0.224, 0.225]]


@pytest.mark.parametrize(
    "name, arguments, expected",
    [
        ("vit_token.npz", {}, [[0.5], [0.5], "bilinear", 1.0]),
        ("bigvision_map.npz", {}, [[0.5], [0.5], "bilinear", 1.0]),
        ("hybrid_r50ish_patch1.npz", {}, [[0.5], [0.5], "bilinear", 1.0]),
        ("bit_2111_x0.5.npz", BIT, [[0.5], [0.5], "bilinear", 1.0]),
        ("timm_vit.safetensors", HEADS, [[0.5], [0.5], "bilinear", 1.0]),
        ("timm_deit_distilled.safetensors", {"num_heads": 4}, [*IMAGENET, "bicubic", 0.875]),
        ("hf_vit", {}, [[0.5], [0.5], "bilinear", 1.0]),
        ("hf_deit_distilled", {}, [*IMAGENET, "bicubic", 0.875]),
    ],
)
def test_preprocessing_constants_survive_keras_files(tmp_path, name, arguments, expected):
    model = keras_vit.from_pretrained(GOLDEN_FOLDER / name, **arguments)
    model.save(tmp_path / "model.keras")
    for each in (model, keras.saving.load_model(tmp_path / "model.keras")):
        mean, std, interpolation, crop_fraction = expected
        assert each.preprocessing == keras_vit.Preprocessing(
            mean=mean, std=std, interpolation=interpolation, crop_fraction=crop_fraction
        )
        assert each.config == model.config


def test_preprocessing_that_models_of_a_type_differ_in_is_asked_for(tmp_path):
    folder = changed(GOLDEN_FOLDER / "hf_vit", tmp_path, model_type="vit_msn")
    with pytest.raises(ValueError, match="(?s)Pass preprocessing=.*vit_msn models differ in it"):
        keras_vit.from_pretrained(folder)
    found = keras_vit.from_pretrained(changed(GOLDEN_FOLDER / "hf_vit", tmp_path, model_type="vit_mae")).preprocessing
    assert (found.mean, found.resize_mode) == (tuple(IMAGENET[0]), "squash")


def _without_facts(path):
    """The same arrays as another code base would have written them."""
    checkpoint = open_checkpoint(path)
    write_safetensors(path.with_name("foreign.safetensors"), dict(checkpoint.read(checkpoint.entries)), {})
    return path.with_name("foreign.safetensors")


# Settings that configs say ------------------------------------------------------------------------------------------


def changed(folder, tmp_path, name="config.json", **changes):
    """A copy of a Hugging Face folder with other settings."""
    copy = shutil.copytree(folder, tmp_path / "copy", dirs_exist_ok=True)
    path = copy / name
    path.write_text(json.dumps({**(json.loads(path.read_text()) if path.exists() else {}), **changes}))
    return copy


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"hidden_act": "leaky_relu"}, "hidden_act='leaky_relu'.*Expected one of 'gelu'"),
        ({"model_type": "siglip2_vision_model"}, "model_type='siglip2_vision_model'.*NaFlex needs patches as input"),
        ({"model_type": "beit"}, "model_type='beit'. Expected one of 'vit'"),
        ({"num_attention_heads": "4"}, "`num_heads`. Expected an integer of at least 1. Received: '4'"),
        ({"num_attention_heads": 4.0}, "`num_heads`.*Received: 4.0"),
        ({"num_attention_heads": -1}, "`num_heads`.*Received: -1"),
        ({"num_attention_heads": 3}, "`num_heads`. Expected a divisor of the width, .*Received: 3"),
        ({"layer_norm_eps": "1e-6"}, "`layer_norm_eps`. Expected a finite number. Received: '1e-6'"),
        ({"layer_norm_eps": 1e30}, "`layer_norm_eps`. Expected a number of at most 1"),
        ({"image_size": 10**9}, "`image_size`. Expected an integer of at most 65536. Received: 1000000000"),
        ({"image_size": "32"}, "`image_size`"),
        ({"image_size": 33_000}, "to hold the 17015625 position embeddings .*Received: 17"),
    ],
)
def test_a_config_that_no_model_here_follows_is_refused(tmp_path, changes, message):
    with pytest.raises(ValueError, match=message):
        keras_vit.from_pretrained(changed(GOLDEN_FOLDER / "hf_vit", tmp_path, **changes))


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"image_mean": [0.1, 0.2]}, "image_mean as one number, or one for each of 3 channels. Received: .0.1, 0.2."),
        ({"image_mean": [float("nan")] * 3}, "`mean`. Expected a number"),
        ({"image_std": [float("inf")] * 3}, "`std`. Expected a number"),
        ({"image_std": [0.0] * 3}, "`std`"),
        ({"resample": 99}, "resample as one of 0, 1, 2, 3, 4. Received: 99"),
        ({"size": {"height": -3}}, "size in pixels. Received: .*-3"),
    ],
)
def test_a_preprocessor_that_cannot_be_is_refused(tmp_path, changes, message):
    with pytest.raises(ValueError, match=f"Cannot load '.*'.*{message}"):
        keras_vit.from_pretrained(changed(GOLDEN_FOLDER / "hf_vit", tmp_path, "preprocessor_config.json", **changes))


@pytest.mark.parametrize("method", ["learned", "learned2d", "relative"])
def test_an_image_size_beyond_the_arrays_is_refused(tmp_path, method):
    keras_vit.save_weights(build(), tmp_path / "model.npz")
    checkpoint = Checkpoint(tmp_path / "model.npz")
    stated = checkpoint.stated.fields
    fields.check_positions(checkpoint, stated)
    with pytest.raises(ValueError, match="Received: 17. Pass the image_size= of its model"):
        fields.check_positions(checkpoint, {**stated, "position_embedding": method, "image_size": (40_000, 40_000)})
    fields.check_positions(checkpoint, {**stated, "position_embedding": "none", "image_size": (40_000, 40_000)})
    checkpoint.weights.clear()
    with pytest.raises(ValueError, match="Received: 0"):
        fields.check_positions(checkpoint, stated)


def test_a_config_says_an_unsquare_image(tmp_path):
    model = randomize(build(image_size=(8, 32), activation="gelu"))
    keras_vit.save_weights(model, tmp_path / "folder", "huggingface")
    arrays = open_checkpoint(tmp_path / "folder")
    write_safetensors(tmp_path / "folder" / "model.safetensors", dict(arrays.read(arrays.entries)), {})
    again = keras_vit.from_pretrained(tmp_path / "folder")
    assert again.get_layer("position_embedding").grid_size == (2, 8)
    images = np.random.default_rng(0).normal(size=(1, 8, 32, 3)).astype("float32")
    np.testing.assert_array_equal(*(keras.ops.convert_to_numpy(m(images)) for m in (model, again)))


def test_a_preprocessor_that_does_not_normalise_or_scales_otherwise(tmp_path):
    folder = GOLDEN_FOLDER / "hf_vit"
    plain = changed(folder, tmp_path, "preprocessor_config.json", do_normalize=False)
    found = keras_vit.from_pretrained(plain).preprocessing
    assert (found.mean, found.std) == ((0.0,), (1.0,))
    with pytest.raises(ValueError, match="does not scale images by 1/255"):
        keras_vit.from_pretrained(changed(folder, tmp_path, "preprocessor_config.json", rescale_factor=1.0))


@pytest.mark.parametrize("global_pool, expected", [("token", "token"), ("avg", "gap"), ("max", None)])
def test_a_timm_folder_says_how_it_pools(tmp_path, global_pool, expected):
    shutil.copy(GOLDEN_FOLDER / "timm_vit.safetensors", tmp_path / "model.safetensors")
    config = {
        "architecture": "vit",
        "global_pool": global_pool,
        "model_args": {"num_heads": 4, "act_layer": "gelu_tanh", "norm_layer": "layernorm", "use_rot_pos_emb": False},
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    if expected is None:
        with pytest.raises(ValueError, match="global_pool='max'"):
            keras_vit.from_pretrained(tmp_path)
        return
    model = keras_vit.from_pretrained(tmp_path)
    assert model.get_layer("pooling").method == expected and model.get_layer("block_00").attention.num_heads == 4
    assert model.get_layer("block_00").get_config()["activation"] == "gelu_tanh"


def test_a_timm_folder_of_an_unknown_name_loads_with_what_the_name_would_tell(tmp_path):
    shutil.copy(GOLDEN_FOLDER / "timm_vit.safetensors", tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"architecture": "vit_new", "pretrained_cfg": {}}))
    told = {"num_heads": 4, "activation": "gelu", "layer_norm_epsilon": 1e-6, "pooling": "token"}
    told |= {"rotary_embedding": None, "rotary_grid": None}
    with pytest.raises(ValueError, match=f"Pass {'=, '.join(told)}= to"):
        keras_vit.from_pretrained(tmp_path)
    close(keras_vit.from_pretrained(tmp_path, **told), golden("timm_vit.safetensors")[1], "timm")


def test_a_bias_of_the_keys_is_not_left_out():
    model = keras_vit.ViT("B/16", image_size=32, num_classes=10, **{**SIZES, **EXACT, "key_bias": False})
    with pytest.raises(ValueError, match="key_bias=True"):
        keras_vit.load_weights(model, GOLDEN_FOLDER / "timm_vit.safetensors")


def test_a_model_of_any_size_resizes_the_files_own_table_once(tmp_path):
    fixed = randomize(build(image_size=48))
    keras_vit.save_weights(fixed, tmp_path / "model.npz")
    model = keras_vit.from_pretrained(tmp_path / "model.npz", image_size=(None, None))
    images = np.random.default_rng(0).normal(size=(1, 48, 48, 3)).astype("float32")
    np.testing.assert_allclose(*(keras.ops.convert_to_numpy(m(images)) for m in (model, fixed)), atol=1e-5)
    assert model.get_layer("position_embedding").grid_size == (12, 12)


@pytest.mark.parametrize("name", ["timm_vit.safetensors", "hf_vit"])
def test_a_model_of_any_size_resizes_as_its_source_does(name):
    path, arguments = GOLDEN_FOLDER / name, HEADS if name.startswith("timm") else {}
    images = np.random.default_rng(0).normal(size=(1, 56, 40, 3)).astype("float32")
    fixed = keras_vit.from_pretrained(path, image_size=(56, 40), **arguments)
    model = keras_vit.from_pretrained(path, image_size=(None, None), **arguments)
    np.testing.assert_allclose(*(keras.ops.convert_to_numpy(m(images)) for m in (model, fixed)), atol=1e-4)


def test_other_channels_take_the_mean_of_the_constants():
    model = keras_vit.from_pretrained(GOLDEN_FOLDER / "hf_deit_distilled", in_channels=4)
    assert np.isclose(model.get_layer("normalization").preprocessing.mean[0], (0.485 + 0.456 + 0.406) / 3)


def test_a_name_that_is_none_is_said(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"`path`.*ViTB16\.imagnet21k"):
        keras_vit.from_pretrained("ViTB16.imagnet21k")


def test_none_is_what_the_file_says(tmp_path):
    model = randomize(build(activation="gelu", mean=0.1, image_size=(None, None), position_interpolation="bicubic"))
    keras_vit.save_weights(model, tmp_path / "model.safetensors", "timm")
    nothing = dict.fromkeys(("activation", "preprocessing", "layer_norm_epsilon", "num_heads", "image_size"))
    assert keras_vit.from_pretrained(tmp_path / "model.safetensors", **nothing).config == model.config
    with pytest.raises(ValueError, match="`num_heads`. Expected an integer of at least 1. Received: 0"):
        keras_vit.from_pretrained(tmp_path / "model.safetensors", num_heads=0)
    # Of any size at run time, or at loading: the table is resized in the same way.
    images = np.random.default_rng(0).normal(size=(1, 24, 40, 3)).astype("float32")
    fixed = keras_vit.from_pretrained(tmp_path / "model.safetensors", image_size=(24, 40))
    np.testing.assert_allclose(*(keras.ops.convert_to_numpy(m(images)) for m in (model, fixed)), atol=1e-5)


def test_both_heads_go_with_the_heads(tmp_path):
    model = randomize(build(distillation_token=True, return_both_heads=True, activation="gelu"))
    keras_vit.save_weights(model, tmp_path / "model.safetensors", "timm")
    assert len(keras_vit.from_pretrained(tmp_path / "model.safetensors").outputs) == 2
    assert keras_vit.from_pretrained(tmp_path / "model.safetensors", num_classes=0).output_shape == (None, 12)


def test_other_channels_take_the_mean_in_builders_too():
    assert np.isclose(keras_vit.DeiTTi16(in_channels=1, num_layers=1).preprocessing.mean[0], 0.449)
    with pytest.raises(ValueError, match="`preprocessing`. Expected a keras_vit.Preprocessing. Received: 'imagenet'"):
        build(preprocessing="imagenet")


def test_a_file_a_run_and_a_checkpoint_hold_the_same_model(tmp_path):
    model = randomize(build(class_names=list("abcde"), crop_fraction=0.9))
    (tmp_path / "run").mkdir()
    model.save(tmp_path / "run" / "model.keras")
    keras_vit.save_weights(model, tmp_path / "model.npz")
    images = np.random.default_rng(0).uniform(-1, 1, (2, 16, 16, 3)).astype("float32")
    expected = keras.ops.convert_to_numpy(model(images))
    for path in (tmp_path / "run", tmp_path / "run" / "model.keras", tmp_path / "model.npz"):
        read = read_model(path, num_heads=None)
        np.testing.assert_allclose(keras.ops.convert_to_numpy(read(images)), expected, atol=1e-5)
    carried = read_model(tmp_path / "run").get_layer("normalization")
    assert carried.class_names == list("abcde") and carried.preprocessing.crop_fraction == 0.9


def test_what_holds_no_model_is_named(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "recipe.json").write_text("{}")
    with pytest.raises(FileNotFoundError, match=r"a run that has ended.*model\.keras"):
        read_model(tmp_path / "run")
    with pytest.raises(FileNotFoundError, match=r"none\.keras"):
        read_model(tmp_path / "none.keras")
    (tmp_path / "text.keras").write_text("no model")
    with pytest.raises(ValueError, match=r"text\.keras.*damaged"):
        read_model(tmp_path / "text.keras")
    with pytest.raises(ValueError, match="no num_heads"):
        read_model(tmp_path / "text.keras", num_heads=3)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"dtype": "float32"', b'"dtype": {"module": "keras", "class_name": "DTypePolicy", "config": {"name": 7}}'),
        (b'"hidden_dim": 12', b'"hidden_dim": [12]'),
        (b'"units": 5', b'"units": "5"'),
        (b'{"module"', b"[" * 5000 + b'{"module"'),
        (b"{", b"\xff{"),
    ],
)
def test_a_keras_file_with_a_wrong_config_is_named(old, new, tmp_path):
    build().save(tmp_path / "good.keras")
    with zipfile.ZipFile(tmp_path / "good.keras") as good, zipfile.ZipFile(tmp_path / "bad.keras", "w") as bad:
        for name in good.namelist():
            data = good.read(name)
            assert name != "config.json" or old in data
            bad.writestr(name, data.replace(old, new) if name == "config.json" else data)
    with pytest.raises(ValueError, match=r"Cannot read .*bad\.keras"):
        read_model(tmp_path / "bad.keras")
