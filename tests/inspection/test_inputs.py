import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.inspection import attention_maps, attention_rollout, gradient_rollout, patch_layout
from keras_vit.inspection.inputs import raw_pictures
from tests.errors import refuses
from tests.inspection import reference

HYBRID = {"stages": (1, 1), "width_factor": 0.5, "patch_size": 1}
LAYOUTS = [
    ({"image_size": (11, 14)}, (11, 14), ((11, 14), (2, 3), (4, 4), 1)),
    ({"image_size": (None, None), "num_registers": 2}, (8, 12), ((8, 12), (2, 3), (4, 4), 3)),
    ({"pooling": "map"}, (8, 12), ((8, 12), (2, 3), (4, 4), 0)),
    ({**HYBRID, "image_size": (32, 48)}, (32, 48), ((32, 48), (4, 6), (8, 8), 1)),
    ({"patch_dropout_rate": 0.5, "dropout_rate": 0.5}, (8, 12), ((8, 12), (2, 3), (4, 4), 1)),
]


@pytest.mark.parametrize("changes, size, layout", LAYOUTS)
def test_patch_layout(changes, size, layout):
    model, _ = reference.build(**changes)
    images = np.random.default_rng(0).normal(size=(2, *size, 3)).astype("float32")
    assert patch_layout(model, images) == layout
    assert attention_rollout(model, images).shape == (2, *layout[1])
    assert np.isfinite(gradient_rollout(model, images)).all()


@pytest.mark.parametrize("raw", [False, True])
def test_pictures_of_inputs_are_unscaled_images(raw):
    constants = {"mean": (0.1, 0.4, 0.5), "std": (0.2, 0.3, 0.6)}
    model, _ = reference.build(include_preprocessing=raw, preprocessing=constants)
    images = np.random.default_rng(0).integers(0, 256, (2, 8, 12, 3)).astype("uint8")
    nested = keras.Sequential([keras.Input((8, 12, 3)), keras.layers.RandomFlip(seed=0), model])
    pictures = raw_pictures(nested, keras_vit.preprocess_input(images, model))
    np.testing.assert_allclose(pictures, images, atol=1e-3)


def own_layers(pooling):
    """Returns a ViT that a user built from the package's layers, without a config."""
    inputs = keras.Input((8, 12, 3))
    x = keras_vit.layers.PatchEmbedding(12, patch_size=4)(inputs)
    x = keras_vit.layers.ClassToken()(x)
    x = keras_vit.layers.PositionEmbedding((2, 3), num_prefix_tokens=1)(x)
    for _ in range(2):
        x = keras_vit.layers.TransformerBlock(num_heads=3, mlp_dim=20)(x)
    return keras.Model(inputs, keras.layers.Dense(5)(pooling(x)))


def test_inspection_of_vit_from_own_layers():
    images = np.random.default_rng(0).normal(size=(2, 8, 12, 3)).astype("float32")
    by_layer = own_layers(keras_vit.layers.TokenPooling("token", num_prefix_tokens=1))
    assert patch_layout(by_layer, images) == ((8, 12), (2, 3), (4, 4), 1)
    rollout = attention_rollout(by_layer, images)
    first, second = (maps.mean(axis=1) + np.eye(7) for maps in attention_maps(by_layer, images, blocks=None))
    expected = (second / 2 @ (first / 2))[:, 0, 1:].reshape(2, 2, 3)
    np.testing.assert_allclose(rollout, expected, atol=1e-5)
    assert gradient_rollout(by_layer, images).shape == (2, 2, 3)
    by_slice = own_layers(lambda x: x[:, 0])
    refuses("a layer of type TokenPooling or AttentionPooling, or readout='token'", attention_rollout, by_slice, images)
    by_slice.set_weights(by_layer.get_weights())
    np.testing.assert_allclose(attention_rollout(by_slice, images, readout="token"), rollout, atol=1e-5)


def test_inspection_checks_images_like_prediction():
    model, images = reference.build()
    raw = np.random.default_rng(0).integers(0, 256, images.shape)
    for function in (attention_maps, attention_rollout, gradient_rollout, patch_layout):
        refuses("Expected images of -1 to 1, as the model takes them. Received: values from 0", function, model, raw)
        refuses("arrays of images, as keras_vit.read_image.*cat.jpg", function, model, ["cat.jpg"])
