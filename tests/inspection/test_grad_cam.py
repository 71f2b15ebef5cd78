import keras
import numpy as np
import pytest
from keras import ops

from keras_vit.inspection import attention_overlay, grad_cam
from tests import tiny
from tests.errors import refuses
from tests.models.bit import test_model as bit
from tests.models.coatnet import test_model as coatnet
from tests.models.efficientnet import test_model as efficientnet

NAMES = ["daisy", "rose", "tulip", "violet", "poppy"]
MODELS = {
    "BiT": lambda: bit.build(class_names=NAMES),
    "CoAtNet": lambda: coatnet.build(representation_size=None, norm_after_pooling=False, class_names=NAMES),
    "EfficientNet": lambda: efficientnet.build(class_names=NAMES),
}


def images_for(model, number=3):
    return np.random.default_rng(0).uniform(-1, 1, (number, *model.input_shape[1:])).astype("float32")


def read(tensor, model, images):
    return ops.convert_to_numpy(keras.Model(model.input, tensor)(images))


@pytest.mark.long_elsewhere
@pytest.mark.parametrize("build", MODELS.values(), ids=MODELS)
def test_grad_cam_matches_direct_computation(build):
    """The logits are linear in the pooled map, so the gradient is the class's column of the head's kernel."""
    model = build()
    images, classes = images_for(model), [1, 4, 0]
    maps = read(model.get_layer("pooling").input, model, images)
    columns = ops.convert_to_numpy(model.get_layer("head").kernel)[:, classes].T
    expected = np.maximum(np.einsum("brsc,bc->brs", maps, columns), 0) / np.prod(maps.shape[1:3])
    actual = grad_cam(model, images, [NAMES[i] for i in classes], batch_size=2)
    assert actual.dtype == "float32" and actual.max() > 0
    np.testing.assert_allclose(actual, expected, rtol=1e-3, atol=1e-5 * expected.max())
    best = ops.convert_to_numpy(model(images)).argmax(axis=1)
    np.testing.assert_allclose(grad_cam(model, images), grad_cam(model, images, best), rtol=1e-5, atol=1e-7)
    assert attention_overlay(np.full(images.shape, 200), actual).shape == images.shape


def test_grad_cam_of_inner_layer_of_nested_model():
    """Compares the gradient of a unit's output, behind which units and a norm follow, with finite differences."""
    inner = bit.build(num_classes=0)
    inputs = keras.Input(inner.input_shape[1:])
    head = keras.layers.Dense(4, name="mine")
    model = keras.Model(inputs, head(inner(keras.layers.RandomFlip(seed=0)(inputs))))
    images = images_for(model, 1)
    unit = inner.get_layer("stage_1_unit_02")
    maps = read(unit.output, inner, images)
    rest = keras.Model(unit.output, inner.output)
    step, weights = 2e-3 * np.abs(maps).mean(), np.zeros(maps.shape[-1])
    for channel in range(len(weights)):
        change = np.zeros(maps.shape, "float32")
        change[..., channel] = step
        up, down = (ops.convert_to_numpy(head(rest(maps + sign * change)))[0, 2] for sign in (1, -1))
        # All places change together, and the weight is the mean over them.
        weights[channel] = (up - down) / (2 * step) / np.prod(maps.shape[1:3])
    expected = np.maximum(maps @ weights, 0)
    actual = grad_cam(model, images, 2, layer="stage_1_unit_02")
    np.testing.assert_allclose(actual, expected, atol=0.03 * expected.max())


def test_grad_cam_of_merge_layer():
    inputs = keras.Input((8, 8, 3))
    maps = keras.layers.Add(name="add")([keras.layers.Conv2D(4, size)(inputs) for size in (1, 1)])
    head = keras.layers.Dense(3)
    model = keras.Model(inputs, head(keras.layers.GlobalAveragePooling2D()(maps)))
    images = images_for(model)
    expected = np.maximum(read(maps, model, images) @ ops.convert_to_numpy(head.kernel)[:, 1], 0) / 64
    np.testing.assert_allclose(grad_cam(model, images, 1, layer="add"), expected, rtol=1e-4, atol=1e-6)


def test_grad_cam_refuses_models_without_feature_map():
    vit = tiny.build()
    images = images_for(vit)
    refuses("GlobalAveragePooling2D.*Use gradient_rollout for a ViT", grad_cam, vit, images)
    refuses(r"\(batch, rows, columns, channels\). Received: layer 'block_00'", grad_cam, vit, images, layer="block_00")
    refuses("name of one layer.*'block_9', the name of 0 layers", grad_cam, vit, images, layer="block_9")
    model = bit.build()
    refuses("the model has no class names. Received: 'rose'", grad_cam, model, images_for(model), "rose")
