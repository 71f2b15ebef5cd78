"""Costs of layers. tests/models/test_profile.py compares those of whole models with PyTorch's counter."""

import keras
import numpy as np
import pytest
from keras import ops

import keras_vit
from keras_vit.layers import MLP, AttentionPooling
from keras_vit.layers.squeeze_excitation import SqueezeExcitation


def multiply_adds(layer, *shape):
    x = keras.Input(shape)
    return keras_vit.profile(keras.Model(x, layer(x))).multiply_adds


def test_multiply_adds_of_attention_pooling():
    query, keys_values = 12 * 12, 2 * 4 * 12 * 12
    found = multiply_adds(AttentionPooling(num_heads=3, mlp_dim=20, num_prefix_tokens=1), 5, 12)
    assert found == query + keys_values + 2 * 4 * 12 + 12 * 12 + 2 * 12 * 20


def test_unknown_operation_in_layer_makes_count_unknown():
    layer, x = MLP(8, activation=lambda x: ops.einsum("bnc,bnc->bnc", x, x), gated=True), keras.Input((5, 12))
    assert keras_vit.profile(keras.Model(x, layer(x))).not_counted == [layer.name]


@pytest.mark.every_backend
def test_counting_leaves_outputs_unchanged():
    layer, images = SqueezeExcitation(4), np.random.default_rng(0).normal(size=(2, 6, 4, 8)).astype("float32")
    before = ops.convert_to_numpy(layer(images))
    assert multiply_adds(layer, 6, 4, 8) == 2 * 4 * 8
    np.testing.assert_array_equal(ops.convert_to_numpy(layer(images)), before)
