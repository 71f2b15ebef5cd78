import json

import keras
import numpy as np
import pytest

from keras_vit.distillation import losses
from tests.distillation.models import numpy
from tests.errors import refuses
from tests.golden import GOLDEN_FOLDER

RNG = np.random.default_rng(0)
TEACHER, STUDENT = (RNG.normal(size=(6, 5)).astype("float32") * 3 for _ in range(2))
FUNCTIONS = (losses.hard_distillation, losses.soft_distillation)


def test_losses_equal_the_golden_file():
    arrays = np.load(GOLDEN_FOLDER / "deit_distillation_loss.npz")
    expected = json.loads((GOLDEN_FOLDER / "deit_distillation_loss.json").read_text())
    base = keras.losses.SparseCategoricalCrossentropy(from_logits=True)(arrays["labels"], arrays["logits"])
    assert len(expected) == 8
    for name, value in expected.items():
        kind, alpha, temperature = name.split("_")
        temperature = float(temperature.removeprefix("tau"))
        loss = losses.HardDistillation() if kind == "hard" else losses.SoftDistillation(temperature)
        found = loss(arrays["teacher_logits"], arrays["dist_logits"])
        whole = losses.weighted_loss(base, found, float(alpha.removeprefix("alpha")))
        assert float(whole) == pytest.approx(value, abs=1e-5), name


@pytest.mark.parametrize("function", FUNCTIONS)
def test_logits_may_be_extreme_or_float16_but_of_the_same_classes(function):
    certain = np.array([[1e4, 0.0, -1e4]], "float32")
    assert np.isfinite(numpy(function(certain, -certain))).all()
    half = function(TEACHER.astype("float16"), STUDENT.astype("float16"))
    assert keras.backend.standardize_dtype(half.dtype) == "float32"
    np.testing.assert_allclose(numpy(half), numpy(function(TEACHER, STUDENT)), atol=0.02)
    refuses(r"5 classes, as in `logits`. Received: .shape \(6, 1\)", function, TEACHER[:, :1], STUDENT)


def test_losses_reload_from_config():
    for loss in (losses.HardDistillation(), losses.SoftDistillation(7.0)):
        again = keras.losses.deserialize(keras.losses.serialize(loss))
        assert float(again(TEACHER, STUDENT)) == float(loss(TEACHER, STUDENT))
