import keras
import numpy as np
import pytest
from keras import ops
from scipy.special import softmax

from keras_vit.inspection import attention_overlay, embedding_filters, plot_token_attention, token_attention_maps
from tests import tiny
from tests.errors import refuses
from tests.models.vt_resnet.test_model import build

X = np.random.default_rng(0).normal(size=(3, 32, 41, 3)).astype("float32")


@pytest.fixture(scope="module")
def plain():
    """A tiny VT-ResNet that no test changes."""
    return build()


def test_token_attention_maps_match_definition():
    model = tiny.randomize(build(num_modules=2), scale=0.1)
    # Variances of batch normalization must be positive.
    for weight in model.weights:
        if weight.path.endswith("moving_variance"):
            weight.assign(np.ones(weight.shape))
    first, second = token_attention_maps(model, X, modules=None, batch_size=2)
    assert first.shape == second.shape == (3, 3, 4, 6) and first.dtype == "float32"
    inputs = [*keras.tree.flatten(model.get_layer("vt_1").output), model.get_layer("stage_2_unit_01").output]
    changed, tokens, feature_map = (ops.convert_to_numpy(x) for x in keras.Model(model.input, inputs)(X))
    filters = ops.convert_to_numpy(model.get_layer("vt_1").tokenizer.filters.kernel)
    expected = softmax(np.einsum("bhwc,cl->blhw", feature_map, filters), axis=(2, 3))
    np.testing.assert_allclose(first, expected, rtol=1e-4, atol=1e-6)
    to_filters = ops.convert_to_numpy(model.get_layer("vt_2").tokenizer.to_filters.kernel)
    expected = softmax(np.einsum("bhwc,blc->blhw", changed, tokens @ to_filters), axis=(2, 3))
    np.testing.assert_allclose(second, expected, rtol=1e-4, atol=1e-6)


def test_token_attention_of_nested_mixed_precision_model():
    backbone = build(dtype="mixed_bfloat16", num_classes=0)
    inputs = keras.Input((32, 41, 3))
    model = keras.Model(inputs, keras.layers.Dense(2)(backbone(keras.layers.GaussianNoise(1.0)(inputs))))
    found = token_attention_maps(model, X, modules=0)
    np.testing.assert_allclose(found.sum(axis=(2, 3)), 1, rtol=1e-5)
    np.testing.assert_allclose(found, token_attention_maps(backbone, X, modules=0), atol=1e-2)


def test_token_attention_refuses_invalid_model_or_modules(plain):
    expected = "VT-ResNet of this package, with layers of type VTModule. Received: model"
    refuses(expected, token_attention_maps, tiny.build(), X)
    refuses("Expected a model with one layer of type PatchEmbedding", embedding_filters, plain)
    inputs = [keras.Input((32, 41, 3)) for _ in range(2)]
    two = keras.Model(inputs, plain(inputs[0]) + plain(inputs[1]))
    refuses("each block runs once. Received: 'vt_1' run again", token_attention_maps, two, [X, X])


def test_token_attention_plot_has_panel_per_token(plain, tmp_path):
    pytest.importorskip("matplotlib")
    maps = token_attention_maps(plain, X)
    pictures = np.full((3, 32, 41, 3), 200)
    figure = plot_token_attention(pictures[0], maps[0], tmp_path / "tokens.png")
    titles = [axes.get_title() for axes in figure.axes]
    assert [title.split(" (")[0] for title in titles] == ["token 0", "token 1", "token 2"]
    np.testing.assert_array_equal(np.asarray(figure.axes[1].get_images()[1].get_array()), maps[0, 1])
    assert (tmp_path / "tokens.png").stat().st_size > 1000
    assert attention_overlay(pictures, maps[:, 0]).shape == pictures.shape
    refuses("`attention` of shape .num_tokens, rows, columns.. Received: ", plot_token_attention, pictures[0], maps)
