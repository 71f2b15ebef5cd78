import keras
import numpy as np
import pytest
from keras import ops

import keras_vit
from tests.errors import refuses
from tests.models.vt_resnet import test_model as vt_resnet
from tests.tiny import assert_close, build, randomize


def numpy(outputs):
    return [ops.convert_to_numpy(y) for y in outputs]


CHANGES = [{}, {"num_registers": 2}, {"pooling": "gap"}, {"image_size": (None, None)}, {"dtype": "mixed_float16"}]


@pytest.mark.parametrize("changes", CHANGES)
def test_feature_maps_are_the_patch_tokens(changes):
    model = randomize(build(num_layers=3, **changes))
    x = np.random.default_rng(0).normal(size=(2, 9, 14, 3) if "image_size" in changes else (2, 16, 16, 3))
    tokens = numpy(keras_vit.features(model, blocks=(0, 2))(x))
    maps = numpy(keras_vit.features(model, blocks=(0, -1), format="map")(x))
    rows, columns = x.shape[1] // 4, x.shape[2] // 4
    for t, m in zip(tokens, maps, strict=True):
        assert m.shape == (2, rows, columns, 12) and m.dtype == t.dtype
        np.testing.assert_array_equal(m.reshape(2, rows * columns, 12), t[:, t.shape[1] - rows * columns :])
    np.testing.assert_array_equal(tokens[1], ops.convert_to_numpy(keras_vit.features(model, blocks=(2,))(x)))


@pytest.mark.parametrize("kind", ["clone", "head of a clone", "loaded"])
def test_features_of_clones_and_models_with_own_head(kind, tmp_path):
    vit = randomize(build(num_classes=0, num_registers=2))
    model = vit
    if "clone" in kind:
        model = keras.models.clone_model(vit)
        model.set_weights([ops.convert_to_numpy(w) for w in vit.weights])
    if kind != "clone":
        head = keras.layers.Dense(3, name="block_of_mine")(keras.layers.Dropout(0.5)(model.output))
        model = keras.Model(model.input, head)
    if kind == "loaded":
        model.save(tmp_path / "model.keras")
        model = keras.saving.load_model(tmp_path / "model.keras")
    x = np.random.default_rng(0).normal(size=(2, 16, 16, 3)).astype("float32")
    for format in ("tokens", "map"):
        actual, expected = (numpy(keras_vit.features(each, (0, -1), format)(x)) for each in (model, vit))
        assert_close(actual, expected, atol=1e-6)


def test_features_bad_argument_is_named():
    for blocks in ((0, 2), ()):
        refuses("Received: blocks=", keras_vit.features, build(), blocks=blocks)
    inputs = keras.Input((16, 16, 3))
    refuses("pass the layer", keras_vit.features, keras.Model(inputs, build()(inputs)), blocks=(0,))
    flat = keras.Model(inputs, keras.layers.Flatten()(inputs))
    refuses("Expected a model built by keras_vit", keras_vit.features, flat, blocks=(0,))
    refuses("patch_dropout_rate=0", keras_vit.features, build(patch_dropout_rate=0.5), blocks=(0,), format="map")
    refuses("token_merging=0", keras_vit.features, build(token_merging=(1, 0)), blocks=(0,), format="map")


def test_feature_maps_need_all_tokens_of_a_block():
    model = build()

    def clone(layer):
        fewer = {"num_outputs": 1} if layer is model.blocks[-1] else {}
        return type(layer).from_config({**layer.get_config(), **fewer})

    few = keras.models.clone_model(model, clone_function=clone)
    assert keras_vit.features(few, blocks=(0,), format="map").output_shape == (None, 4, 4, 12)
    refuses("without `num_outputs` in its blocks", keras_vit.features, few, blocks=(0, -1), format="map")


def test_features_of_last_and_merging_blocks():
    model, images = build(), np.ones((1, 16, 16, 3), "float32")
    for blocks in ((-1,), (0, -1)):
        *_, last = keras.tree.flatten(keras_vit.features(model, blocks=blocks, format="map")(images))
        assert last.shape == (1, 4, 4, 12)
    model = keras_vit.features(build(token_merging=(4, 0)), blocks=(0, 1))
    assert [y.shape for y in model(np.ones((1, 16, 16, 3), "float32"))] == [(1, 13, 12)] * 2


def test_features_of_bit_are_the_stages():
    model = keras_vit.BiT("R50x1", image_size=32, stages=(1, 2), width_factor=0.5)
    first, last = keras_vit.features(model)(np.ones((1, 32, 32, 3), "float32"))
    assert (first.shape, last.shape) == ((1, 8, 8, 128), (1, 4, 4, 256))
    (output,) = keras.tree.flatten(keras_vit.features(model, (2,)).output)
    assert output is model.get_layer("stage_2_unit_02").output


def test_features_of_vt_resnet_units_and_modules():
    model = vt_resnet.build()
    x = vt_resnet.images(2, 32, 41, 3)
    maps = keras_vit.features(model, (0, -4, 2), format="map")(x)
    assert [y.shape for y in maps] == [(2, 8, 11, 4), (2, 8, 11, 4), (2, 4, 6, 8)]
    tokens, changed = numpy(keras_vit.features(model, (-2, -1), "tokens")(x))
    assert tokens.shape == changed.shape == (2, 3, 12)
    (expected,) = numpy([keras.Model(model.input, model.get_layer("pooling").output)(x)])
    np.testing.assert_allclose(changed.mean(axis=1), expected, rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match="Expected VT modules for format='tokens'. Received: block 'stage_2_unit_01'"):
        keras_vit.features(model, (2, 1), "tokens")
    with pytest.raises(ValueError, match="blocks with a feature map, which the last VT module lacks, for .*'vt_2'"):
        keras_vit.features(model, (3,), format="map")
    assert [y.shape for y in keras_vit.features(model)(x)] == [(2, 8, 11, 4), (2, 4, 6, 8)]
    refuses("below 4, the model's depth", keras_vit.features, model, (4,))
