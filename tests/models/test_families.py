"""Checks that each family of ViTs passes, with small models of the family's settings."""

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit import inspection
from keras_vit.training.optimizers import LayerDecay, layer_depths, layer_multipliers
from keras_vit.training.trainable import enable_lora, freeze, merge_lora
from tests.contract import check_model, randomize
from tests.errors import refuses
from tests.models.small import answers, images
from tests.tiny import TINY

SMALL = {**TINY, "hidden_dim": 24}
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
each = pytest.mark.parametrize("family", FAMILIES)
# These families have every part of a ViT between them.
SEVERAL = ["clip", "dinov2_gated", "dinov3_gated", "eva02_attention_norm", "rope_vit"]
several = pytest.mark.parametrize("family", SEVERAL)


def build(family, **changes):
    builder, settings = FAMILIES[family]
    return builder(**{**SMALL, **settings, **changes})


def random(family, **changes):
    model = build(family, **changes)
    randomize(model, np.random.default_rng(0))
    return model


@each
@pytest.mark.long_elsewhere
def test_family_contract(family, tmp_path):
    model = build(family)
    check_model(model, images(3, 16, 16, 3))
    model.save(tmp_path / "model.keras")
    for again in (keras.saving.load_model(tmp_path / "model.keras"), keras.models.clone_model(model)):
        assert again.config == model.config
    costs = keras_vit.profile(model)
    assert costs.parameters == model.count_params() and costs.not_counted == []


@several
def test_family_attention_maps_and_rollouts(family):
    model, x = random(family), images(2, 16, 16, 3)
    maps = inspection.attention_maps(model, x, blocks=None)
    length = model.config.num_prefix_tokens + 16
    assert [each.shape for each in maps] == [(2, 3, length, length)] * 2
    np.testing.assert_allclose([each.sum(axis=-1) for each in maps], 1, atol=1e-5)
    rollout = inspection.attention_rollout(model, x)
    assert rollout.shape == (2, 4, 4) and np.isfinite(rollout).all()
    if model.config.attention_norm:
        refuses("without attention_norm", inspection.gradient_rollout, model, x)
    else:
        weighted = inspection.gradient_rollout(model, x)
        assert weighted.shape == (2, 4, 4) and weighted.max() > 0
    features = keras_vit.features(model, blocks=(0, 1), format="map")(x)
    assert [tuple(y.shape) for y in features] == [(2, 4, 4, 24)] * 2


@each
def test_family_of_any_size_equals_fixed_size(family):
    fixed, any_size = random(family, image_size=(16, 24)), build(family, image_size=(None, None), grid_size=(4, 6))
    any_size.set_weights(fixed.get_weights())
    x = images(2, 16, 24, 3)
    np.testing.assert_allclose(answers(any_size, x), answers(fixed, x), atol=1e-5)
    assert np.isfinite(answers(any_size, images(2, 20, 12, 3))).all()


@each
def test_family_layer_decay_freezing_and_lora(family, tmp_path):
    model, x = random(family), images(2, 16, 16, 3)
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
