import keras
import numpy as np
import pytest
from keras import ops

import keras_vit
from keras_vit.models.predictions import activation_of, imagenet_classes
from tests.tiny import build


def test_names_come_in_the_order_of_the_logits(shared):
    lines = (shared / "data" / "imagenet1k_classes.txt").read_text().splitlines()
    assert [" ".join(pair) for pair in imagenet_classes()] == lines
    assert len({wnid for wnid, _ in imagenet_classes()}) == 1000


def test_best_first():
    p = np.full((2, 1000), 0.1 / 997)
    p[0, [285, 281, 7]] = 0.6, 0.2, 0.1
    p[1, [0, 1, 999]] = 0.1, 0.2, 0.6
    first, second = keras_vit.decode_predictions(ops.convert_to_tensor(p.astype("float32")), top=2)
    assert [name for _, name, _ in first] == ["Egyptian_cat", "tabby"]
    assert [(wnid, round(score, 4)) for wnid, _, score in second] == [("n15075141", 0.6), ("n01443537", 0.2)]


def test_logits_are_refused_with_the_hint():
    for bad in (np.random.default_rng(0).normal(size=(1, 1000)), np.zeros((1, 1000)), np.full((1, 1000), np.nan)):
        with pytest.raises(ValueError, match="softmax"):
            keras_vit.decode_predictions(bad)


@pytest.mark.parametrize("shape", [(1000,), (1, 999), (1, 1, 1000)])
def test_other_shapes_are_refused(shape):
    with pytest.raises(ValueError, match=r"shape \(batch, 1000\)"):
        keras_vit.decode_predictions(np.full(shape, 0.001))


@pytest.mark.parametrize("top", [0, 1001])
def test_top_is_bounded(top):
    with pytest.raises(ValueError, match="`top`"):
        keras_vit.decode_predictions(np.eye(1000)[:1], top=top)


@pytest.mark.parametrize(
    ("activation", "postprocess", "expected"),
    [
        (None, "classify", "softmax"),
        (None, "multi_label", "sigmoid"),
        ("softmax", "classify", None),
        ("sigmoid", "multi_label", None),
    ],
)
def test_a_models_own_activation_is_not_applied_twice(activation, postprocess, expected):
    model = build(classifier_activation=activation)
    assert activation_of(model, postprocess) == expected
    assert activation_of(keras.Sequential([keras.Input((16, 16, 3)), model]), postprocess) == expected
    softmax = keras.Sequential([keras.Input((16, 16, 3)), model, keras.layers.Softmax()])
    assert activation_of(softmax, postprocess) is None


@pytest.mark.parametrize(
    "wrap",
    [
        ops.softmax,
        ops.sigmoid,
        keras.activations.softmax,
        keras.layers.Activation("softmax"),
        lambda x: keras.layers.Identity()(keras.layers.Softmax()(x)),
        lambda x: keras.layers.Activation("linear")(ops.softmax(x)),
        lambda x: ops.cast(ops.softmax(x), "float16"),
        lambda x: keras.layers.Average()([ops.softmax(x), keras.layers.Softmax()(x)]),
    ],
)
def test_an_activation_is_seen_behind_what_keeps_probabilities(wrap):
    model = build()
    assert activation_of(keras.Model(model.input, wrap(model.output))) is None


def test_the_mean_of_a_distilled_models_heads_keeps_their_activation():
    model = build(distillation_token=True, classifier_activation="softmax")
    assert activation_of(model) is None
    assert activation_of(keras.Sequential([keras.Input((16, 16, 3)), model])) is None
    assert activation_of(build(distillation_token=True)) == "softmax"


def test_an_activation_further_back_makes_no_probabilities():
    model = build(classifier_activation="softmax")
    assert activation_of(keras.Model(model.input, keras.layers.Dense(3)(model.output))) == "softmax"
    assert activation_of(keras.Model(model.input, keras.layers.Average()([model.output, ops.log(model.output)])))


def test_one_class_is_a_probability_of_its_own():
    assert activation_of(build(num_classes=1), "classify") == "sigmoid"


def test_features_and_two_heads_are_no_classes():
    for model in (build(pooling=None), build(distillation_token=True, return_both_heads=True)):
        with pytest.raises(ValueError, match="one output"):
            activation_of(model, "classify")
