import keras
import numpy as np
from keras import ops

import keras_vit
from tests.errors import refuses
from tests.models.small import images


def build(**changes):
    """The smallest BiT model: its norms have 32 groups."""
    tiny = {"image_size": (32, 41), "stages": (2, 1), "width_factor": 0.5, "num_classes": 5}
    return keras_vit.BiT("R50x1", **{**tiny, "head_init": "glorot_uniform", **changes})


def test_bit_layers_are_flat_and_named():
    names = [layer.name for layer in build().layers]
    units = ["stage_1_unit_01", "stage_1_unit_02", "stage_2_unit_01"]
    ends = ["norm", "relu", "pooling", "head"]
    assert names == ["images", "normalization", "root_conv", "root_pool", *units, *ends]


def test_bit_stages_after_the_first_halve_the_image():
    model = keras_vit.BiT("R50x1", image_size=(224, 161), stages=(1, 1, 1, 1), width_factor=0.5, num_classes=0)
    shapes = [model.get_layer(f"stage_{i}_unit_01").output.shape[1:] for i in (1, 2, 3, 4)]
    assert shapes == [(56, 41, 128), (28, 21, 256), (14, 11, 512), (7, 6, 1024)]
    assert model.output_shape == (None, 1024)


def test_bit_weights_with_other_epsilons_are_refused(tmp_path):
    model = build(resnet_epsilons="timm", pool_padding="zeros")
    refuses("resnet_epsilons='official'", keras_vit.save_weights, model, tmp_path / "model.npz")
    keras_vit.save_weights(model, tmp_path / "model.npz", allow="resnet_epsilons")
    refuses("resnet_epsilons='timm'", keras_vit.load_weights, build(), tmp_path / "model.npz")
    assert keras_vit.from_pretrained(tmp_path / "model.npz").config == model.config
    changes = {"stages": (2, 1), "width_factor": 0.5, "num_classes": 5, "weights": tmp_path / "model.npz"}
    found = keras_vit.BiT("R50x1", **changes).config
    assert (found.resnet_epsilons, found.pool_padding) == ("timm", "zeros")
    assert keras_vit.BiT("R50x1", resnet_epsilons="official", **changes).config.resnet_epsilons == "official"


def test_pool_padding_changes_only_the_edge():
    lowest, zeros = build(), build(pool_padding="zeros")
    zeros.set_weights(lowest.get_weights())
    x = images(1, 32, 41, 3)
    taps = [keras.Model(m.input, [m.get_layer("root_pool").output, m.output]) for m in (lowest, zeros)]
    (a, y), (b, z) = ([ops.convert_to_numpy(out) for out in tap.predict_on_batch(x)] for tap in taps)
    np.testing.assert_array_equal(a[:, 1:-1, 1:-1], b[:, 1:-1, 1:-1])
    np.testing.assert_array_equal(np.maximum(a[:, 0], 0), b[:, 0])
    assert np.abs(a - b).max() > 0.1 and np.abs(y - z).max() > 1e-4
