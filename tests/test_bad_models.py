"""Passes a value that is no model to the public functions that take a model. The error must name the argument."""

import numpy as np
import pytest

from keras_vit import config_of, evaluation, preprocess_input, save_weights, training
from tests.errors import refuses

IMAGES, LABELS = np.zeros((2, 16, 16, 3), "float32"), np.zeros(2, int)
CALLS = {
    "accuracy": lambda model: evaluation.accuracy(model, (IMAGES, LABELS)),
    "compile_forward": training.compile_forward,
    "config_of": config_of,
    "enable_lora": lambda model: training.enable_lora(model, rank=2),
    "freeze": training.freeze,
    "knn_accuracy": lambda model: evaluation.knn_accuracy(model, (IMAGES, LABELS), (IMAGES, LABELS)),
    "layer_decay": lambda model: training.LayerDecay.from_model("sgd", model),
    "preflight": lambda model: training.preflight(model, (IMAGES, LABELS)),
    "preprocess_input": lambda model: preprocess_input(IMAGES, model),
    "save_weights": lambda model: save_weights(model, "new.npz"),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("value", ["ViTB16", 5], ids=str)
def test_value_that_is_no_model_is_refused(name, value):
    refuses(f"`model`. Expected a keras.Model. Received: {value!r}", CALLS[name], value)
