import json
import pickle
import re

import keras
import numpy as np
import pytest

import keras_vit
from tests.contract import check_model, check_nan, randomize
from tests.golden import GOLDEN_FOLDER

PARAMETERS = {
    "RViTTi16": 6_337_704,
    "R26ViTS32": 36_431_912,
    "R26ViTB32": 101_383_976,
    "R50ViTB16": 98_659_112,
    "R50ViTB32": 110_945_832,
    "R50ViTL32": 328_994_856,
}
# Those of the builders that timm has too.
TIMM_NAMES = {
    "RViTTi16": "vit_tiny_r_s16_p8_224",
    "R26ViTS32": "vit_small_r26_s32_224",
    "R50ViTB16": "vit_base_r50_s16_224",
    "R50ViTL32": "vit_large_r50_s32_224",
}
TINY = {
    "image_size": (32, 41),
    "width_factor": 0.5,
    "hidden_dim": 12,
    "num_layers": 1,
    "num_heads": 3,
    "mlp_dim": 20,
    "num_classes": 5,
    "head_init": "glorot_uniform",
}


def build(variant="R50+B/16", **changes):
    """A tiny hybrid, with other arguments where they are given."""
    stages = {} if variant.startswith("R+") else {"stages": (1, 2)}
    return keras_vit.ViT(variant, **{**TINY, **stages, **changes})


def images(*shape):
    return np.random.default_rng(0).normal(size=shape).astype("float32")


@pytest.mark.parametrize(
    "variant, changes, num_tokens",
    [
        ("R50+B/16", {}, 4 * 6 + 1),
        ("R+Ti/16", {"patch_size": (2, 3), "position_embedding": "learned2d", "in_channels": 1}, 4 * 3 + 1),
    ],
)
def test_contract(variant, changes, num_tokens):
    model = build(variant, **changes)
    assert model.get_layer("block_00").output.shape == (None, num_tokens, 12)
    check_model(model, images(2, *model.input_shape[1:]))


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameter_count(name, count_params):
    assert count_params(getattr(keras_vit, name)) == PARAMETERS[name]


def test_parameter_counts_are_those_of_timm():
    timm = json.loads((GOLDEN_FOLDER / "param_counts_timm.json").read_text())
    assert {name: timm[timm_name] for name, timm_name in TIMM_NAMES.items()} == {n: PARAMETERS[n] for n in TIMM_NAMES}


def test_layers_are_flat_and_named():
    names = [layer.name for layer in build().layers]
    root = ["root_conv", "root_norm", "root_relu", "root_pool"]
    units = ["stage_1_unit_01", "stage_2_unit_01", "stage_2_unit_02"]
    assert names[:10] == ["images", "normalization", *root, *units, "patch_embedding"]


def test_conventions_are_those_of_the_hybrids():
    model = build()
    assert model.get_layer("root_norm").epsilon == 1e-6
    root = model.get_layer("root_conv")
    assert (root.padding, root.epsilon, root.epsilon_added_to) == ("same", 1e-5, "std")
    assert not model.get_layer("stage_2_unit_01").pre_activation
    timm = build(resnet_epsilons="timm")
    epsilons = [timm.get_layer(name).epsilon for name in ("root_conv", "root_norm")]
    assert epsilons == [1e-8, 1e-5] and timm.get_layer("stage_2_unit_01").epsilons == "timm"


def test_any_size_at_run_time_is_the_model_of_that_size():
    fixed = build(position_embedding="sincos2d")
    any_size = build(position_embedding="sincos2d", image_size=(None, None))
    randomize(fixed, np.random.default_rng(0))
    any_size.set_weights(fixed.get_weights())
    x = images(2, 32, 41, 3)
    np.testing.assert_allclose(any_size.predict_on_batch(x), fixed.predict_on_batch(x), rtol=1e-5, atol=1e-5)
    assert any_size.predict_on_batch(images(1, 17, 64, 3)).shape == (1, 5)


@pytest.mark.parametrize("variant, grid", [("R50+B/16", 14), ("R50+B/32", 7), ("R26+S/32", 7), ("R+Ti/16", 7)])
def test_the_grid_is_that_of_the_feature_map(variant, grid):
    sizes = {"hidden_dim": 8, "num_layers": 1, "num_heads": 1, "mlp_dim": 8, "width_factor": 0.5}
    with keras.StatelessScope(initialize_variables=False):
        models = [keras_vit.ViT(variant, image_size=size, **sizes) for size in (224, (None, None))]
    keras.utils.clear_session(free_memory=False)
    assert [model.get_layer("position_embedding").grid_size for model in models] == [(grid, grid)] * 2
    assert models[0].get_layer("patch_embedding").output.shape == (None, grid * grid, 8)


def test_feature_maps_are_laid_out_on_the_grid():
    model = build()
    x = images(1, 32, 41, 3)
    maps = keras_vit.features(model, blocks=(0,), format="map").predict_on_batch(x)
    tokens = keras_vit.features(model, blocks=(0,)).predict_on_batch(x)
    assert maps.shape == (1, 4, 6, 12)
    np.testing.assert_allclose(maps.reshape(1, 24, 12), tokens[:, 1:], atol=1e-6)


@pytest.mark.parametrize("name", ["mixed_bfloat16", "mixed_float16"])
def test_mixed_precision(name):
    float32 = build()
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(name)
    try:
        model = build()
    finally:
        keras.config.set_dtype_policy(before)
    model.set_weights(float32.get_weights())
    assert model.get_layer("root_conv").compute_dtype == name.removeprefix("mixed_")
    x = images(2, 32, 41, 3)
    np.testing.assert_allclose(model.predict_on_batch(x), float32.predict_on_batch(x), atol=0.1)


@pytest.mark.parametrize(
    "variant, changes, message",
    [
        ("R50+B/16", {"stages": 3}, "`stages`. Expected the number of units of each stage, as in (3, 4, 9). Received"),
        ("R50+B/16", {"stages": (1, -1)}, "`stages`. Expected an integer of at least 1. Received: -1"),
        ("R50+B/16", {"width_factor": 0.3}, "`width_factor`. Expected a multiple of 0.5"),
        ("B/16", {"stages": None}, "width_factor=1 without a ResNet. Received: width_factor=0.5"),
        # A patch is 8 x 8 places of a feature map a quarter the size.
        ("R+Ti/16", {"image_size": 28}, "at least one patch, 29 x 29 pixels. Received: images of 28 x 28"),
    ],
)
def test_bad_arguments_are_named(variant, changes, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        build(variant, **changes)


def test_the_smallest_image_makes_one_patch():
    assert build("R+Ti/16", image_size=29).get_layer("position_embedding").grid_size == (1, 1)


def test_a_stem_can_be_put_below_any_size():
    model = build("B/16", stages=(), patch_size=4)
    assert model.get_layer("position_embedding").grid_size == (2, 2)


def test_named_builders_explain_themselves():
    builder = keras_vit.R50ViTB16
    assert builder.__name__ == "R50ViTB16" and 'keras_vit.ViT("R50+B/16", ...)' in builder.__doc__
    assert pickle.loads(pickle.dumps(builder)) is builder
    # A name that TensorFlow's scopes allow.
    assert builder(**TINY, stages=(1,)).name == "vit_R50_B16"


def test_nan_in_an_image_is_nan_in_its_logits():
    check_nan(build(stages=(1, 1)))
