"""Checks that each family of ViTs passes, with small models of the family's settings."""

import numpy as np
import pytest

import keras_vit
from keras_vit import inspection
from tests.contract import check_model
from tests.errors import refuses
from tests.models.small import answers, images
from tests.tiny import TINY, randomize

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
    return randomize(build(family, **changes), scale=0.1)


@each
def test_family_contract(family):
    model = build(family)
    check_model(model, images(3, 16, 16, 3))
    assert keras_vit.profile(model).not_counted == []


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
