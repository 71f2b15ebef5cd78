import keras
import numpy as np
from keras import ops

import keras_vit
from tests.models.small import images


def build(**changes):
    """Builds the smallest VT-ResNet with both kinds of tokenizer."""
    tiny = {"image_size": (32, 41), "stages": (1, 1), "num_modules": 2, "width": 4, "num_tokens": 3, "token_dim": 12}
    tiny |= {"key_dim": 6, "num_classes": 5, "head_init": "glorot_uniform"}
    return keras_vit.VTResNet("R18", **{**tiny, **changes})


def test_vt_modules_work_on_a_sixteenth_of_the_image():
    with keras.StatelessScope(initialize_variables=False):
        model = keras_vit.VTResNet34(num_classes=0)
    shapes = [[y.shape for y in keras.tree.flatten(model.get_layer(f"vt_{i}").output)] for i in (1, 2, 3)]
    assert shapes == 2 * [[(None, 14, 14, 256), (None, 16, 1024)]] + [[(None, 16, 1024)]]
    assert model.output_shape == (None, 1024)
    keras.utils.clear_session(free_memory=False)


def test_vt_resnet_trains_in_bfloat16():
    model = build(dtype="mixed_bfloat16", drop_path_rate=0.2)
    assert model.get_layer("vt_1").compute_dtype == "bfloat16"
    assert {model.get_layer(name).compute_dtype for name in ("pooling", "head")} == {"float32"}
    before = [ops.convert_to_numpy(weight) for weight in model.weights]
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    loss = model.fit(images(4, 32, 41, 3), np.array([0, 1, 2, 3]), batch_size=2, verbose=0).history["loss"]
    assert np.isfinite(loss).all() and model.predict(images(2, 32, 41, 3), verbose=0).dtype == "float32"
    assert any((ops.convert_to_numpy(w) != old).any() for w, old in zip(model.weights, before, strict=True))
