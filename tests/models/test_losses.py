import keras
import numpy as np
import pytest

from keras_vit.distillation import Distiller
from keras_vit.models import losses
from keras_vit.pretraining import MAE, SimMIM
from keras_vit.training import SAM
from tests.errors import refuses
from tests.tiny import build

LINES = {
    "sparse_categorical_crossentropy": "SparseCategoricalCrossentropy",
    "categorical_crossentropy": "CategoricalCrossentropy",
    "categorical_focal_crossentropy": "CategoricalFocalCrossentropy",
    "binary_crossentropy": "BinaryCrossentropy",
    "BinaryFocalCrossentropy": "BinaryFocalCrossentropy",
}


class Mine(keras.losses.CategoricalCrossentropy):
    pass


@pytest.mark.parametrize("name", LINES)
def test_string_loss_of_logits_is_refused_with_the_line(name):
    model = build(distillation_token=name == "categorical_crossentropy")
    message = rf"Received: .* Write loss=keras.losses.{LINES[name]}\(from_logits=True\)\.$"
    refuses(message, model.compile, "sgd", name)
    refuses(message, model.compile, loss=keras.losses.get(name))
    refuses(message, SAM(model).compile, "sgd", loss=getattr(keras.losses, LINES[name])())
    model.compile("sgd", getattr(keras.losses, LINES[name])(from_logits=True))


@pytest.mark.parametrize("activation", ["softmax", "sigmoid"])
def test_loss_from_logits_of_probabilities_is_refused(activation):
    model = build(classifier_activation=activation)
    message = r"Write loss=keras.losses.BinaryCrossentropy\(\), or build the model with classifier_activation=None\.$"
    refuses(message, model.compile, "sgd", keras.losses.BinaryCrossentropy(from_logits=True))
    model.compile("sgd", "binary_crossentropy")


def test_losses_and_outputs_in_lists_and_dicts_are_compared():
    model = build()
    two = type(model)(model.input, {"a": model.output, "b": keras.layers.Activation("softmax")(model.output)})
    right = {"a": keras.losses.CategoricalCrossentropy(from_logits=True), "b": Mine()}
    for loss in (right, list(right.values()), {"a": right["a"]}):
        two.compile("sgd", loss)
    for loss in ({"b": right["a"]}, list(right.values())[::-1], right["b"]):
        refuses("from_logits", two.compile, "sgd", loss)
    refuses("from_logits=True, since the model gives logits. Received: Mine", model.compile, "sgd", Mine())


def test_losses_and_outputs_that_are_not_recognised_pass():
    def categorical_crossentropy(y, logits):
        return keras.losses.categorical_crossentropy(y, logits, from_logits=True)

    for loss in (None, "mse", categorical_crossentropy, lambda y, x: x):
        build().compile("sgd", loss)
    build(num_classes=0).compile("sgd", "sparse_categorical_crossentropy")
    build(classifier_activation=keras.ops.exp).compile("sgd", "sparse_categorical_crossentropy")


def test_wrappers_compile_by_the_loss_that_they_use():
    for pretrained in (MAE, SimMIM):
        pretrained(build(pooling="gap", image_size=32)).compile("sgd")
    distiller = Distiller(build(distillation_token=True), build())
    refuses("from_logits=True", distiller.compile, "sgd", "sparse_categorical_crossentropy")
    distiller.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))


def test_file_compiled_with_a_wrong_loss_still_opens(tmp_path, monkeypatch):
    model = build()
    with monkeypatch.context() as patch:
        patch.setattr(losses, "check_loss", lambda *args: None)
        model.compile("sgd", "sparse_categorical_crossentropy")
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    assert again.compiled and again.loss == "sparse_categorical_crossentropy"
    assert again.get_compile_config()["jit_compile"] == "auto"
    np.testing.assert_array_equal(again.get_weights()[-1], model.get_weights()[-1])
