"""Facts of folders that are unknown or not understood: refused by name, or set by an argument."""

import json
import shutil

import pytest

import keras_vit
from keras_vit.models.checkpoint import Checkpoint
from tests.golden import GOLDEN_FOLDER
from tests.weights.helpers import check_refused

FLOWERS = tuple(f"flower {i}" for i in range(10))


def changed(tmp_path, name, file="config.json", **changes):
    """Copies a golden folder and changes one of its JSON files; a value of ... removes the key."""
    copy = shutil.copytree(GOLDEN_FOLDER / name, tmp_path / "copy", dirs_exist_ok=True)
    path = copy / file
    content = {**(json.loads(path.read_text()) if path.exists() else {}), **changes}
    path.write_text(json.dumps({key: value for key, value in content.items() if value is not ...}))
    return copy


@pytest.mark.parametrize(
    "name, key",
    [("hf_vit", "use_parallel_blocks"), ("hf_bit", "use_parallel_blocks"), ("hf_dinov3_gated", "use_parallel_blocks")],
)
def test_unknown_key_of_config_is_refused_by_name(tmp_path, name, key):
    folder = changed(tmp_path, name, **{key: True})
    check_refused(f"its config.json has keys that this package does not know: {key}=True", folder)
    # Empty values switch nothing on.
    Checkpoint(changed(tmp_path, name, **{key: None}))


def test_unknown_key_of_processor_is_named_and_overridden(tmp_path):
    folder = changed(tmp_path, "hf_vit", "preprocessor_config.json", do_flip_channel_order=True)
    check_refused("(?s)Pass preprocessing= to .*Received: .*do_flip_channel_order", folder)
    given = keras_vit.Preprocessing(mean=0.4)
    assert keras_vit.from_pretrained(folder, preprocessing=given).preprocessing == given


def test_unknown_image_processor_is_overridden(tmp_path):
    folder = changed(tmp_path, "hf_vit", "preprocessor_config.json", image_processor_type="LevitImageProcessor")
    check_refused("(?s)Pass preprocessing= to .*image_processor_type as one of", folder)
    assert keras_vit.from_pretrained(folder, preprocessing=keras_vit.Preprocessing()).config.hidden_dim == 64


@pytest.mark.parametrize("labels", [{"0": "a"}, {"0": "a", "2": "b"}, ["a"] * 10])
def test_bad_labels_are_overridden_by_class_names(tmp_path, labels):
    folder = changed(tmp_path, "hf_vit", id2label=labels)
    check_refused(r"(?s)Pass class_names= to .*config\.json\. Expected .* Received: ", folder)
    assert keras_vit.from_pretrained(folder, class_names=FLOWERS).config.class_names == FLOWERS
    assert keras_vit.from_pretrained(folder, class_names=None).config.class_names is None
    # A new head has other classes.
    assert keras_vit.from_pretrained(folder, num_classes=3).config.class_names is None


def test_bad_task_is_overridden(tmp_path):
    folder = changed(tmp_path, "hf_vit", problem_type="ranking")
    check_refused("(?s)Pass task= to .*Expected problem_type as one of", folder)
    assert keras_vit.from_pretrained(folder, task="regression").config.task == "regression"
    assert keras_vit.from_pretrained(folder, task="multi_label").config.task == "multi_label"
    check_refused("`task`. Expected one of .*Received: 'ranking'", folder, task="ranking")


@pytest.mark.parametrize("model_type, epsilon", [("vit", 1e-12), ("vit_msn", 1e-6)])
def test_missing_epsilon_is_that_of_the_model_type(tmp_path, model_type, epsilon):
    folder = changed(tmp_path, "hf_vit", model_type=model_type, layer_norm_eps=...)
    found = keras_vit.from_pretrained(folder, preprocessing=keras_vit.Preprocessing())
    assert found.config.layer_norm_epsilon == epsilon


def test_other_kind_of_rotary_positions_is_refused(tmp_path):
    folder = changed(tmp_path, "hf_dinov3_gated", rope_parameters={"rope_type": "linear", "factor": 2.0})
    check_refused("rope_type='linear', which is not supported", folder)


def test_each_value_has_an_origin():
    values = Checkpoint(GOLDEN_FOLDER / "hf_vit").found.values
    assert values["num_heads"].origin == "stated in the file" and values["hidden_dim"].origin == "stated in the file"
    assert values["preprocessing"].origin == "default of transformers"
    values = Checkpoint(GOLDEN_FOLDER / "timm_deit_distilled.safetensors").found.values
    assert values["activation"].origin == "default of timm" and values["activation"].certain
    assert not values["pooling"].certain
