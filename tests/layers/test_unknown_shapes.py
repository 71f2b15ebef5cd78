"""TensorFlow compiles one graph for all sizes of images and all numbers of tokens."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_vit import layers
from keras_vit.models.bit.group_normalization import GroupNormalization
from keras_vit.models.bit.standardized_conv import StandardizedConv2D

IMAGES, TOKENS = (None, None, 4), (None, 8)
PIXELS = [(IMAGES,), ((8, 12, 4),), ((17, 10, 4),)]
SEQUENCES = [(TOKENS,), ((3, 8),), ((6, 8),)]
PATCHES = [(TOKENS, IMAGES), ((20, 8), (23, 24, 4)), ((6, 8), (14, 13, 4)), ((12, 8), (13, 20, 4))]
CONV = {"filters": 4, "kernel_size": 3, "strides": 2, "padding": "symmetric"}
EMBEDDING = {"hidden_dim": 8, "patch_size": (4, 3)}
POSITIONS = {"grid_size": (3, 2), "patch_size": (4, 5)}
ATTENTION = {"num_heads": 2, "max_relative_distance": 2, "qk_norm": True}
LAYERS = [
    (GroupNormalization, {"groups": 2}, PIXELS, IMAGES),
    (StandardizedConv2D, CONV, PIXELS, IMAGES),
    (layers.PatchEmbedding, {**EMBEDDING, "method": "conv"}, PIXELS, TOKENS),
    (layers.PatchEmbedding, {**EMBEDDING, "method": "unfold"}, PIXELS, TOKENS),
    (layers.PatchMap, {"patch_size": (4, 5)}, PATCHES, (None, None, 8)),
    (layers.PositionEmbedding, {**POSITIONS, "method": "learned", "interpolation": "bicubic_offset"}, PATCHES, TOKENS),
    (layers.PositionEmbedding, {**POSITIONS, "method": "learned2d"}, PATCHES, TOKENS),
    (layers.PositionEmbedding, {**POSITIONS, "method": "sincos2d"}, PATCHES, TOKENS),
    (layers.ClassToken, {"initializer": "ones"}, SEQUENCES, TOKENS),
    (layers.MultiHeadSelfAttention, ATTENTION, SEQUENCES, TOKENS),
]


@pytest.mark.backends("tensorflow")
@pytest.mark.parametrize("cls, arguments, shapes, output_shape", LAYERS)
def test_graph_of_unknown_shape_equals_eager_call(cls, arguments, shapes, output_shape):
    layer = cls(**arguments)
    unknown, *known = shapes
    inputs = [keras.Input(shape) for shape in unknown]
    model = keras.Model(inputs, layer(*inputs))
    assert model.output_shape == (None, *output_shape)
    for each in known:
        x = [np.random.default_rng(0).normal(size=(2, *shape)).astype("float32") for shape in each]
        expected = ops.convert_to_numpy(layer(*x))
        np.testing.assert_allclose(model.predict(x, verbose=0), expected, rtol=1e-5, atol=1e-5)
