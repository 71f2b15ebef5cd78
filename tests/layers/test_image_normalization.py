import keras
import numpy as np
import pytest
from keras import ops

from keras_vit import Preprocessing
from keras_vit.layers import ImageNormalization

IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}


def test_config_of_version_0_2_is_read():
    old = {"name": "n", "apply": True, "folded": False, "config": None, "class_names": ["a", "b"]}
    constants = {"mean": [0.1, 0.2, 0.3], "std": [0.4], "interpolation": "bicubic", "crop_fraction": 0.9}
    layer = ImageNormalization.from_config({**old, **constants, "multi_label": True, "regression": False})
    assert layer.preprocessing == Preprocessing(**constants)
    assert (layer.task, layer.class_names, layer.apply) == ("multi_label", ["a", "b"], True)


@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_all_pixel_values(dtype):
    x = np.arange(256).astype(dtype).reshape(1, 16, 16, 1)
    y = ops.convert_to_numpy(ImageNormalization(apply=True)(x))
    assert y.dtype == "float32"
    # XLA may divide with an error in the last bit, but the ends are exact.
    np.testing.assert_allclose(y, (x.astype("float64") - 127.5) / 127.5, atol=1.2e-7, rtol=0)
    assert (y.min(), y.max()) == (-1, 1)
    assert (np.diff(y.ravel()) > 0).all()


@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_passes_images_through_by_default(dtype):
    x = np.random.default_rng(0).integers(0, 256, (2, 4, 5, 3)).astype(dtype)
    y = ops.convert_to_numpy(ImageNormalization(IMAGENET)(x))
    assert y.dtype == "float32"
    np.testing.assert_array_equal(y, x)


@pytest.mark.parametrize("name", ["mean", "std"])
def test_another_number_of_channels_is_refused(name):
    with pytest.raises(ValueError, match=f"Expected `{name}` to hold one number, or one .* 1 channels. Received: "):
        ImageNormalization({name: IMAGENET[name]})(np.zeros((1, 4, 4, 1)))


def test_images_on_another_device_are_moved():
    import torch

    # As images on the CPU, and Keras on a GPU.
    images, layer = torch.zeros(2, 4, 4, 3), ImageNormalization(apply=False)
    with keras.device("meta"):
        assert layer.normalize(images).device.type == layer.raw_images(images).device.type == "meta"
        assert ImageNormalization(dtype="bfloat16").call(images).device.type == "meta"
