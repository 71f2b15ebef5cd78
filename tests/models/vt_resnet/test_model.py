import keras

import keras_vit


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
