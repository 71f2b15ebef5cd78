import keras
import numpy as np
import pytest

from keras_vit import progress
from keras_vit.evaluation import extract_features
from tests.tiny import build, randomize

RNG = np.random.default_rng(0)
IMAGES = RNG.normal(size=(7, 16, 16, 3)).astype("float32")
LABELS = np.array([0, 1, 2, 3, 4, 0, 1])


class Batches(keras.utils.PyDataset):
    """Three images a batch, and the last one alone."""

    def __len__(self):
        return 3

    def __getitem__(self, i):
        return IMAGES[3 * i : 3 * i + 3], np.eye(5)[LABELS[3 * i : 3 * i + 3]]


def datasets():
    tf = pytest.importorskip("tensorflow", reason="it makes datasets for each backend")
    yield (IMAGES, LABELS)
    yield (IMAGES, LABELS[:, None].astype("float32"))
    yield (keras.ops.convert_to_tensor(IMAGES), keras.ops.convert_to_tensor(LABELS))
    yield Batches()
    yield tf.data.Dataset.from_tensor_slices((IMAGES, LABELS)).batch(3)
    yield tf.data.Dataset.from_tensor_slices((IMAGES, np.eye(5)[LABELS])).batch(4)
    # Of unknown length, with an empty batch.
    yield ((IMAGES[i:j], LABELS[i:j]) for i, j in ((0, 0), (0, 2), (2, 7)))


def test_images_of_another_size_and_labels_of_text_are_named():
    model = build(num_classes=0)
    for size in (24, 12):
        with pytest.raises(ValueError, match=rf"\(16, 16, 3\).*Received: \({size}, 16, 3\)"):
            extract_features(model, (np.zeros((2, size, 16, 3)), np.arange(2)), verbose=0)
    with pytest.raises(ValueError, match="`labels`.*integers.*cat"):
        extract_features(model, (IMAGES[:2], np.array(["cat", "dog"])), verbose=0)


def test_any_data_gives_what_one_call_gives():
    model = build(num_classes=0)
    expected = keras.ops.convert_to_numpy(model(IMAGES))
    for data in datasets():
        features, labels = extract_features(model, data, batch_size=3, verbose=0)
        np.testing.assert_allclose(features, expected, atol=1e-5)
        np.testing.assert_array_equal(labels, LABELS)
        assert (features.dtype, labels.dtype) == (np.float32, np.int64)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"pooling": "gap", "norm_after_pooling": True},
        {"pooling": "map"},
        {"representation_size": 7},
        {"distillation_token": True},
        {"distillation_token": True, "return_both_heads": True},
    ],
    ids=str,
)
def test_features_are_those_of_the_model_without_a_head(changes):
    model = randomize(build(**changes))
    bare = build(**{**changes, "num_classes": 0, "return_both_heads": False})
    heads = [w.path for w in model.weights if w.path.split("/")[0] in ("head", "head_dist")]
    bare.set_weights([w.numpy() for w in model.weights if w.path not in heads])
    features, _ = extract_features(model, (IMAGES, LABELS), verbose=0)
    np.testing.assert_allclose(features, extract_features(bare, (IMAGES, LABELS), verbose=0)[0], atol=1e-5)


@pytest.mark.parametrize("nested", [False, True])
def test_features_below_a_head_of_the_users_own(nested):
    backbone = randomize(build(num_classes=0))
    expected = extract_features(backbone, (IMAGES / 2, LABELS), verbose=0)[0]
    head = keras.Sequential([keras.layers.Dropout(0.5), keras.layers.Dense(5, activation="softmax")])
    inputs = keras.Input((16, 16, 3)) if nested else backbone.input
    model = keras.Model(inputs, head(backbone(keras.layers.Rescaling(0.5)(inputs)) if nested else backbone.output))
    features, _ = extract_features(model, (IMAGES if nested else IMAGES / 2, LABELS), verbose=0)
    np.testing.assert_allclose(features, expected, atol=1e-5)


def test_a_head_within_a_nested_model_is_no_features():
    nested = keras.Sequential([keras.Input((16, 16, 3)), build()])
    with pytest.raises(ValueError, match="whose head is in a nested model: pass that one"):
        extract_features(nested, (IMAGES, LABELS), verbose=0)


def test_a_head_that_reads_several_tensors_is_refused():
    backbone = build(num_classes=0)
    tokens = [backbone.get_layer(name).output for name in ("block_00", "block_01")]
    pooled = [keras.layers.GlobalAveragePooling1D()(x) for x in tokens]
    model = keras.Model(backbone.input, keras.layers.Dense(5)(keras.layers.Add()(pooled)))
    with pytest.raises(ValueError, match="whose head reads one tensor.*whose head reads 2"):
        extract_features(model, (IMAGES, LABELS), verbose=0)


def test_other_models_and_layers():
    model = keras.Sequential([keras.Input((16, 16, 3)), keras.layers.Flatten(), keras.layers.Dense(6, name="inner")])
    model.add(keras.layers.Dense(2))
    assert extract_features(model, (IMAGES, LABELS), verbose=0)[0].shape == (7, 2)
    inner = extract_features(model, (IMAGES, LABELS), layer="inner", verbose=0)[0]
    kernel, bias = model.get_layer("inner").get_weights()
    np.testing.assert_allclose(inner, IMAGES.reshape(7, -1) @ kernel + bias, atol=1e-4)


def test_half_precision_comes_out_as_float32():
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        model = build(num_classes=0)
    finally:
        keras.config.set_dtype_policy("float32")
    assert extract_features(model, (IMAGES, LABELS), verbose=0)[0].dtype == np.float32


def test_progress(capsys, monkeypatch):
    monkeypatch.setattr(progress, "DELAY", 0)
    extract_features(build(), (IMAGES, LABELS), batch_size=3)
    shown = capsys.readouterr().out
    assert "3/3" in shown and "images/s: " in shown
    extract_features(build(), (IMAGES, LABELS), batch_size=3, verbose=0)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("data", "match"),
    [
        (IMAGES, r"Expected batches of \(images, labels\). Received: ndarray batches without labels"),
        ((IMAGES, LABELS[:5]), "as many labels as images.*7 images and 5 labels"),
        ((IMAGES[:0], LABELS[:0]), "at least one image"),
        (3, "`data`. Expected .*int"),
        ([(IMAGES, LABELS, LABELS)], "batches of 3 parts"),
        ((IMAGES, LABELS - 1), "classes counted from 0. Received:.*-1"),
        ((IMAGES, LABELS + 0.5), "classes counted from 0"),
        ((IMAGES, np.full((7, 5), 0.2)), "rows with a single 1"),
        ((IMAGES, np.full(7, "rose")), "Expected integers"),
        ((np.abs(IMAGES) * 50, LABELS), "Expected images of -1 to 1, as the model takes them"),
        ((np.full_like(IMAGES, np.nan), LABELS), "Expected images of finite numbers"),
    ],
)
def test_bad_data(data, match):
    with pytest.raises(ValueError, match=match):
        extract_features(build(), data, verbose=0)


def test_endless_data():
    tf = pytest.importorskip("tensorflow", reason="it makes endless datasets")
    with pytest.raises(ValueError, match="one that repeats"):
        extract_features(build(), tf.data.Dataset.from_tensors((IMAGES, LABELS)).repeat(), verbose=0)


def test_bad_options():
    with pytest.raises(ValueError, match="one vector per image.*17, 12"):
        extract_features(build(pooling=None, num_classes=0), (IMAGES, LABELS), verbose=0)
    with pytest.raises(ValueError, match="`layer`. Expected one of .*'block_00'.*Received: 'block_09'"):
        extract_features(build(), (IMAGES, LABELS), layer="block_09", verbose=0)
    with pytest.raises(ValueError, match="`batch_size`"):
        extract_features(build(), (IMAGES, LABELS), batch_size=0, verbose=0)
    with pytest.raises(ValueError, match="`verbose`"):
        extract_features(build(), (IMAGES, LABELS), verbose=2)
