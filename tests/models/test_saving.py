import json
import os

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.weights.read import open_checkpoint
from tests.golden import GOLDEN_FOLDER
from tests.models.coatnet import test_model as coatnet
from tests.models.vt_resnet import test_model as vt_resnet
from tests.tiny import TEST_VIT, build, randomize
from tests.weights.helpers import check_not_saved, check_refused, check_same, unchanged

EVA02 = {"rotary_embedding": "eva02", "hidden_dim": 24}
TOKEN_GAP = {"pooling": "gap", "class_token": True}
DINOV2 = {"layer_scale_init": 0.1, "mlp_dim": 24, "num_classes": 0}
NOT_WRITTEN = [
    ("timm.safetensors", {}, "activation='gelu'"),
    ("timm", {}, "settings that no architecture of timm has.* Write a state dict: a path that ends in .safetensors"),
    ("timm", {**TEST_VIT, "num_layers": 5}, "The nearest, test_vit, differs in num_layers=5 .6 in timm.*"),
    ("timm", {**TEST_VIT, "image_size": (None, None)}, "position_interpolation='linear'"),
    ("timm.safetensors", {"projection_dim": 8}, "cannot store 1 weights"),
    ("timm.safetensors", {"activation": "gelu", "token_merging": 2}, "has token_merging=2"),
    ("timm.safetensors", {**EVA02, "pooling": "map", "activation": "gelu"}, 'pooling="map" together with'),
    ("timm.safetensors", {"key_bias": False, "distillation_token": True}, "a distillation token together with"),
    ("npz", {"gated_mlp": True}, "gated_mlp=True"),
    ("big_vision", {"num_registers": 1}, "cannot store 1 weights"),
    ("huggingface", TOKEN_GAP, r"The nearest, ViT.*, needs pooling='token' \(received 'gap'\)"),
    ("huggingface", {"activation": "leaky_relu"}, "needs activation='one that transformers has'"),
    ("huggingface", {**DINOV2, "mlp_dim": 25}, r"mlp_dim='a size that an mlp_ratio gives' \(received 25\)"),
    ("huggingface", {**DINOV2, "image_size": (16, 24)}, "image_size and patch_size='squares'"),
    ("huggingface", {"stages": (1,), "width_factor": 0.5, "patch_size": 1}, r"stages=None \(received \(1,\)\)"),
    ("timm.safetensors", {"pooling": "token_gap", "activation": "gelu"}, 'has pooling="token_gap"'),
    ("npz", {"pooling": "map"}, "pooling/probe"),
    ("npz", TOKEN_GAP, "and a class token"),
    ("huggingface", {"hidden_dim": 16, "head_dim": 5}, "a num_heads that divides hidden_dim"),
    ("huggingface", {"distillation_token": True, "num_classes": 0}, "needs distillation_token=False"),
    ("flax", {}, "Expected one of 'npz', 'big_vision', 'timm', 'huggingface'"),
]


def test_file_is_readable_as_umask_allows(tiny, tmp_path):
    keras_vit.save_weights(tiny, tmp_path / "tiny.npz")
    mask = os.umask(0)
    os.umask(mask)
    assert (tmp_path / "tiny.npz").stat().st_mode & 0o044 == 0o666 & ~mask & 0o044
    check_not_saved("nowhere", tiny, tmp_path / "nowhere" / "model.npz", error=FileNotFoundError)


BARE = {"preprocessing": keras_vit.Preprocessing()}
ROUND_TRIPS = [
    ("npz", {"hidden_dim": 16, "head_dim": 5}),
    ("big_vision", {"pooling": "map"}),
    ("big_vision", {"representation_size": 8}),
    ("big_vision", {"class_token_position": False}),
    ("timm", {"pooling": "map", "activation": "gelu"}),
    ("timm", {"pooling": "gap", "activation": "gelu_tanh"}),
    ("timm", {"pooling": "gap", "norm_after_pooling": True, "activation": "gelu", "image_size": (16, 24)}),
    ("huggingface", {}),
    ("huggingface", {"distillation_token": True, "activation": "gelu"}),
    ("huggingface", {"num_classes": 0, "representation_size": 12}),
]
TIMM = {"num_registers": 2, "layer_scale_init": 0.1, "qk_norm": True, "activation": "gelu"}
TIMM_TRIP = pytest.param("timm", {"distillation_token": True, **TIMM}, marks=pytest.mark.every_backend)


@pytest.mark.parametrize("format, arguments", [TIMM_TRIP, *ROUND_TRIPS])
def test_save_and_load_give_same_model(tmp_path, format, arguments):
    model = randomize(build(preprocessing={"mean": 0.4, "std": 0.3, "interpolation": "bicubic"}, **arguments))
    path = tmp_path / {"huggingface": "folder", "timm": "model.safetensors"}.get(format, "model.npz")
    keras_vit.save_weights(model, path, format)
    again = keras_vit.from_pretrained(path)
    assert unchanged(again, model.get_weights())
    check_same(model, again)
    assert again.config.position_interpolation == model.config.position_interpolation
    if format != "big_vision":
        ours, theirs = (m.preprocessing for m in (model, again))
        assert np.allclose(ours.mean, theirs.mean[:1]) and theirs.interpolation == "bicubic" and theirs.antialias


@pytest.mark.parametrize(
    "name, told",
    [
        ("vit_token_prelogits.npz", {}),
        ("vit_gap.npz", {}),
        ("bit_2111_x0.5.npz", {"pool_padding": "lowest"}),
        ("hybrid_r50ish_patch1.npz", {}),
        ("bigvision_map.npz", {}),
        ("timm_vit_qknorm_map.safetensors", {**BARE, "activation": "gelu"}),
        ("timm_hybrid.safetensors", {"num_heads": 4, "grid_size": (8, 12), **BARE}),
        ("timm_hybrid_stem.safetensors", {"num_heads": 4, "grid_size": (2, 3), **BARE}),
        ("timm_bit.safetensors", BARE),
        ("hf_bit", BARE),
    ],
)
def test_golden_files_come_back_bit_for_bit(tmp_path, name, told):
    formats = {"bigvision": "big_vision", "timm": "timm", "hf": "huggingface"}
    format, source = formats.get(name.split("_")[0], "npz"), GOLDEN_FOLDER / name
    model = keras_vit.from_pretrained(source, **told)
    # timm's format writes a folder if the name has no suffix.
    back = tmp_path / ("back.safetensors" if format == "timm" else "back")
    keras_vit.save_weights(model, back, format)
    before, after = (dict(f.read(f.entries)) for f in map(open_checkpoint, (source, back)))
    assert set(before) == set(after)
    for key, array in before.items():
        assert array.tobytes() == after[key].tobytes(), key


@pytest.mark.parametrize("format, arguments, message", NOT_WRITTEN)
def test_model_beyond_format_is_not_written(tmp_path, format, arguments, message):
    format, _, suffix = format.partition(".")
    check_not_saved(message, build(**arguments), tmp_path / f"model.{suffix}".rstrip("."), format)
    assert not os.listdir(tmp_path)


def test_huggingface_config_has_settings_of_model(tmp_path):
    model = build(image_size=(16, 24), layer_norm_epsilon=1e-12, preprocessing={"std": (0.1, 0.2, 0.3)})
    keras_vit.save_weights(model, tmp_path / "folder", "huggingface")
    files = [tmp_path / "folder" / name for name in ("config.json", "preprocessor_config.json")]
    config, preprocessor = (json.loads(file.read_text()) for file in files)
    assert config["architectures"] == ["ViTForImageClassification"] and config["image_size"] == [16, 24]
    assert config["hidden_act"] == "gelu_pytorch_tanh" and config["layer_norm_eps"] == 1e-12
    assert preprocessor["image_mean"] == [0.5] * 3 and preprocessor["image_std"] == [0.1, 0.2, 0.3]
    assert preprocessor["size"] == {"height": 16, "width": 24}


def test_huggingface_config_of_bit_comes_back(tmp_path):
    bicubic = keras_vit.Preprocessing(interpolation="bicubic")
    model = keras_vit.from_pretrained(GOLDEN_FOLDER / "hf_bit", image_size=(64, 96), preprocessing=bicubic)
    keras_vit.save_weights(model, tmp_path / "folder", "huggingface")
    folders = GOLDEN_FOLDER / "hf_bit", tmp_path / "folder"
    before, after = (json.loads((folder / "config.json").read_text()) for folder in folders)
    assert all(before[name] == value for name, value in after.items())
    assert keras_vit.from_pretrained(tmp_path / "folder").config == model.config


def test_resnet_that_peers_lack_is_refused(tmp_path):
    model = keras_vit.BiT(
        "R50x1", stages=(1,) * 5, width_factor=0.5, num_classes=2, resnet_epsilons="timm", pool_padding="zeros"
    )
    for name, format in (("model.safetensors", "timm"), ("folder", "huggingface")):
        check_not_saved("a ResNet of more than four stages", model, tmp_path / name, format)
    small = keras_vit.BiT("R50x1", stages=(1,), width_factor=0.5, resnet_epsilons="timm", pool_padding="zeros")
    check_not_saved("for which timm has no name", small, tmp_path / "folder", "timm")


def test_record_has_settings_of_replaced_head(tmp_path):
    whole, head = build(class_names=list("abcde")), keras.layers.Dense(3, activation="softmax", name="head")
    model = randomize(keras.Model(whole.input, head(whole.get_layer("pre_logits").output)))
    keras_vit.save_weights(model, tmp_path / "model.npz")
    again = keras_vit.from_pretrained(tmp_path / "model.npz")
    # Models that Keras cuts compute all tokens of the last block, such as the model with the user's own head.
    check_same(model, keras.Model(again.input, again.output))
    assert again.config.num_classes == 3 and again.config.class_names is None
    check_not_saved("has classifier_activation='softmax'", model, tmp_path / "folder", "huggingface")
    softened = keras.Model(whole.input, keras.layers.Softmax()(whole.output))
    keras_vit.save_weights(softened, tmp_path / "softened.npz")
    assert keras_vit.from_pretrained(tmp_path / "softened.npz").config.classifier_activation == "softmax"
    cut = build(representation_size=8)
    cut = keras.Model(cut.input, cut.get_layer("pooling").output)
    keras_vit.save_weights(cut, tmp_path / "cut.npz")
    assert keras_vit.from_pretrained(tmp_path / "cut.npz").config.representation_size is None
    other = keras_vit.from_pretrained(tmp_path / "model.npz", num_classes=7)
    assert other.config.classifier_activation == "linear"


def test_replaced_pooling_is_refused(tmp_path):
    tokens = build()
    pooled = keras.layers.GlobalAveragePooling1D()(tokens.get_layer("norm").output)
    model = keras.Model(tokens.input, keras.layers.Dense(5, name="head")(pooled))
    check_not_saved('has pooling="none"', model, tmp_path / "model.npz")
    keras_vit.save_weights(tokens, tmp_path / "tokens.npz")
    check_refused("pooling='token'", tmp_path / "tokens.npz", into=model)


def test_own_activation_function_must_be_passed_again(tmp_path):
    def of_ones_own(x):
        return 2 * x

    model = randomize(build(activation=of_ones_own))
    keras_vit.save_weights(model, tmp_path / "model.npz", allow="activation")
    keras_vit.load_weights(build(activation=of_ones_own), tmp_path / "model.npz", allow="activation")
    check_refused("(?s)Pass activation= .*a function defined by the user", tmp_path / "model.npz")
    assert keras_vit.from_pretrained(tmp_path / "model.npz", activation=of_ones_own).config.activation is of_ones_own


def test_family_without_format_is_refused(tmp_path):
    model, message = vt_resnet.build(), "Expected a model of a family that other code bases have.*"
    for format in ("npz", "big_vision", "timm", "huggingface"):
        check_not_saved(message + "family 'vt_resnet'. Use model.save", model, tmp_path / "model.npz", format=format)
    assert not list(tmp_path.iterdir())
    model.save_weights(tmp_path / "model.weights.h5")
    check_refused(message + " or model.save_weights and model.load_weight", tmp_path / "model.weights.h5", into=model)
    for other, name in ((model, "VTResNet"), (coatnet.build(), "CoAtNet")):
        other.save_weights(tmp_path / "model.weights.h5")
        check_refused(f"of a {name}. Build the same .* model.load_weights", tmp_path / "model.weights.h5")


@pytest.mark.parametrize("builder, num_features", [("ViTTi16", 192), ("BiTR50x1", 2048), ("EfficientNetB0", 1280)])
@pytest.mark.parametrize("num_classes", [0, 5])
def test_timm_folder_states_its_features(tmp_path, builder, num_features, num_classes):
    of_timm = {"resnet_epsilons": "timm", "pool_padding": "zeros"} if "BiT" in builder else {}
    model = getattr(keras_vit, builder)(num_classes=num_classes, **of_timm)
    keras_vit.save_weights(model, tmp_path / "timm", format="timm")
    assert json.loads((tmp_path / "timm" / "config.json").read_text())["num_features"] == num_features
