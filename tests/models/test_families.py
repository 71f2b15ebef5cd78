"""What each family of ViTs must do, tried on small models of its record."""

import keras
import numpy as np
import pytest
from keras import ops

import keras_vit
from keras_vit import export, inspection, pretraining
from keras_vit.training.layer_decay import LayerDecay, layer_depths, layer_multipliers
from keras_vit.training.trainable import enable_lora, freeze, merge_lora
from tests.contract import LOW_PRECISION, check_model, randomize

SMALL = {
    "image_size": 16,
    "patch_size": 4,
    "hidden_dim": 24,
    "num_layers": 2,
    "num_heads": 3,
    "mlp_dim": 20,
    "num_classes": 5,
    "head_init": "glorot_uniform",
}
FAMILIES = {
    "clip": (keras_vit.CLIPB16, {"projection_dim": 6}),
    "dinov2_gated": (keras_vit.DINOv2G14, {"pooling": "token_gap", "num_registers": 4}),
    "dinov3": (keras_vit.DINOv3S16, {}),
    "dinov3_gated": (keras_vit.DINOv3H16Plus, {}),
    "dinov3_7b": (keras_vit.DINOv37B16, {}),
    "eva02": (keras_vit.EVA02S14, {}),
    "eva02_mlp_norm": (keras_vit.EVA02B14, {}),
    "eva02_attention_norm": (keras_vit.EVA02B14, {"attention_norm": True}),
    "ijepa": (keras_vit.IJEPAH14, {}),
    "rope_vit": (keras_vit.ViTS16, {"rotary_embedding": "axial", "position_embedding": "none"}),
    "siglip": (keras_vit.SigLIPGOpt16, {}),
}
ROTARY = [name for name in FAMILIES if "dinov3" in name or "eva02" in name or "rope" in name]
each = pytest.mark.parametrize("family", FAMILIES)
# Together they have every part.
SEVERAL = ["clip", "dinov2_gated", "dinov3_gated", "eva02_attention_norm", "rope_vit"]
several = pytest.mark.parametrize("family", SEVERAL)
# Tracing and compiling take TensorFlow far longer than these few steps; JAX cannot train without.
COMPILING = {} if keras.backend.backend() == "jax" else {"run_eagerly": True, "jit_compile": False}


def build(family, **changes):
    builder, settings = FAMILIES[family]
    return builder(**{**SMALL, **settings, **changes})


def random(family, **changes):
    model = build(family, **changes)
    randomize(model, np.random.default_rng(0))
    return model


def images(count=2, height=16, width=16):
    return np.random.default_rng(1).normal(size=(count, height, width, 3)).astype("float32")


def answers(model, x):
    return ops.convert_to_numpy(ops.cast(model(x), "float32"))


@each
def test_a_family_keeps_the_contract(family, tmp_path):
    model = build(family)
    check_model(model, images(3))
    model.save(tmp_path / "model.keras")
    for again in (keras.saving.load_model(tmp_path / "model.keras"), keras.models.clone_model(model)):
        assert again.config == model.config


@each
def test_training_lowers_the_loss(family):
    model = build(family)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(1e-2), loss, **COMPILING)
    losses = model.fit(images(4), np.arange(4), epochs=5, verbose=0).history["loss"]
    assert np.isfinite(losses).all() and losses[-1] < losses[0]


@each
def test_attention_is_inspected(family):
    model, x = random(family), images()
    maps = inspection.attention_maps(model, x, blocks=None)
    length = model.num_prefix_tokens + 16
    assert [each.shape for each in maps] == [(2, 3, length, length)] * 2
    np.testing.assert_allclose([each.sum(axis=-1) for each in maps], 1, atol=1e-5)
    rollout = inspection.attention_rollout(model, x)
    assert rollout.shape == (2, 4, 4) and np.isfinite(rollout).all()
    if model.config.attention_norm:
        with pytest.raises(ValueError, match="without attention_norm"):
            inspection.gradient_rollout(model, x)
    else:
        weighted = inspection.gradient_rollout(model, x)
        assert weighted.shape == (2, 4, 4) and weighted.max() > 0
    features = keras_vit.features(model, blocks=(0, 1), format="map")(x)
    assert [tuple(y.shape) for y in features] == [(2, 4, 4, 24)] * 2


@each
def test_any_image_size_gives_the_same(family):
    fixed, any_size = random(family, image_size=(16, 24)), build(family, image_size=(None, None), grid_size=(4, 6))
    any_size.set_weights(fixed.get_weights())
    x = images(height=16, width=24)
    np.testing.assert_allclose(answers(any_size, x), answers(fixed, x), atol=1e-5)
    assert np.isfinite(answers(any_size, images(height=20, width=12))).all()


@each
def test_low_precision_stays_near(family):
    model, low = random(family), build(family, dtype="mixed_bfloat16")
    low.set_weights(model.get_weights())
    expected, found = answers(model, images()), answers(low, images())
    assert np.abs(found - expected).max() <= LOW_PRECISION["mixed_bfloat16"][1] * np.abs(expected).max()


@each
def test_parts_are_trained_as_asked(family, tmp_path):
    model, x = random(family), images()
    depths = layer_depths(model)
    layers = {layer.name for layer in model.layers}
    assert {depths[name] for name in layers & {"norm_before_blocks", "rotary_embedding", "registers"}} <= {0}
    assert {depths[name] for name in layers & {"norm", "fc_norm", "projection", "pooling", "head"}} == {3}
    model.compile(LayerDecay(keras.optimizers.SGD(0.1), layer_multipliers(model, 0.5)), "mse", jit_compile=False)
    frozen = freeze(model, blocks=1)
    assert frozen.trainable + frozen.frozen == model.count_params()
    assert freeze(model).trainable == model.head.count_params()
    before = answers(model, x)
    enable_lora(model, rank=2)
    np.testing.assert_allclose(answers(model, x), before, atol=1e-5)
    names = [weight.path for weight in model.trainable_weights]
    assert len(names) == 2 * 2 * 4 + 2
    for weight in model.trainable_weights:
        weight.assign(weight + 0.1)
    model.save(tmp_path / "lora.keras")
    again = keras.saving.load_model(tmp_path / "lora.keras")
    assert [weight.path for weight in again.trainable_weights] == names and again.config == model.config
    changed = answers(model, x)
    np.testing.assert_array_equal(answers(again, x), changed)
    np.testing.assert_allclose(answers(merge_lora(model), x), changed, atol=1e-4)


@each
def test_costs_are_counted(family):
    model = build(family)
    costs = keras_vit.profile(model)
    assert costs.parameters == model.count_params() and costs.not_counted == []


@several
def test_pretraining_hides_patches(family):
    x = images(4)
    methods = [pretraining.SimMIM(build(family), mask_unit=4), pretraining.MaskedPatchPrediction(build(family))]
    if family not in ROTARY:
        methods.append(pretraining.MAE(build(family), decoder_num_layers=1))
    for model in methods:
        model.compile("adam", **COMPILING)
        assert np.isfinite(model.fit(x, verbose=0).history["loss"]).all()


@pytest.mark.parametrize("family", ROTARY)
def test_what_needs_all_patches_is_refused(family):
    with pytest.raises(ValueError, match="without relative or rotary positions"):
        pretraining.MAE(build(family))
    for name, value in (("patch_dropout_rate", 0.5), ("token_merging", 2)):
        with pytest.raises(ValueError, match=f"Expected {name}=0 with relative or rotary positions"):
            build(family, **{name: value})


@several
@pytest.mark.backends("tensorflow")
def test_a_saved_model_answers_the_same(family, tmp_path):
    pytest.importorskip("tensorflow")
    assert export.saved_model(random(family, image_size=(None, None)), tmp_path / "1").difference < 1e-4


@several
def test_onnx_answers_the_same(family, tmp_path):
    pytest.importorskip("onnxruntime")
    assert export.onnx(random(family), tmp_path / "model.onnx").difference < 1e-4
