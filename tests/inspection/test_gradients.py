import numpy as np
import pytest
from keras import ops

from keras_vit.inspection import gradient_rollout
from tests.errors import refuses
from tests.inspection import reference
from tests.tiny import build, randomize

STEP = 1e-5
KINDS = [
    pytest.param({}, marks=pytest.mark.every_backend, id="plain"),
    pytest.param({"num_registers": 1}, id="registers"),
    pytest.param({"distillation_token": True}, id="distilled"),
    pytest.param({"pooling": "gap"}, id="gap"),
]


def gradient_by_differences(model, images, block, index):
    """Returns the gradient of an output with respect to a block's attention weights, by central differences."""
    shape = reference.run(model, images)[1][block].shape
    gradient = np.zeros(shape)
    for place in np.ndindex(shape[1:]):
        change = np.zeros(shape)
        change[(0, *place)] = STEP
        up, down = (reference.run(model, images, changes={block: sign * change})[0][0, index] for sign in (1, -1))
        gradient[(0, *place)] = (up - down) / (2 * STEP)
    return gradient


@pytest.mark.parametrize("changes", KINDS)
def test_gradient_rollout_matches_finite_differences(changes):
    model, images = reference.build(**changes)
    product = None
    for block, scores in enumerate(reference.run(model, images[:1])[1]):
        weighted = np.maximum(scores * gradient_by_differences(model, images[:1], block, 2), 0).mean(axis=1)[0]
        step = np.eye(len(weighted)) + weighted
        product = step if product is None else step @ product
    product -= np.eye(len(product))
    prefix = len(product) - 6
    row = product[reference.read(changes, prefix)].mean(axis=0)
    actual = gradient_rollout(model, images, classes=2)
    np.testing.assert_allclose(actual[0], row[prefix:].reshape(2, 3), atol=1e-5)
    assert actual.max() > 1e-3, "nothing to compare"


def test_target_classes_are_ints_names_or_argmax():
    model, images = reference.build(class_names=["cat", "dog", "daisy", "fox", "owl"])
    of_one, of_four = (gradient_rollout(model, images, classes=c) for c in (1, 4))
    assert np.abs(of_one - of_four).max() > 1e-4
    both = gradient_rollout(model, images, classes=[1, 4])
    np.testing.assert_allclose(both, [of_one[0], of_four[1]], atol=1e-5)
    of_best = gradient_rollout(model, images, classes=ops.convert_to_numpy(model(images)).argmax(axis=1))
    np.testing.assert_allclose(gradient_rollout(model, images), of_best, atol=1e-6)
    np.testing.assert_array_equal(gradient_rollout(model, images, classes=["dog", "owl"]), both)
    np.testing.assert_array_equal(gradient_rollout(model, images[:1], classes="dog"), of_one[:1])
    expected = "a name that exactly one class has. Received: 'dasy'. Did you mean 'daisy'"
    refuses(expected, gradient_rollout, model, images, "dasy")


@pytest.mark.every_backend
@pytest.mark.parametrize("changes", [{"layer_scale_init": 0.5}, {"gated_mlp": True, "mlp_norm": True}])
def test_gradient_rollout_in_mixed_precision_is_close(changes):
    images = np.random.default_rng(0).uniform(-1, 1, (2, 16, 16, 3)).astype("float32")
    models = [randomize(build(dtype=dtype, **changes), scale=0.3) for dtype in ("float32", "mixed_bfloat16")]
    expected, actual = (gradient_rollout(model, images, classes=1) for model in models)
    np.testing.assert_allclose(actual, expected, atol=0.1 * np.abs(expected).max())


def test_gradient_rollout_refuses_invalid_classes_or_model():
    model, images = reference.build()
    refuses(r"`classes` to be integers of 0..4. Received: \[5, 5\]", gradient_rollout, model, images, classes=5)
    for classes in ([1], [[1, 2]]):
        refuses("one integer, or one for each of 2 images. Received: ", gradient_rollout, model, images, classes)
    two, images = reference.build(distillation_token=True, return_both_heads=True)
    refuses(r"output is \(batch, classes\)", gradient_rollout, two, images)
    # Quantized attention has no gradient.
    model.get_layer("block_01").attention.out.quantize("int8")
    refuses("without quantized attention.*Received: model 'vit_B16'.*'int8'", gradient_rollout, model, images)
