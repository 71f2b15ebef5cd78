import numpy as np
import pytest

from keras_vit.inspection import embedding_filters
from tests.inspection import reference


def components_of(kernel, number):
    """By the covariance of the filters' pixels."""
    filters = kernel.reshape(-1, kernel.shape[-1])
    variances, vectors = np.linalg.eigh(np.cov(filters))
    return vectors.T[np.argsort(-variances)[:number]].reshape(number, *kernel.shape[:-1])


@pytest.mark.parametrize("channels", [1, 3, 5])
def test_filters_are_the_principal_components(channels):
    model, _ = reference.build(in_channels=channels, patch_size=(2, 4), hidden_dim=12)
    filters = embedding_filters(model, number=5)
    assert filters.shape == (5, 2, 4, channels)
    expected = components_of(reference.weights_of(model)["patch_embedding/kernel"], 5)
    for actual, wanted in zip(filters.reshape(5, -1), expected.reshape(5, -1), strict=True):
        np.testing.assert_allclose(np.linalg.norm(actual), 1, atol=1e-5)
        np.testing.assert_allclose(np.abs(actual @ wanted), 1, atol=1e-4)
        assert actual[np.abs(actual).argmax()] > 0


def test_filters_of_a_hybrid_are_those_that_see_the_pixels():
    model, _ = reference.build(stages=(1,), width_factor=0.5, patch_size=2, image_size=32)
    kernel = reference.weights_of(model)["root_conv/kernel"]
    kernel = (kernel - kernel.mean(axis=(0, 1, 2))) / (kernel.std(axis=(0, 1, 2)) + 1e-5)
    filters = embedding_filters(model)
    assert filters.shape == (28, 7, 7, 3)
    similarity = np.abs(np.sum(filters[:3] * components_of(kernel, 3), axis=(1, 2, 3)))
    np.testing.assert_allclose(similarity, 1, atol=1e-3)


def test_no_more_than_there_are():
    model, _ = reference.build()
    assert len(embedding_filters(model)) == 12
    with pytest.raises(ValueError, match="`number` of at most 12, the components that there are. Received: 13"):
        embedding_filters(model, number=13)


def test_filters_of_the_real_model_are_smooth(real):
    filters = embedding_filters(real[0])
    assert filters.shape == (28, 16, 16, 3)
    # A basis of smooth functions, as in the paper: a pixel is close to the next one.
    steps = [np.mean(np.diff(f, axis=0) ** 2) / (2 * f.var()) for f in filters]
    assert np.median(steps) < 0.5
