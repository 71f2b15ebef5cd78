import keras
import numpy as np
import pytest
from keras import ops

import keras_vit
from keras_vit.prediction import classes
from keras_vit.prediction.classes import (
    distinct_names,
    folder_names,
    gives_features,
    imagenet_classes,
    output_activation,
    outputs_named,
    prediction_activation,
)
from tests.errors import refuses
from tests.models.bit import test_model as bit
from tests.tiny import build

LOSSES = [("mse", "regression"), (keras.losses.Huber(), "regression"), ("binary_crossentropy", "multi_label")]
LOSSES += [(keras.losses.BinaryCrossentropy(from_logits=True), "multi_label")]
HEADS = [(None, "classify", "softmax"), (None, "multi_label", "sigmoid"), ("softmax", "classify", None)]
HEADS += [("sigmoid", "multi_label", None)]
IDENTITIES = [
    ops.sigmoid,
    keras.activations.softmax,
    lambda x: keras.layers.Identity()(keras.layers.Softmax()(x)),
    lambda x: keras.layers.Activation("linear")(ops.softmax(x)),
    lambda x: ops.cast(ops.softmax(x), "float16"),
    lambda x: keras.layers.Average()([ops.softmax(x), keras.layers.Softmax()(x)]),
]


def test_imagenet_classes_are_in_the_order_of_the_logits(shared):
    lines = (shared / "data" / "imagenet1k_classes.txt").read_text().splitlines()
    assert [" ".join(pair) for pair in imagenet_classes()] == lines
    assert len({wnid for wnid, _ in imagenet_classes()}) == 1000


def test_decode_predictions_best_first():
    p = np.full((2, 1000), 0.1 / 997)
    p[0, [285, 281, 7]] = 0.6, 0.2, 0.1
    p[1, [0, 1, 999]] = 0.1, 0.2, 0.6
    first, second = keras_vit.decode_predictions(ops.convert_to_tensor(p.astype("float32")), top=2)
    assert [name for _, name, _ in first] == ["Egyptian_cat", "tabby"]
    assert [(wnid, round(score, 4)) for wnid, _, score in second] == [("n15075141", 0.6), ("n01443537", 0.2)]
    tied = (np.eye(1000)[:500] + np.eye(1000)[500:]) / 2
    first = [(wnid, name) for ((wnid, name, _),) in keras_vit.decode_predictions(tied, top=1)]
    assert first == list(imagenet_classes()[:500])


def test_decode_predictions_refuses_logits_and_shapes():
    for bad in (np.random.default_rng(0).normal(size=(1, 1000)), np.full((1, 1000), np.nan)):
        refuses("softmax", keras_vit.decode_predictions, bad)
    refuses(r"shape \(batch, 1000\)", keras_vit.decode_predictions, np.full((1, 999), 0.001))


def test_decode_predictions_uses_the_models_class_names(caplog):
    p = [[0.7, 0.1, 0.2]]
    named = build(num_classes=3, class_names=["ant", "bee", "cat"])
    assert keras_vit.decode_predictions(p, named, top=2) == [[("0", "ant", 0.7), ("2", "cat", 0.2)]]
    assert [name for _, name, _ in keras_vit.decode_predictions(p, build(num_classes=3))[0]] == ["0", "2", "1"]
    imagenet = keras_vit.decode_predictions(np.eye(1000)[[285]], build(num_classes=1000), top=1)
    assert imagenet == [[("n02124075", "Egyptian_cat", 1.0)]]
    # ImageNet has two classes with the name "crane".
    names = distinct_names(outputs_named(build(num_classes=1000)))
    assert len(set(names)) == 1000 and names[134] == "crane (n02012849)" and names[285] == "Egyptian_cat"
    assert folder_names(build(num_classes=1000))[134] == "n02012849"
    assert folder_names(build(num_classes=2, class_names=("ant", "bee"))) == ["ant", "bee"]
    assert not caplog.records
    # A new head on the same backbone has no names.
    features = keras.Model(named.input, named.get_layer("head").input)
    other = keras.Model(named.input, keras.layers.Dense(2)(features.output))
    assert [name for _, name, _ in keras_vit.decode_predictions([[0.6, 0.4]], other)[0]] == ["0", "1"]
    assert "3 class names and 2 outputs" in caplog.text
    refuses("outputs features", keras_vit.decode_predictions, np.eye(12)[:1], features)


def test_decode_predictions_refuses_other_class_counts():
    model = build(num_classes=3, class_names=["ant", "bee", "cat"])
    refuses(r"shape \(batch, 3\)", keras_vit.decode_predictions, [[0.5, 0.5]], model)
    refuses("`top` between 1 and 3", keras_vit.decode_predictions, np.eye(3), model, top=4)
    refuses("softmax", keras_vit.decode_predictions, [[0.9, 0.8, 0.1]], model)
    many = build(num_classes=3, classifier_activation="sigmoid")
    assert keras_vit.decode_predictions([[0.9, 0.8, 0.1]], many, top=1) == [[("0", "0", 0.9)]]


@pytest.mark.parametrize(
    "arguments",
    [{}, {"pooling": "map"}, {"representation_size": 8}, {"distillation_token": True}, {"norm_after_pooling": True}],
)
def test_gives_features_only_without_any_head(arguments):
    backbone = build(num_classes=0, **arguments)
    assert gives_features(backbone)
    assert not gives_features(build(**arguments))
    assert not gives_features(keras.Sequential([backbone, keras.layers.Dropout(0.1), keras.layers.Dense(2)]))


def test_gives_features_of_sequential_models_and_bit():
    backbone = build(num_classes=0)
    below = [keras.Input(backbone.input_shape[1:]), keras.layers.Normalization(), backbone]
    assert gives_features(keras.Sequential(below)) and gives_features(bit.build(num_classes=0))
    assert not gives_features(keras.Sequential([*below, keras.layers.Dense(5), keras.layers.Softmax()]))
    assert not gives_features(keras.Sequential([keras.Input((12,)), keras.layers.Dense(5)]))


def test_regression_model_has_no_classes(tmp_path):
    model = build(num_classes=1, task="regression", class_names=["age"])
    model.save(tmp_path / "model.keras")
    for copy in (keras.saving.load_model(tmp_path / "model.keras"), keras.models.clone_model(model)):
        assert output_activation(copy) is None and classes.outputs_named(copy) == [("0", "age")]
        refuses("task='regression'", keras_vit.decode_predictions, [[0.5]], copy)
    keras_vit.save_weights(model, tmp_path / "model.npz")
    assert keras_vit.from_pretrained(tmp_path / "model.npz", num_heads=3).config.task == "regression"
    assert keras_vit.from_pretrained(tmp_path / "model.npz", num_heads=3, num_classes=2).config.task == "single_label"
    refuses("`task`. Expected one of 'single_label', 'multi_label', 'regression'", build, task="classes")


@pytest.mark.parametrize("loss, setting", LOSSES)
def test_prediction_activation_must_fit_the_loss(loss, setting):
    # A model of another class compiles with any loss.
    def compiled(loss, **options):
        inner = build(**options)
        model = keras.Model(inner.input, inner.output)
        model.compile("sgd", loss)
        return model

    refuses(f"task={setting!r}", prediction_activation, compiled(loss))
    expected = {"regression": None, "multi_label": "sigmoid"}[setting]
    assert prediction_activation(compiled(loss, task=setting)) == expected
    assert prediction_activation(compiled(loss, classifier_activation="sigmoid")) is None
    assert prediction_activation(compiled("categorical_crossentropy")) == "softmax"


@pytest.mark.parametrize("activation, postprocess, expected", HEADS)
def test_activation_of_a_head_with_activation_is_none(activation, postprocess, expected):
    model = build(classifier_activation=activation)
    assert output_activation(model, postprocess) == expected
    assert output_activation(keras.Sequential([keras.Input((16, 16, 3)), model]), postprocess) == expected
    softmax = keras.Sequential([keras.Input((16, 16, 3)), model, keras.layers.Softmax()])
    assert output_activation(softmax, postprocess) is None


@pytest.mark.parametrize("wrap", IDENTITIES)
def test_activation_of_sees_through_identity_operations(wrap):
    model = build()
    assert output_activation(keras.Model(model.input, wrap(model.output))) is None


def test_activation_of_distilled_model_and_of_other_heads():
    model = build(distillation_token=True, classifier_activation="softmax")
    assert output_activation(keras.Sequential([keras.Input((16, 16, 3)), model])) is None
    assert output_activation(build(num_classes=1), "classify") == "sigmoid"
    # Logits computed from probabilities are no probabilities.
    model = build(classifier_activation="softmax")
    assert output_activation(keras.Model(model.input, keras.layers.Dense(3)(model.output))) == "softmax"
    assert output_activation(keras.Model(model.input, keras.layers.Average()([model.output, ops.log(model.output)])))
    refuses("one output", output_activation, build(pooling="none"), "classify")
