import keras
import numpy as np
import pytest

from keras_vit import evaluation
from keras_vit.evaluation import extract_features
from keras_vit.training import SAM
from tests.errors import refuses
from tests.evaluation.arrays import forms
from tests.tiny import build, randomize

RNG = np.random.default_rng(0)
IMAGES = RNG.normal(size=(7, 16, 16, 3)).astype("float32")
LABELS = np.array([0, 1, 2, 3, 4, 0, 1])
ONE_HOT = np.eye(5)[LABELS]
CHANGES = [{"pooling": "gap", "norm_after_pooling": True}, {"pooling": "map"}, {"representation_size": 7}]
CHANGES += [{"distillation_token": True}, {"distillation_token": True, "return_both_heads": True}]
REFUSED = [
    (IMAGES, r"Expected batches of \(images, labels\). Received: ndarray batches without labels"),
    ((IMAGES, LABELS[:5]), "as many labels as images.*7 images and 5 labels"),
    ((IMAGES[:0], LABELS[:0]), "at least one image"),
    (3, "`data`. Expected .*int"),
    ([(IMAGES, LABELS, LABELS)], "batches of 3 elements. Make the data without sample weights"),
    ((IMAGES, LABELS - 1), "classes counted from 0. Received:.*-1"),
    ((IMAGES, LABELS + 0.5), "classes counted from 0"),
    ((IMAGES, np.full((7, 5), 0.2)), "rows with a single 1"),
    ((IMAGES, np.full(7, "rose")), "`labels`.*Expected integers.*rose"),
    ((np.zeros((7, 24, 16, 3)), LABELS), r"\(16, 16, 3\).*Received: \(24, 16, 3\)"),
    ((np.abs(IMAGES) * 50, LABELS), "Expected images of -1 to 1, as the model takes them"),
    ((np.full_like(IMAGES, np.nan), LABELS), "Expected images of finite numbers"),
]


def test_features_of_each_form_of_data():
    model = build(num_classes=0)
    expected = keras.ops.convert_to_numpy(model(IMAGES))
    column = LABELS[:, None].astype("float32")
    for data in (*forms((IMAGES, LABELS)), *forms((IMAGES, ONE_HOT)), (IMAGES, column)):
        features, labels = extract_features(model, data, batch_size=3, verbose=0)
        np.testing.assert_allclose(features, expected, atol=1e-5)
        np.testing.assert_array_equal(labels, LABELS)
        assert (features.dtype, labels.dtype) == (np.float32, np.int64)


@pytest.mark.parametrize("changes", CHANGES, ids=str)
def test_features_equal_output_of_headless_model(changes):
    model = randomize(build(**changes))
    bare = build(**{**changes, "num_classes": 0, "return_both_heads": False})
    heads = [w.path for w in model.weights if w.path.split("/")[0] in ("head", "head_dist")]
    bare.set_weights([w.numpy() for w in model.weights if w.path not in heads])
    features, _ = extract_features(model, (IMAGES, LABELS), verbose=0)
    np.testing.assert_allclose(features, extract_features(bare, (IMAGES, LABELS), verbose=0)[0], atol=1e-5)


@pytest.mark.parametrize("nested", [False, True])
def test_features_below_custom_head(nested):
    backbone = randomize(build(num_classes=0))
    expected = extract_features(backbone, (IMAGES / 2, LABELS), verbose=0)[0]
    head = keras.Sequential([keras.layers.Dropout(0.5), keras.layers.Dense(5, activation="softmax")])
    inputs = keras.Input((16, 16, 3)) if nested else backbone.input
    model = keras.Model(inputs, head(backbone(keras.layers.Rescaling(0.5)(inputs)) if nested else backbone.output))
    features, _ = extract_features(model, (IMAGES if nested else IMAGES / 2, LABELS), verbose=0)
    np.testing.assert_allclose(features, expected, atol=1e-5)


def test_features_refuse_nested_or_branched_head():
    nested = keras.Sequential([keras.Input((16, 16, 3)), build()])
    refuses("head is not in a nested model. .* Pass the", extract_features, nested, (IMAGES, LABELS), verbose=0)
    backbone = build(num_classes=0)
    tokens = [backbone.get_layer(name).output for name in ("block_00", "block_01")]
    pooled = [keras.layers.GlobalAveragePooling1D()(x) for x in tokens]
    model = keras.Model(backbone.input, keras.layers.Dense(5)(keras.layers.Add()(pooled)))
    refuses("whose head reads one tensor.*whose head reads 2", extract_features, model, (IMAGES, LABELS), verbose=0)


def test_features_of_named_layer():
    model = keras.Sequential([keras.Input((16, 16, 3)), keras.layers.Flatten(), keras.layers.Dense(6, name="inner")])
    model.add(keras.layers.Dense(2))
    assert extract_features(model, (IMAGES, LABELS), verbose=0)[0].shape == (7, 2)
    inner = extract_features(model, (IMAGES, LABELS), layer="inner", verbose=0)[0]
    kernel, bias = model.get_layer("inner").get_weights()
    np.testing.assert_allclose(inner, IMAGES.reshape(7, -1) @ kernel + bias, atol=1e-4)


def test_features_of_mixed_precision_model_are_float32():
    model = build(num_classes=0, dtype="mixed_bfloat16")
    assert extract_features(model, (IMAGES, LABELS), verbose=0)[0].dtype == np.float32


@pytest.mark.parametrize("data, match", REFUSED)
def test_features_refuse_invalid_data(model, data, match):
    refuses(match, extract_features, model, data, verbose=0)


@pytest.mark.parametrize("name", ["extract_features", "accuracy", "classification_report", "predict"])
def test_evaluation_of_a_trainer_names_its_plain_model(model, name):
    refuses("`plain_model`", getattr(evaluation, name), SAM(model), (IMAGES, LABELS), verbose=0)


def test_features_refuse_endless_dataset(model):
    tf = pytest.importorskip("tensorflow", reason="it makes endless datasets")
    refuses("one that repeats", extract_features, model, tf.data.Dataset.from_tensors((IMAGES, LABELS)).repeat())


def test_features_refuse_invalid_options(model):
    data = IMAGES, LABELS
    tokens = build(pooling="none", num_classes=0)
    refuses("one vector per image.*17, 12", extract_features, tokens, data, verbose=0)
    refuses("`layer`. Expected one of .*'block_00'.*'block_09'", extract_features, model, data, layer="block_09")
    refuses("`batch_size`", extract_features, model, data, batch_size=0, verbose=0)
    refuses("`verbose`", extract_features, model, data, verbose=2)
