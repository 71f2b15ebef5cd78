import keras
import numpy as np
import pytest
from keras import ops
from scipy.special import softmax

import keras_vit
from keras_vit.inspection import attention_overlay, plot_token_attention, token_attention_maps
from tests import tiny
from tests.models.test_vt_resnet import build, images

X = images(3, 32, 41, 3)


def test_each_token_reads_the_pixels_that_its_definition_says():
    model = tiny.randomize(build(num_modules=2), scale=0.1)
    # The variances of batch normalization are positive.
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


def test_one_module_or_some():
    model = build()
    both = token_attention_maps(model, X, modules=None)
    np.testing.assert_array_equal(token_attention_maps(model, X), both[1])
    (found,) = token_attention_maps(model, X, modules=[-2])
    np.testing.assert_array_equal(found, both[0])


def test_within_another_model_and_in_low_precision():
    backbone = build(dtype="mixed_bfloat16", num_classes=0)
    inputs = keras.Input((32, 41, 3))
    model = keras.Model(inputs, keras.layers.Dense(2)(backbone(keras.layers.GaussianNoise(1.0)(inputs))))
    found = token_attention_maps(model, X, modules=0)
    np.testing.assert_allclose(found.sum(axis=(2, 3)), 1, rtol=1e-5)
    np.testing.assert_allclose(found, token_attention_maps(backbone, X, modules=0), atol=1e-2)


def test_what_has_no_such_maps_is_refused():
    with pytest.raises(ValueError, match="VT-ResNet of this package, with layers of type VTModule. Received: model"):
        token_attention_maps(tiny.build(), X)
    for modules in (2, -3, [0, 2], True, 0.5):
        with pytest.raises(ValueError, match="`modules`. Expected None, or integers below 2"):
            token_attention_maps(build(), X, modules=modules)
    inputs = [keras.Input((32, 41, 3)) for _ in range(2)]
    backbone = build()
    with pytest.raises(ValueError, match="blocks that run once. Received: 'vt_1' run again"):
        token_attention_maps(keras.Model(inputs, backbone(inputs[0]) + backbone(inputs[1])), [X, X])


@pytest.mark.parametrize("name", ["attention_maps", "attention_rollout", "attention_distance", "patch_layout"])
def test_attention_of_patches_is_refused(name):
    with pytest.raises(ValueError, match="Expected a model that holds a ViT.* Received: model 'vt_resnet_R18'"):
        getattr(keras_vit.inspection, name)(build(), X)


def test_embeddings_are_refused():
    with pytest.raises(ValueError, match="Expected a model with position embeddings"):
        keras_vit.inspection.position_similarity(build())
    with pytest.raises(ValueError, match="Expected a model with one layer of type PatchEmbedding"):
        keras_vit.inspection.embedding_filters(build())


def test_the_plot_has_a_panel_for_each_token(tmp_path):
    pytest.importorskip("matplotlib")
    maps = token_attention_maps(build(), X)
    pictures = np.full((3, 32, 41, 3), 200)
    figure = plot_token_attention(pictures[0], maps[0], tmp_path / "tokens.png")
    titles = [axes.get_title() for axes in figure.axes]
    assert [title.split(" (")[0] for title in titles] == ["token 0", "token 1", "token 2"]
    np.testing.assert_array_equal(np.asarray(figure.axes[1].get_images()[1].get_array()), maps[0, 1])
    assert (tmp_path / "tokens.png").stat().st_size > 1000
    assert attention_overlay(pictures, maps[:, 0]).shape == pictures.shape
    with pytest.raises(ValueError, match="Expected `attention` of shape .num_tokens, rows, columns.. Received: "):
        plot_token_attention(pictures[0], maps)
