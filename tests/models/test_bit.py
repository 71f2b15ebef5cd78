import json
import re

import keras
import numpy as np
import pytest
from keras import ops

import keras_vit
from keras_vit.variants import RESNETS, decode_resnet
from tests.contract import check_model, check_nan, randomize
from tests.golden import GOLDEN_FOLDER

PARAMETERS = {
    "BiTR50x1": 25_549_352,
    "BiTR50x2": 97_988_712,
    "BiTR50x3": 217_319_080,
    "BiTR101x1": 44_541_480,
    "BiTR101x3": 387_934_888,
    "BiTR152x1": 60_185_128,
    "BiTR152x2": 236_335_208,
    "BiTR152x4": 936_533_224,
    "BiTR200x3": 568_633_000,
}
# Those of the builders that timm has too.
TIMM_NAMES = {
    "BiTR50x1": "resnetv2_50x1_bit",
    "BiTR50x3": "resnetv2_50x3_bit",
    "BiTR101x1": "resnetv2_101x1_bit",
    "BiTR101x3": "resnetv2_101x3_bit",
    "BiTR152x2": "resnetv2_152x2_bit",
    "BiTR152x4": "resnetv2_152x4_bit",
}


def build(**changes):
    """The smallest BiT model: its norms have 32 groups."""
    tiny = {
        "image_size": (32, 41),
        "stages": (2, 1),
        "width_factor": 0.5,
        "num_classes": 5,
        "head_init": "glorot_uniform",
    }
    return keras_vit.BiT("R50x1", **{**tiny, **changes})


def images(*shape):
    return np.random.default_rng(0).normal(size=shape).astype("float32")


@pytest.mark.parametrize(
    "changes", [{}, {"num_classes": 0, "in_channels": 1, "pool_padding": "zeros", "include_preprocessing": True}]
)
def test_contract(changes):
    model = build(**changes)
    check_model(model, images(2, *model.input_shape[1:]))


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameter_count(name, count_params):
    assert count_params(getattr(keras_vit, name)) == PARAMETERS[name]


def test_parameter_counts_are_those_of_timm():
    timm = json.loads((GOLDEN_FOLDER / "param_counts_timm.json").read_text())
    assert {name: timm[timm_name] for name, timm_name in TIMM_NAMES.items()} == {n: PARAMETERS[n] for n in TIMM_NAMES}


def test_a_whole_model_counts_the_same(count_params):
    assert build().count_params() == count_params(build)


def test_layers_are_flat_and_named():
    names = [layer.name for layer in build().layers]
    units = ["stage_1_unit_01", "stage_1_unit_02", "stage_2_unit_01"]
    ends = ["norm", "relu", "pooling", "head"]
    assert names == ["images", "normalization", "root_conv", "root_pool", *units, *ends]


def test_each_stage_but_the_first_halves_the_image():
    model = keras_vit.BiT("R50x1", image_size=(224, 161), stages=(1, 1, 1, 1), width_factor=0.5, num_classes=0)
    shapes = [model.get_layer(f"stage_{i}_unit_01").output.shape[1:] for i in (1, 2, 3, 4)]
    assert shapes == [(56, 41, 128), (28, 21, 256), (14, 11, 512), (7, 6, 1024)]
    assert model.output_shape == (None, 1024)


def test_conventions_are_those_of_bit():
    model = build()
    assert model.get_layer("norm").epsilon == 1e-5
    root = model.get_layer("root_conv")
    assert (root.padding, root.epsilon, root.epsilon_added_to) == ("symmetric", 1e-10, "variance")
    assert model.get_layer("stage_2_unit_01").pre_activation
    assert model.get_layer("root_pool").padding == "lowest"
    timm = build(resnet_epsilons="timm")
    epsilons = [timm.get_layer(name).epsilon for name in ("root_conv", "norm")]
    assert epsilons == [1e-8, 1e-5] and timm.get_layer("stage_2_unit_01").epsilons == "timm"
    assert timm.config.resnet_epsilons == "timm" and model.config.resnet_epsilons == "official"


def test_epsilons_of_other_code_are_refused(tmp_path):
    model = build(resnet_epsilons="timm", pool_padding="zeros")
    with pytest.raises(ValueError, match="resnet_epsilons='official'"):
        keras_vit.save_weights(model, tmp_path / "model.npz")
    keras_vit.save_weights(model, tmp_path / "model.npz", allow="resnet_epsilons")
    with pytest.raises(ValueError, match="resnet_epsilons='timm'"):
        keras_vit.load_weights(build(), tmp_path / "model.npz")
    assert keras_vit.from_pretrained(tmp_path / "model.npz").config == model.config
    changes = {"stages": (2, 1), "width_factor": 0.5, "num_classes": 5, "weights": tmp_path / "model.npz"}
    found = keras_vit.BiT("R50x1", **changes).config
    assert (found.resnet_epsilons, found.pool_padding) == ("timm", "zeros")
    assert keras_vit.BiT("R50x1", resnet_epsilons="official", **changes).config.resnet_epsilons == "official"


def test_a_variant_is_parsed():
    assert decode_resnet("R50x1") == ((3, 4, 6, 3), 1)
    assert decode_resnet("R152x4") == ((3, 8, 36, 3), 4)
    # As many convolutions as its name says: three a unit, the first one and the head.
    assert all(3 * sum(stages) + 2 == depth for depth, stages in RESNETS.items())


@pytest.mark.parametrize("variant", ["R50", "R50x", "R50x0", "R51x1", "r50x1", "50x1", "R50x1.5", "B/16", "", None, 50])
def test_a_variant_that_is_none_is_refused(variant):
    with pytest.raises(ValueError, match=r"`variant`.*Received"):
        keras_vit.BiT(variant)


def test_any_size_at_run_time_is_the_model_of_that_size():
    any_size, fixed = build(image_size=(None, None)), build()
    randomize(fixed, np.random.default_rng(0))
    any_size.set_weights(fixed.get_weights())
    x = images(2, *fixed.input_shape[1:])
    np.testing.assert_allclose(any_size.predict_on_batch(x), fixed.predict_on_batch(x), rtol=1e-5, atol=1e-5)
    assert any_size.predict_on_batch(images(1, 7, 70, 3)).shape == (1, 5)


def test_the_padding_of_the_pool_is_seen_at_the_edge_alone():
    lowest, zeros = build(), build(pool_padding="zeros")
    zeros.set_weights(lowest.get_weights())
    x = images(1, 32, 41, 3)
    taps = [keras.Model(m.input, [m.get_layer("root_pool").output, m.output]) for m in (lowest, zeros)]
    (a, y), (b, z) = ([ops.convert_to_numpy(out) for out in tap.predict_on_batch(x)] for tap in taps)
    np.testing.assert_array_equal(a[:, 1:-1, 1:-1], b[:, 1:-1, 1:-1])
    np.testing.assert_array_equal(np.maximum(a[:, 0], 0), b[:, 0])
    assert np.abs(a - b).max() > 0.1 and np.abs(y - z).max() > 1e-4


@pytest.mark.parametrize("name", ["mixed_bfloat16", "mixed_float16"])
def test_pooling_and_head_compute_in_float32(name):
    float32 = build()
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(name)
    try:
        model = build()
    finally:
        keras.config.set_dtype_policy(before)
    model.set_weights(float32.get_weights())
    assert model.get_layer("stage_1_unit_01").compute_dtype == name.removeprefix("mixed_")
    assert {model.get_layer(layer).compute_dtype for layer in ("pooling", "head")} == {"float32"}
    x = images(2, 32, 41, 3)
    y = model.predict_on_batch(x)
    assert y.dtype == "float32"
    np.testing.assert_allclose(y, float32.predict_on_batch(x), atol=0.1)


def test_a_new_head_is_zero_and_probabilities_are_uniform():
    model = build(head_init="zeros", classifier_activation="softmax")
    np.testing.assert_allclose(model.predict_on_batch(images(1, 32, 41, 3)), np.full((1, 5), 0.2), atol=1e-6)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"image_size": (16, None)}, "`image_size`"),
        ({"in_channels": 0}, "`in_channels`"),
        ({"image_size": None}, "`image_size`"),
        ({"num_classes": None}, "`num_classes`"),
        ({"num_classes": -1}, "`num_classes`"),
        ({"stages": 3}, "`stages`. Expected the number of units of each stage, as in (3, 4, 9). Received: 3"),
        ({"stages": (2, 0)}, "`stages`. Expected an integer of at least 1. Received: 0"),
        ({"width_factor": 0}, "`width_factor`. Expected a number above 0. Received: 0"),
        ({"width_factor": 0.75}, "`width_factor`. Expected a multiple of 0.5"),
        ({"pool_padding": "same"}, "`pool_padding`. Expected one of 'lowest', 'zeros'. Received: 'same'"),
        ({"crop_fraction": 0}, "`crop_fraction`"),
    ],
)
def test_bad_arguments_are_named(changes, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        build(**changes)


def test_no_such_weights_file():
    with pytest.raises(FileNotFoundError, match="nowhere"):
        build(weights="nowhere.npz")


def test_named_builders_explain_themselves():
    assert keras_vit.BiTR50x3.__name__ == "BiTR50x3" and 'keras_vit.BiT("R50x3", ...)' in keras_vit.BiTR50x3.__doc__
    with pytest.raises(TypeError, match="variant"):
        keras_vit.BiTR50x1(variant="R101x1")


@pytest.mark.parametrize("num_classes", [3, 0])
def test_nan_in_an_image_is_nan_in_its_outputs(num_classes):
    check_nan(build(stages=(1, 1), num_classes=num_classes))
