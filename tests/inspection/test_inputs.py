import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.inspection import attention_rollout, gradient_rollout, patch_layout
from keras_vit.inspection.inputs import pictures_of
from tests.inspection import reference

HYBRID = {"stages": (1, 1), "width_factor": 0.5, "patch_size": 1}


@pytest.mark.parametrize(
    ("changes", "size", "layout"),
    [
        ({"image_size": (11, 14)}, (11, 14), ((11, 14), (2, 3), (4, 4), 1)),
        ({"image_size": (None, None), "num_registers": 2}, (8, 12), ((8, 12), (2, 3), (4, 4), 3)),
        ({"pooling": "map"}, (8, 12), ((8, 12), (2, 3), (4, 4), 0)),
        ({**HYBRID, "image_size": (32, 48)}, (32, 48), ((32, 48), (4, 6), (8, 8), 1)),
        ({"patch_dropout_rate": 0.5, "dropout_rate": 0.5}, (8, 12), ((8, 12), (2, 3), (4, 4), 1)),
    ],
)
def test_patch_layout(changes, size, layout):
    model, _ = reference.build(**changes)
    images = np.random.default_rng(0).normal(size=(2, *size, 3)).astype("float32")
    assert patch_layout(model, images) == layout
    assert attention_rollout(model, images).shape == (2, *layout[1])
    assert np.isfinite(gradient_rollout(model, images)).all()


@pytest.mark.parametrize("raw", [False, True])
def test_pictures_of_inputs_are_unscaled_images(raw):
    model, _ = reference.build(
        include_preprocessing=raw, preprocessing={"mean": (0.1, 0.4, 0.5), "std": (0.2, 0.3, 0.6)}
    )
    images = np.random.default_rng(0).integers(0, 256, (2, 8, 12, 3)).astype("uint8")
    nested = keras.Sequential([keras.Input((8, 12, 3)), keras.layers.RandomFlip(seed=0), model])
    pictures = pictures_of(nested, keras_vit.preprocess_input(images, model))
    np.testing.assert_allclose(pictures, images, atol=1e-3)
