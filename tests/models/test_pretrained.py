import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.models.vit import variants as vit_config
from tests.errors import not_found, refuses
from tests.golden import GOLDEN_FOLDER
from tests.models.small import answers, images
from tests.tiny import build, randomize
from tests.weights.helpers import changed, read, rewrite_member, timm_folder, unchanged, without_facts

# For each file, the arguments of `from_pretrained` that the file does not determine.
SIZES = {"patch_size": 8, "hidden_dim": 64, "num_layers": 3, "num_heads": 4, "mlp_dim": 128}
EXACT = {"activation": "gelu"}
BARE = {"preprocessing": keras_vit.Preprocessing()}
HEADS = {"num_heads": 4, **BARE}
EVA02 = {"rotary_embedding": "eva02", "rotary_grid": (4, 4), **HEADS}
DINOV3 = {"rotary_embedding": "dinov3", "rotary_grid": None, "layer_norm_epsilon": 1e-5, "pooling": "gap"}
RESNETS = {name: {"image_size": (64, 96), **BARE} for name in ("timm_bit.safetensors", "hf_bit")}
RESNETS |= {"timm_hybrid.safetensors": {"grid_size": (8, 12), **HEADS}}
RESNETS |= {"timm_hybrid_stem.safetensors": {"grid_size": (2, 3), **HEADS}}
STATED = ("vit_token.npz", "vit_token_prelogits.npz", "vit_gap.npz", "hybrid_r50ish_patch1.npz")
STATED += ("hybrid_stem_only_patch8.npz", "bigvision_tok.npz", "bigvision_map.npz", "bigvision_gap_rep.npz")
STATED += ("hf_dinov2", "hf_dinov2_reg2", "hf_siglip")
GOLDEN = {
    **{name: {} for name in STATED},
    **{f"timm_{name}.safetensors": HEADS for name in ("vit", "vit_gap_fcnorm", "vit_reg4_layerscale")},
    **dict.fromkeys(("timm_eva02.safetensors", "timm_eva02_split.safetensors"), EVA02),
    **dict.fromkeys(("hf_vit", "hf_deit_distilled"), BARE),
    "vit_nonsquare.npz": {"grid_size": (6, 3)},
    "bigvision_gap_sincos2d.npz": {"image_size": 32},
    "timm_vit_qknorm_map.safetensors": {**BARE, **EXACT},
    "timm_deit_distilled.safetensors": {"num_heads": 4},
    "timm_dinov3_gated.safetensors": {"image_size": 32, **DINOV3, **HEADS},
    "timm_clip_quickgelu.safetensors": {"activation": "quick_gelu", **HEADS},
    "bit_2111_x0.5.npz": {"image_size": 64, "pool_padding": "lowest"},
    **RESNETS,
}
# Together, these files need every layer and every attention of the ViTs, hybrids and BiTs.
EVERYWHERE = ("vit_token.npz", "vit_token_prelogits.npz", "vit_gap.npz", "vit_nonsquare.npz", "bigvision_map.npz")
EVERYWHERE += ("hybrid_r50ish_patch1.npz", "timm_vit_qknorm_map.safetensors", "timm_deit_distilled.safetensors")
EVERYWHERE += ("timm_eva02_split.safetensors", "timm_dinov3_gated.safetensors", "timm_clip_quickgelu.safetensors")
EVERYWHERE += ("hf_dinov2_reg2", "bit_2111_x0.5.npz", "timm_hybrid.safetensors", "timm_bit.safetensors")
# The arguments that these files do not determine. Their images have another size than the weights.
RESIZED = {
    **{name: {} for name in ("hf_clip", "hf_dinov2_gated", "hf_dinov3_gated")},
    **dict.fromkeys(("hf_ijepa", "hf_mae"), BARE),
    **{f"original_dinov{name}.safetensors": {} for name in ("2", "2_registers", "3")},
    **{f"original_eva02_{name}.safetensors": {} for name in ("packed", "split")},
    "original_clip.safetensors": {"num_heads": 2, "activation": "quick_gelu"},
    "original_dino.safetensors": {"source": "dino"},
    "original_ijepa.safetensors": {"source": "ijepa", "num_heads": 2},
}
# The layers whose outputs equal the references' tapped activations.
TAPS = {"with_posemb": "position_embedding", "encoded": "norm", "head_input": "pooling", "pre_logits": "pre_logits"}
TAPS |= {"embedding": "patch_embedding", "Transformer/encoder_norm": "norm", "block_00": "block_00"}
TAPS |= {f"Transformer/encoderblock_{i}": f"block_{i:02d}" for i in range(3)}
IMAGENET = keras_vit.Preprocessing(
    mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225), interpolation="bicubic", crop_fraction=0.875
)
OFFICIAL = keras_vit.Preprocessing(mean=(0.5,), std=(0.5,), interpolation="bilinear", crop_fraction=1.0)
OF_SOURCES = dict.fromkeys(("vit_token.npz", "bigvision_map.npz", "hybrid_r50ish_patch1.npz"), OFFICIAL)
OF_SOURCES |= {"bit_2111_x0.5.npz": OFFICIAL, "hf_dinov2": IMAGENET}
OF_SOURCES |= {"timm_deit_distilled.safetensors": IMAGENET}
UNSUPPORTED = [
    ({"hidden_act": "leaky_relu"}, "hidden_act='leaky_relu'.*Expected one of 'gelu'"),
    ({"model_type": "siglip2_vision_model"}, "model_type='siglip2_vision_model'.*NaFlex needs patches as input"),
    ({"model_type": "beit"}, "model_type='beit'. Expected one of 'vit'"),
    ({"num_attention_heads": "4"}, "`num_heads`. Expected an integer of at least 1. Received: '4'"),
    ({"num_attention_heads": 3}, "`num_heads`. Expected a divisor of the width, .*Received: 3"),
    ({"layer_norm_eps": "1e-6"}, "`layer_norm_eps`. Expected a number above 0, at most 1. Received: '1e-6'"),
    ({"layer_norm_eps": 1e30}, "`layer_norm_eps`. Expected a number above 0, at most 1"),
    ({"image_size": 10**9}, "`image_size`. Expected an integer of at most 65536. Received: 1000000000"),
    ({"image_size": 33_000}, "to contain the 17015625 position embeddings .*Received: 17"),
]
DAMAGED_CONFIGS = [
    (b'"dtype": "float32"', b'"dtype": {"module": "keras", "class_name": "DTypePolicy", "config": {"name": 7}}'),
    (b'"hidden_dim": 12', b'"hidden_dim": [12]'),
    (b'{"module"', b"[" * 5000 + b'{"module"'),
    (b"{", b"\xff{"),
]
SIMILAR_NAMES = [
    ("nowhere.npz", "which does not exist in the current folder '[^']*'$"),
    ("ViTB16.imagnet21k", r"Did you mean 'ViTB16\.imagenet21k'"),
    ("vit_b16", r"Did you mean 'ViTB16\.\w+' or 'ViTB16\.\w+'\?$"),
    ("google/vit-base-patch16-224", "would be 'hf://google/vit-base-patch16-224'$"),
]
INVALID_PREPROCESSORS = [
    ({"image_mean": [0.1, 0.2]}, "image_mean as one number, or one for each of 3 channels. Received: .0.1, 0.2."),
    ({"image_mean": [float("nan")] * 3}, "`mean`. Expected a number"),
    ({"image_std": [0.0] * 3}, "`std`"),
    ({"resample": 99}, "resample as one of 0, 1, 2, 3, 4. Received: 99"),
    ({"size": {"height": -3}}, "size in pixels. Received: .*-3"),
]


def golden(name):
    path = GOLDEN_FOLDER / name
    stem = name.removesuffix(".npz").removesuffix(".safetensors")
    return path, np.load(GOLDEN_FOLDER / f"{stem}.io.npz")


def close(model, io, family):
    """Compares the logits and each activation that the reference and the model both have; returns their number."""
    taps = {key: TAPS.get(key.removeprefix("tap/")) for key in io.files if key.startswith("tap/")}
    if family == "bit":
        taps = {"tap/stem": "root_pool", "tap/pre_logits": "pooling"}
    elif "tap/with_posemb" in taps:
        # big_vision includes the tanh in pre_logits and adds no position to its class token.
        taps["tap/pre_logits"] = "pre_logits_tanh"
    found = {layer.name for layer in model.layers}
    if "tap/features" in taps:
        taps["tap/features"] = "norm" if "norm" in found else "block_02"
    taps = {key: layer for key, layer in taps.items() if layer in found}
    tapped = keras.Model(model.input, [model.output, *(model.get_layer(layer).output for layer in taps.values())])
    actual = keras.tree.flatten(answers(tapped, io["images"]))
    np.testing.assert_allclose(actual[0], io["logits" if "logits" in io else "features"], atol=1e-4)
    for key, y in zip(taps, actual[1:], strict=True):
        expected = io[key].reshape(len(y), -1, y.shape[-1])
        np.testing.assert_allclose(y.reshape(len(y), -1, y.shape[-1])[:, -expected.shape[1] :], expected, atol=1e-4)
    return len(taps)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.every_backend) if name in EVERYWHERE else name for name in GOLDEN]
)
def test_golden_file_gives_outputs_of_its_source(name):
    path, io = golden(name)
    model = keras_vit.from_pretrained(path, **GOLDEN[name])
    num_taps = close(model, io, name.split("_")[0])
    assert num_taps >= (1 if any(key.startswith("tap/") for key in io.files) else 0)
    assert OF_SOURCES.keys() <= GOLDEN.keys()
    assert model.preprocessing == OF_SOURCES.get(name, model.preprocessing)
    if "cls_logits" in io:
        heads = keras.Model(model.input, [model.get_layer(layer).output for layer in ("head", "head_dist")])
        for y, key in zip(answers(heads, io["images"]), ("cls_logits", "dist_logits"), strict=True):
            np.testing.assert_allclose(y, io[key], atol=1e-4)
    clone = keras.models.clone_model(model)
    report = keras_vit.load_weights(clone, path)
    assert len(report.loaded) == len(model.weights) and not report.kept
    assert set(report.skipped) <= {"embeddings.mask_token"} and unchanged(clone, model.get_weights())


@pytest.mark.parametrize("name", RESNETS)
def test_golden_resnet_at_other_sizes(name):
    path, io = golden(name)
    cut = io["images"][:, :37, :70]
    for image_size in ((37, 70), (None, None)):
        model = keras_vit.from_pretrained(path, **{**GOLDEN[name], "image_size": image_size})
        np.testing.assert_allclose(answers(model, cut), io["cut/logits"], atol=1e-4)
    # The official epsilons give other logits, except in the stem, where groups have one channel.
    model = keras_vit.from_pretrained(path, **{**GOLDEN[name], "resnet_epsilons": "official"})
    difference = np.abs(answers(model, io["images"]) - io["logits"]).max()
    assert (difference > 1e-3) == (name != "timm_hybrid_stem.safetensors")


@pytest.mark.parametrize("name", [name for name in GOLDEN if "logits_24x40" in golden(name)[1]])
def test_golden_vit_at_other_sizes(name):
    path, io = golden(name)
    any_size = keras_vit.from_pretrained(path, **{**GOLDEN[name], "image_size": (None, None)})
    for height, width in ((48, 48), (24, 40)):
        x = np.tile(io["images"], (1, 2, 2, 1))[:, :height, :width]
        for model in (any_size, keras_vit.from_pretrained(path, **{**GOLDEN[name], "image_size": (height, width)})):
            np.testing.assert_allclose(answers(model, x), io[f"logits_{height}x{width}"], atol=1e-5)


@pytest.mark.parametrize("name", RESIZED)
def test_golden_file_at_another_or_any_size(name):
    path, io = golden(name)
    for image_size in (io["images"].shape[1:3], (None, None)):
        model = keras_vit.from_pretrained(path, image_size=image_size, **RESIZED[name])
        np.testing.assert_allclose(answers(model, io["images"]), io["features"], atol=1e-4)


# Settings that files do not determine ---------------------------------------------------------------------------------


def test_bare_state_dict_needs_heads_and_preprocessing(tmp_path):
    model = randomize(build(hidden_dim=128, num_heads=8, activation="gelu"))
    keras_vit.save_weights(model, tmp_path / "model.safetensors", "timm")
    path = without_facts(tmp_path / "model.safetensors")
    refuses(r"(?s)Pass .*num_heads= to .*\n  preprocessing: .*\n  num_heads: ", keras_vit.from_pretrained, path)
    constants = {"mean": 0.5, "std": 0.5, "interpolation": "bicubic", "crop_fraction": 0.9}
    refuses("Pass num_heads= to from_pretrained", keras_vit.from_pretrained, path, preprocessing=constants)
    partial = {"num_heads": 8, "preprocessing": {"mean": 0.5}}
    refuses("Pass preprocessing= to from_pretrained", keras_vit.from_pretrained, path, **partial)
    loaded = keras_vit.from_pretrained(path, num_heads=8, preprocessing=keras_vit.Preprocessing())
    np.testing.assert_array_equal(*(answers(m, images(2, 16, 16, 3)) for m in (model, loaded)))
    assert loaded.config == model.config.replace(position_interpolation="bicubic_antialias")


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
def test_bare_timm_arrays_leave_settings_unknown(tmp_path, monkeypatch, arguments, unknown):
    monkeypatch.setattr(vit_config, "num_heads_from_sizes", lambda *sizes: 3)
    model = randomize(build(**{"activation": "gelu", **arguments}))
    keras_vit.save_weights(model, tmp_path / "model.safetensors", "timm")
    path = without_facts(tmp_path / "model.safetensors")
    assert set(read(path)[1].unknown) == {*unknown, "preprocessing"}
    told = {name: getattr(model.config, name) for name in unknown}
    again = keras_vit.from_pretrained(path, image_size=16, **told, **BARE)
    table = arguments.get("position_embedding") != "none"
    assert again.config == model.config.replace(position_interpolation="bicubic_antialias" if table else "linear")


@pytest.mark.parametrize("name, asked", [("hf_clip", "activation="), ("hf_dinov3_gated", "num_heads=, activation=")])
def test_file_without_its_folder_needs_more_arguments(monkeypatch, name, asked):
    monkeypatch.setattr(vit_config, "num_heads_from_sizes", lambda *sizes: 4)
    path = GOLDEN_FOLDER / name / "model.safetensors"
    refuses(f"Pass {asked} to", keras_vit.from_pretrained, path)
    assert keras_vit.from_pretrained(path, num_heads=4, activation="silu").config.activation == "silu"


def test_own_file_holds_the_config(tmp_path):
    changes = {"image_size": (None, None), "grid_size": (3, 5), "position_interpolation": "bicubic", "pooling": "none"}
    refuses('pooling="none"', keras_vit.save_weights, build(**changes), tmp_path / "model.npz")
    changes |= {"pooling": "gap", "class_names": list("abcde"), "task": "multi_label"}
    model = randomize(build(**changes, num_heads=3))
    keras_vit.save_weights(model, tmp_path / "model.npz")
    loaded = keras_vit.from_pretrained(tmp_path / "model.npz")
    assert loaded.config == model.config and loaded.config.any_size and loaded.config.task == "multi_label"
    assert loaded.config.class_names == tuple("abcde")
    assert keras_vit.from_pretrained(tmp_path / "model.npz", num_classes=3).config.class_names is None


@pytest.mark.parametrize("dtype", ["bfloat16", "mixed_bfloat16"])
def test_weights_are_rounded_to_the_variables_dtype(tmp_path, dtype):
    model = randomize(build())
    keras_vit.save_weights(model, tmp_path / "vit.safetensors")
    found = keras_vit.from_pretrained(tmp_path / "vit.safetensors", dtype=dtype)
    kinds = set()
    for weight, saved in zip(found.weights, model.weights, strict=True):
        kinds.add(weight.dtype)
        assert keras.ops.all(keras.ops.equal(keras.ops.cast(saved, weight.dtype), weight)), weight.path
    assert ("bfloat16" in kinds) == (dtype == "bfloat16")


@pytest.mark.parametrize("path, message", SIMILAR_NAMES)
def test_missing_path_names_similar_names(path, message):
    not_found(f"hf://owner/name, or the name of .* Received: '{path}', .*{message}", keras_vit.from_pretrained, path)


def test_unknown_argument_is_named():
    message = "argument of keras_vit.from_pretrained. Received: img_size=3. Use image_size="
    refuses(message, keras_vit.from_pretrained, GOLDEN_FOLDER / "vit_token.npz", img_size=3)


def test_passed_sizes_and_settings_override_the_file():
    path = GOLDEN_FOLDER / "vit_token.npz"
    model = keras_vit.from_pretrained(
        path, image_size=(None, None), num_classes=3, activation="gelu", in_channels=1, patch_size=4, dropout_rate=0.1
    )
    assert model.input_shape == (None, None, None, 1) and model.output_shape == (None, 3)
    assert model.get_layer("block_00").get_config()["activation"] == "gelu"
    assert not any(w.any() for w in model.get_layer("head").get_weights())
    assert model.get_layer("patch_embedding").kernel.shape == (4, 4, 1, 64)


# Preprocessing --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name,type", [("hf_vit", "vit"), ("hf_vit", "deit"), ("hf_vit", "vit_mae"), ("hf_bit", "bit")])
def test_folder_without_processor_needs_preprocessing(tmp_path, name, type):
    folder = changed(tmp_path, name, model_type=type)
    message = f"(?s)Pass preprocessing=.*{'huggingface_bit' if type == 'bit' else 'huggingface'} models differ in it"
    refuses(message, keras_vit.from_pretrained, folder)
    refuses(message, keras_vit.from_pretrained, folder / "model.safetensors")


# Settings in configs --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("changes, message", UNSUPPORTED)
def test_unsupported_config_is_refused(tmp_path, changes, message):
    refuses(message, keras_vit.from_pretrained, changed(tmp_path, "hf_vit", **changes), **BARE)


@pytest.mark.parametrize("changes, message", INVALID_PREPROCESSORS)
def test_invalid_preprocessor_config_is_refused(tmp_path, changes, message):
    folder = changed(tmp_path, "hf_vit", "preprocessor_config.json", **changes)
    refuses(f"Cannot load '.*'.*{message}", keras_vit.from_pretrained, folder)


def test_config_with_unsquare_image_size(tmp_path):
    model = randomize(build(image_size=(8, 32), activation="gelu"))
    keras_vit.save_weights(model, tmp_path / "folder", "huggingface")
    without_facts(tmp_path / "folder" / "model.safetensors")
    again = keras_vit.from_pretrained(tmp_path / "folder")
    assert again.get_layer("position_embedding").grid_size == (2, 8)
    np.testing.assert_array_equal(*(answers(m, images(1, 8, 32, 3)) for m in (model, again)))


def test_preprocessor_do_normalize_and_rescale_factor(tmp_path):
    plain = changed(tmp_path, "hf_vit", "preprocessor_config.json", do_normalize=False)
    found = keras_vit.from_pretrained(plain).preprocessing
    assert (found.mean, found.std) == ((0.0,), (1.0,))
    other = changed(tmp_path, "hf_vit", "preprocessor_config.json", rescale_factor=1.0)
    refuses("Expected do_rescale=true and rescale_factor=1/255", keras_vit.from_pretrained, other)


@pytest.mark.parametrize("global_pool, expected", [("token", "token"), ("avg", "gap"), ("max", None)])
def test_timm_folder_sets_pooling_and_model_args(tmp_path, global_pool, expected):
    args = {"num_heads": 4, "act_layer": "gelu_tanh", "norm_layer": "layernorm", "use_rot_pos_emb": False}
    folder = timm_folder(tmp_path, "timm_vit", architecture="vit", global_pool=global_pool, model_args=args)
    if expected is None:
        refuses("global_pool='max'", keras_vit.from_pretrained, folder)
        return
    model = keras_vit.from_pretrained(folder)
    assert model.get_layer("pooling").method == expected and model.get_layer("block_00").attention.num_heads == 4
    assert model.get_layer("block_00").get_config()["activation"] == "gelu_tanh"


def test_architecture_gives_settings_of_a_state_dict(tmp_path, caplog):
    # No published model has this depth.
    sizes = {"hidden_dim": 192, "num_heads": 3, "mlp_dim": 768}
    model = randomize(build(activation="gelu", **sizes))
    keras_vit.save_weights(model, tmp_path / "model.safetensors", "timm")
    path = without_facts(tmp_path / "model.safetensors")
    refuses("Pass preprocessing=, num_heads= to", keras_vit.from_pretrained, path)
    found = keras_vit.from_pretrained(path, architecture="vit_tiny_patch16_224")
    np.testing.assert_array_equal(*(answers(m, images(1, 16, 16, 3)) for m in (found, model)))
    expected = keras_vit.Preprocessing(interpolation="bicubic", crop_fraction=0.9, antialias=True)
    assert found.preprocessing.changed(mean=0.5, std=0.5) == expected and set(found.preprocessing.mean) == {0.5}
    assert "assumed  preprocessing: that of timm's default weights of vit_tiny_patch16_224" in caplog.text
    given = keras_vit.from_pretrained(path, architecture="vit_tiny_patch16_224", **BARE)
    assert given.preprocessing == BARE["preprocessing"]
    refuses("Pass preprocessing= to", keras_vit.from_pretrained, path, architecture="vit_tiny_patch16_224.dino")
    refuses("None, except for a state dict", keras_vit.from_pretrained, GOLDEN_FOLDER / "hf_vit", architecture="x")
    dino = GOLDEN_FOLDER / "original_dinov2.safetensors"
    refuses("of the source 'dinov2_original'", keras_vit.from_pretrained, dino, architecture="vit_tiny_patch16_224")


def test_timm_folder_of_unknown_name_needs_arguments(tmp_path):
    timm_folder(tmp_path, "timm_vit", architecture="vit_new", pretrained_cfg={})
    told = {"num_heads": 4, "activation": "gelu", "layer_norm_epsilon": 1e-6, "pooling": "token"}
    told |= {"rotary_embedding": None, "rotary_grid": None}
    refuses(f"Pass {'=, '.join(told)}= to", keras_vit.from_pretrained, tmp_path)
    close(keras_vit.from_pretrained(tmp_path, **told), golden("timm_vit.safetensors")[1], "timm")


def test_key_bias_in_the_file_is_required():
    model = keras_vit.ViT("B/16", image_size=32, num_classes=10, **{**SIZES, **EXACT, "key_bias": False})
    refuses("key_bias=True", keras_vit.load_weights, model, GOLDEN_FOLDER / "timm_vit.safetensors")


def test_other_channels_take_the_mean_of_the_constants():
    loaded = keras_vit.from_pretrained(GOLDEN_FOLDER / "timm_deit_distilled.safetensors", num_heads=4, in_channels=4)
    for model in (loaded, keras_vit.DeiTTi16(in_channels=1, num_layers=1)):
        assert np.isclose(model.preprocessing.mean[0], (0.485 + 0.456 + 0.406) / 3)
    refuses("Expected a keras_vit.Preprocessing or a dict .* Received: 'imagenet'", build, preprocessing="imagenet")


def test_patches_of_a_known_size_may_be_unsquare(tmp_path):
    model = keras_vit.ViT("Ti/16", patch_size=(8, 16), image_size=16, num_classes=2)
    keras_vit.save_weights(model, tmp_path / "model.npz")
    assert keras_vit.from_pretrained(tmp_path / "model.npz").config == model.config


def test_none_arguments_leave_the_files_settings(tmp_path):
    model = randomize(
        build(activation="gelu", preprocessing={"mean": 0.1}, image_size=(None, None), position_interpolation="bicubic")
    )
    keras_vit.save_weights(model, tmp_path / "model.safetensors", "timm")
    nothing = dict.fromkeys(("activation", "preprocessing", "layer_norm_epsilon", "num_heads", "image_size"))
    assert keras_vit.from_pretrained(tmp_path / "model.safetensors", **nothing).config == model.config
    message = "`num_heads`. Expected an integer of at least 1. Received: 0"
    refuses(message, keras_vit.from_pretrained, tmp_path / "model.safetensors", num_heads=0)
    # The table is resized in the same way at run time and at loading.
    fixed = keras_vit.from_pretrained(tmp_path / "model.safetensors", image_size=(24, 40))
    np.testing.assert_allclose(*(answers(m, images(1, 24, 40, 3)) for m in (model, fixed)), atol=1e-5)


def test_file_of_both_heads_returns_both_or_features(tmp_path):
    path, model = tmp_path / "model.safetensors", build(distillation_token=True, return_both_heads=True)
    keras_vit.save_weights(model, path, "timm", allow="activation")
    assert len(keras_vit.from_pretrained(path).outputs) == 2
    assert keras_vit.from_pretrained(path, num_classes=0).output_shape == (None, 12)


def test_run_keras_file_and_checkpoint_give_the_model(tmp_path):
    model = randomize(build(class_names=list("abcde"), preprocessing={"crop_fraction": 0.9}))
    (tmp_path / "run").mkdir()
    model.save(tmp_path / "run" / "model.keras")
    keras_vit.save_weights(model, tmp_path / "model.npz")
    x = images(2, 16, 16, 3)
    for path in (tmp_path / "run", tmp_path / "run" / "model.keras", tmp_path / "model.npz"):
        read = keras_vit.from_pretrained(path, num_heads=None)
        np.testing.assert_allclose(answers(read, x), answers(model, x), atol=1e-5)
    carried = keras_vit.from_pretrained(tmp_path / "run").get_layer("normalization")
    assert carried.class_names == list("abcde") and carried.preprocessing.crop_fraction == 0.9


def test_path_without_model_is_named(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "recipe.json").write_text("{}")
    not_found(r"a run that has ended.*model\.keras", keras_vit.from_pretrained, tmp_path / "run")
    not_found(r"none\.keras", keras_vit.from_pretrained, tmp_path / "none.keras")
    (tmp_path / "text.keras").write_text("no model")
    refuses(r"text\.keras.*damaged", keras_vit.from_pretrained, tmp_path / "text.keras")


@pytest.mark.parametrize("old, new", DAMAGED_CONFIGS)
def test_damaged_config_of_keras_file_is_named(old, new, tmp_path):
    build().save(tmp_path / "bad.keras")
    rewrite_member(tmp_path / "bad.keras", "config.json", lambda data: data.replace(old, new))
    refuses(r"Cannot read .*bad\.keras", keras_vit.from_pretrained, tmp_path / "bad.keras")
