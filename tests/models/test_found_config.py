"""Facts of folders that are unknown or not understood: refused by name, or set by an argument."""

import pytest

import keras_vit
from tests.weights.helpers import changed, check_refused, read, timm_folder

BARE = {"preprocessing": keras_vit.Preprocessing()}
FLOWERS = tuple(f"flower {i}" for i in range(10))
UNKNOWN_PROCESSORS = [
    ({"do_flip_channel_order": True}, "Received: .*do_flip_channel_order"),
    ({"image_processor_type": "LevitImageProcessor"}, "image_processor_type as one of ViTImageProcessor"),
    ({"size": {"longest_edge": 224}}, "size with shortest_edge, or with height and width"),
    ({"do_resize": False}, "do_resize=true"),
]
EPSILONS = [
    ({"layer_norm_eps": 1e-5}, "stated in the file", 1e-5),
    ({"layer_norm_eps": None}, "default of transformers", 1e-12),
    ({"model_type": "vit_msn", "layer_norm_eps": ...}, "default of transformers", 1e-6),
]
STATED = [
    ("hf_vit", {"interpolation": "bilinear", "crop_fraction": 1.0, "std": (0.5,)}),
    ("hf_deit_distilled", {"interpolation": "bicubic", "crop_fraction": 0.875, "std": (0.5,)}),
    ("timm", {"interpolation": "bicubic", "crop_fraction": 0.875, "std": (0.229, 0.224, 0.225)}),
]


@pytest.mark.parametrize("name", ["hf_vit", "hf_bit", "hf_dinov3_gated"])
def test_unknown_key_of_config_is_refused_by_name(tmp_path, name):
    folder = changed(tmp_path, name, use_parallel_blocks=True)
    check_refused("its config.json has keys that keras_vit does not read: use_parallel_blocks=True", folder)
    # Empty values switch nothing on.
    read(changed(tmp_path, name, use_parallel_blocks=None))


@pytest.mark.parametrize("changes, message", UNKNOWN_PROCESSORS)
def test_unknown_processor_is_named_and_overridden(tmp_path, changes, message):
    folder = changed(tmp_path, "hf_vit", "preprocessor_config.json", **changes)
    check_refused(f"(?s)Pass preprocessing= to .*{message}", folder)
    given = keras_vit.Preprocessing(mean=0.4)
    assert keras_vit.from_pretrained(folder, preprocessing=given).preprocessing == given


GAPS, NUMBERS = dict.fromkeys(map(str, range(0, 20, 2)), "a"), {str(i): i for i in range(10)}


@pytest.mark.parametrize("labels", [{"0": "a"}, GAPS, NUMBERS, ["a"] * 10])
def test_bad_labels_are_overridden_by_class_names(tmp_path, labels):
    folder = changed(tmp_path, "hf_vit", id2label=labels)
    check_refused(r"(?s)Pass class_names= to .*config\.json is invalid\. Expected .* Received: ", folder, **BARE)
    assert keras_vit.from_pretrained(folder, class_names=FLOWERS, **BARE).config.class_names == FLOWERS
    assert keras_vit.from_pretrained(folder, class_names=None, **BARE).config.class_names is None
    # A new head has other classes.
    assert keras_vit.from_pretrained(folder, num_classes=3, **BARE).config.class_names is None


def test_bad_task_is_overridden(tmp_path):
    folder = changed(tmp_path, "hf_vit", problem_type="ranking")
    check_refused("(?s)Pass task= to .*Expected problem_type as one of", folder, **BARE)
    assert keras_vit.from_pretrained(folder, task="regression", **BARE).config.task == "regression"
    assert keras_vit.from_pretrained(folder, task="multi_label", **BARE).config.task == "multi_label"
    check_refused("`task`. Expected one of .*Received: 'ranking'", folder, task="ranking", **BARE)


def test_other_kind_of_rotary_positions_is_refused(tmp_path):
    folder = changed(tmp_path, "hf_dinov3_gated", rope_parameters={"rope_type": "linear", "factor": 2.0})
    check_refused("rope_type='linear' is not supported", folder)


@pytest.mark.parametrize("changes, origin, epsilon", EPSILONS)
def test_missing_epsilon_is_that_of_the_model_type(tmp_path, changes, origin, epsilon):
    found = read(changed(tmp_path, "hf_vit", **changes))[1].values["layer_norm_epsilon"]
    assert (found.origin, found.value) == (origin, epsilon)


@pytest.mark.parametrize("constants,origin", [({"resample": 3}, "stated in the file"), ({}, "default of transformers")])
def test_missing_constants_of_a_processor_are_defaults(tmp_path, constants, origin):
    processor = {"image_processor_type": "ViTImageProcessor", **constants}
    folder = changed(tmp_path, "hf_vit", "preprocessor_config.json", **processor)
    assert read(folder)[1].values["preprocessing"].origin == origin


@pytest.mark.parametrize("name, others", STATED)
def test_single_stated_constant_leaves_the_rest_defaults(tmp_path, name, others):
    if name == "timm":
        facts = {"architecture": "vit_tiny_patch16_224", "model_args": {"num_heads": 4}}
        folder = timm_folder(tmp_path, "timm_vit", **facts, pretrained_cfg={"mean": [0.25] * 3})
    else:
        folder = changed(tmp_path, name, "preprocessor_config.json", image_mean=[0.25] * 3)
    found = read(folder)[1]
    assert found.get("preprocessing").mean == (0.25,) * 3 and found.stated_constants == {"mean", "value_range"}
    assert {field: getattr(found.get("preprocessing"), field) for field in others} == others
    # Only stated constants are compared with the model's.
    keras_vit.load_weights(keras_vit.from_pretrained(folder, preprocessing={"std": 0.1}), folder)
    other = keras_vit.from_pretrained(folder, preprocessing={"mean": 0.3})
    check_refused(r"preprocessing=\{'mean': \(0.25, ", folder, into=other)


def test_mean_of_each_channel_equals_a_single_mean(tmp_path):
    constants = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3, "resample": 2}
    folder = changed(tmp_path, "hf_vit", "preprocessor_config.json", **constants)
    # Pillow's antialiasing and rounding follow from transformers, and are not compared.
    own = keras_vit.Preprocessing(mean=0.5, std=0.5, interpolation="bilinear", antialias=False)
    keras_vit.load_weights(keras_vit.from_pretrained(folder, preprocessing=own), folder)


def test_missing_task_and_class_names_are_defaults(tmp_path):
    values = read(changed(tmp_path, "hf_vit", problem_type=None, id2label=None))[1].values
    assert values["task"].origin == values["class_names"].origin == "default of transformers"
    stated = read(changed(tmp_path, "hf_vit", problem_type="multi_label_classification"))[1].values
    assert stated["task"].origin == "stated in the file"
