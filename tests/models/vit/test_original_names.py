"""Reads files of the papers' own code, which contain wrappers and weights of the pre-training."""

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import keras_vit
from keras_vit.models import catalog as names
from keras_vit.models import zoo
from tests.golden import GOLDEN_FOLDER
from tests.tiny import build, randomize
from tests.weights.helpers import check_refused, check_same, outputs, read, state_of

MORE = np.ones(3, "float32")
# The number and the width of the heads of the tiny ViT.
HEADS = (3, 4)
MAE = [
    ({"num_classes": 0}, {}),
    ({"num_classes": 0}, {"mask_token": MORE, "decoder_pred.weight": MORE, "decoder_blocks.0.norm1.bias": MORE}),
    ({"pooling": "gap", "norm_after_pooling": True, "class_token": True}, {}),
]


def arrays(name):
    return load_file(GOLDEN_FOLDER / f"{name}.safetensors")


def write(path, state):
    save_file(state, path / "file.safetensors")
    return path / "file.safetensors"


def wrapped(path, **wrappers):
    torch = pytest.importorskip("torch")
    tensors = {name: {key: torch.from_numpy(array) for key, array in state.items()} for name, state in wrappers.items()}
    torch.save({**tensors, "epoch": 3}, path / "file.pth")
    return path / "file.pth"


def features(model, name):
    io = np.load(GOLDEN_FOLDER / f"{name}.io.npz")
    return np.abs(outputs(model, io["images"]) - io["features"]).max()


def prefixed(prefix, state, **more):
    return {prefix + key: array for key, array in {**state, **more}.items()}


def test_dino_training_file_gives_teacher(tmp_path):
    head = dict.fromkeys(("head.mlp.0.weight", "head.last_layer.weight_g"), MORE)
    teacher = prefixed("backbone.", arrays("original_dino")) | head
    student = prefixed("module.", {key: array + 1 for key, array in teacher.items()})
    path = wrapped(tmp_path, student=student, teacher=teacher)
    model = keras_vit.from_pretrained(path, image_size=(40, 24))
    assert features(model, "original_dino") < 1e-4 and model.preprocessing.resize_mode == "crop"
    skipped = keras_vit.load_weights(model, path).skipped
    assert skipped["student"] == "the file's 'teacher' is read" and "head.mlp.0.weight" in skipped


def test_ijepa_training_file_gives_target_encoder(tmp_path):
    target = prefixed("module.", arrays("original_ijepa"))
    path = wrapped(tmp_path, encoder={key: array + 1 for key, array in target.items()}, target_encoder=target)
    model = keras_vit.from_pretrained(path, num_heads=2)
    assert read(path)[0].source is not names.sources()["mae"] and features(model, "original_ijepa") < 1e-4


def test_eva02_without_rotary_tables_needs_settings(tmp_path):
    state = arrays("original_eva02_packed")
    twice = {key: array[::-1].copy() if key.endswith("freqs_cos") else array for key, array in state.items()}
    check_refused("Received: other positions, which are not supported", write(tmp_path, twice))
    bare = {key: array for key, array in state.items() if "rope" not in key and "fc_norm" not in key}
    bare |= {"norm.weight": state["fc_norm.weight"], "norm.bias": state["fc_norm.bias"]}
    check_refused("Pass num_heads=, pooling=, rotary_grid= to", write(tmp_path, bare))


def test_dinov3_with_other_periods_is_refused(tmp_path):
    state = arrays("original_dinov3")
    periods = state["rope_embed.periods"]
    for factor in (1 + 2.0**-9, 1 - 2.0**-9):
        path = write(tmp_path, {**state, "rope_embed.periods": periods * np.float32(factor)})
        assert features(keras_vit.from_pretrained(path, image_size=(40, 24)), "original_dinov3") < 1e-4
    path = write(tmp_path, {**state, "rope_embed.periods": periods * np.float32(1.02)})
    check_refused("base theta = 100 in 'rope_embed.periods'. Received: other periods", path)
    key = "blocks.0.attn.qkv.bias_mask"
    check_refused("bias_mask of 0 for the keys", write(tmp_path, {**state, key: 1 - state[key]}))
    del state["rope_embed.periods"]
    check_refused("Pass num_heads=", write(tmp_path, state))


@pytest.mark.parametrize("arguments, more", MAE)
def test_mae_is_read_with_decoder_or_fine_tuned(tmp_path, arguments, more):
    model = randomize(build(activation="gelu", **arguments))
    path = wrapped(tmp_path, model=state_of(model, names.sources()["mae"], HEADS, **more))
    again = keras_vit.from_pretrained(path, num_heads=3)
    check_same(model, again)
    assert read(path)[0].source.name == "mae" and set(keras_vit.load_weights(again, path).skipped) == set(more)


def test_clip_without_openai_keys_needs_activation(tmp_path, monkeypatch):
    clip = {"norm_before_blocks": True, "patch_bias": False, "projection_dim": 7, "num_classes": 0}
    model = randomize(build(activation="quick_gelu", layer_norm_epsilon=1e-5, **clip))
    text = {"transformer.resblocks.0.ln_1.weight": MORE, "positional_embedding": MORE, "logit_scale": MORE[0]}
    state = state_of(model, names.sources()["openai_clip"], HEADS, **text)
    number = np.array(224)
    again = keras_vit.from_pretrained(write(tmp_path, {**state, "input_resolution": number}), num_heads=3)
    check_same(model, again)
    assert again.preprocessing.mean[0] == 0.48145466
    check_refused("Pass activation= to", write(tmp_path, state), num_heads=3)
    check_same(model, keras_vit.from_pretrained(write(tmp_path, state), num_heads=3, activation="quick_gelu"))
    # The published name determines the source, even if OpenCLIP's conversion has another name.
    monkeypatch.setattr(zoo, "fetch", lambda row: write(tmp_path, state))
    check_same(model, keras_vit.from_pretrained("CLIPB32.openai", num_heads=3))


def test_openclip_tower_of_timm_needs_settings(tmp_path):
    model = randomize(build(pooling="map", num_classes=0, activation="gelu"))
    keras_vit.save_weights(model, tmp_path / "timm.safetensors", "timm")
    state = prefixed("visual.trunk.", load_file(tmp_path / "timm.safetensors"))
    path = write(tmp_path, state | {"text.ln_final.weight": MORE})
    check_refused("(?s)preprocessing.*num_heads.*activation.*layer_norm_epsilon", path)
    told = {"num_heads": 3, "activation": "gelu", "layer_norm_epsilon": 1e-6}
    check_same(model, keras_vit.from_pretrained(path, preprocessing=keras_vit.Preprocessing(), **told))


def test_dinov2_classifier_pools_class_token_and_mean(tmp_path):
    settings = {"layer_scale_init": 0.1, "activation": "gelu", "pooling": "token_gap"}
    model = randomize(build(**settings))
    state = prefixed("backbone.", state_of(model, names.sources()["dinov2_original"], HEADS, mask_token=MORE))
    head = {key.replace("backbone.head", "linear_head"): array for key, array in state.items()}
    again = keras_vit.from_pretrained(write(tmp_path, head), num_heads=3)
    check_same(model, again)
    assert again.config.pooling == "token_gap"
