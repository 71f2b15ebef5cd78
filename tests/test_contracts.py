"""The tests that Keras and KerasHub have for their own layers and models, on those of this package."""

import inspect

import numpy as np
import pytest

from keras_vit import layers
from keras_vit.models.family import FamilyModel
from tests import tiny
from tests.layers.test_contract import ON_EVERY_BACKEND, TOKENS
from tests.models.bit import test_model as bit
from tests.models.coatnet import test_model as coatnet
from tests.models.efficientnet import test_model as efficientnet
from tests.models.vit import test_hybrid as hybrid
from tests.models.vt_resnet import test_model as vt_resnet
from tests.peers import peer

pytestmark = [pytest.mark.long, pytest.mark.every_backend]
MORE = [(layers.ClassToken, {}, TOKENS, (3, 6, 8), {"num_weights": 1})]
MORE += [(layers.RotaryEmbedding, {"kind": "dinov3", "head_dim": 8, "patch_size": 4}, (2, 8, 12, 3), None, {})]
CASES = [row for row in ON_EVERY_BACKEND + MORE if row[0].__name__ in layers.__all__]


def test_every_public_layer_has_a_case():
    assert {row[0] for row in CASES} == {getattr(layers, name) for name in layers.__all__}


@pytest.mark.parametrize(
    "cls, arguments, shape, output_shape, numbers", CASES, ids=lambda value: getattr(value, "__name__", "")
)
def test_layer_passes_the_tests_of_keras(cls, arguments, shape, output_shape, numbers):
    if isinstance(shape, list):
        names = list(inspect.signature(cls.call).parameters)[1:]
        shape = {f"{name}_shape": each for name, each in zip(names, shape, strict=False)}
    peer("keras.src.testing").TestCase().run_layer_test(
        cls,
        arguments,
        input_shape=shape,
        # The number of tokens that a symbolic PatchDropout returns is unknown.
        expected_output_shape=None if cls is layers.PatchDropout else output_shape,
        expected_num_trainable_weights=numbers.get("num_weights", 0),
        expected_num_seed_generators=numbers.get("num_seeds", 0),
        # Keras would train a layer on one input.
        run_training_check=not isinstance(shape, dict),
    )


class Builder(type):
    """The type of a class that KerasHub's tests can call and compare with the models of a family."""

    def __call__(cls, **arguments):
        return cls.build(**arguments)

    def __instancecheck__(cls, model):
        return isinstance(model, FamilyModel)


@pytest.mark.parametrize("family", [tiny, hybrid, bit, coatnet, efficientnet, vt_resnet], ids=lambda f: f.__name__)
def test_model_passes_the_tests_of_keras_hub(family):
    """The tests of precision and quantization are left out, since the head computes in float32 under each policy."""
    tests, model = peer("keras_hub.src.tests.test_case").TestCase(), family.build()
    tests.run_serialization_test(model)
    images = np.random.default_rng(0).normal(size=(2, *model.input_shape[1:])).astype("float32")
    tests.run_model_saving_test(Builder("Model", (), {"build": staticmethod(family.build)}), {}, images)
