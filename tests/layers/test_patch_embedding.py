import keras
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from keras import ops

from keras_vit.layers import PatchEmbedding, Patches
from tests.errors import refuses

SIZES = st.tuples(st.integers(1, 24), st.integers(1, 24))
PATCH_SIZES = st.tuples(st.integers(1, 8), st.integers(1, 8))


def cut(images, patch_size):
    """The patches, one after the other: row by row from the top left, whole ones only."""
    height, width = patch_size
    return np.stack(
        [
            images[:, top : top + height, left : left + width].reshape(len(images), -1)
            for top in range(0, images.shape[1] - height + 1, height)
            for left in range(0, images.shape[2] - width + 1, width)
        ],
        axis=1,
    )


@given(SIZES, PATCH_SIZES, st.integers(1, 6), st.integers(1, 7), st.sampled_from(["float32", "uint8"]))
@example((2, 3), (1, 2), 1, 1, "float32")
def test_convolution_and_unfold_are_the_same_function(size, patch_size, channels, hidden_dim, dtype):
    conv, unfold = (PatchEmbedding(hidden_dim, patch_size, method=method) for method in ("conv", "unfold"))
    rng = np.random.default_rng(0)
    images = rng.uniform(0, 3, size=(2, *size, channels)).astype(dtype)
    if size[0] < patch_size[0] or size[1] < patch_size[1]:
        for layer in (conv, unfold, Patches(patch_size)):
            refuses("Expected images of at least one patch, .* Received: images of", layer, images)
        return
    patches = cut(images, patch_size)
    np.testing.assert_array_equal(ops.convert_to_numpy(Patches(patch_size)(images)), patches)
    kernel, bias = rng.normal(size=(*patch_size, channels, hidden_dim)), rng.normal(size=hidden_dim)
    expected = patches @ kernel.reshape(-1, hidden_dim) + bias
    for layer in (conv, unfold):
        layer.build(images.shape)
        layer.set_weights([kernel, bias])
        assert layer.compute_output_shape(images.shape) == expected.shape
        np.testing.assert_allclose(ops.convert_to_numpy(layer(images)), expected, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("method", ["conv", "unfold"])
def test_image_below_patch_size_at_run_time_is_refused(method):
    inputs = keras.Input((None, None, 3))
    model = keras.Model(inputs, PatchEmbedding(8, 8, method=method)(inputs))
    refuses("Expected images of at least one patch, 8 x 8 pixels.", model, np.zeros((1, 16, 7, 3), "float32"))


def test_unsuitable_images_are_refused():
    with pytest.raises(ValueError, match="Expected images with a known number of channels. Received: shape "):
        PatchEmbedding(8, 4)(keras.Input((8, 8, None)))
    layer = PatchEmbedding(8, 4)
    layer(np.zeros((1, 8, 8, 3)))
    refuses("expected axis -1 of input shape to have value 3", layer, np.zeros((1, 8, 8, 1)))
    refuses("expected ndim=4, found ndim=3", layer, np.zeros((8, 8, 3)))
