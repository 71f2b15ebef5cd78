"""Runs Keras' own test of layers on each public layer."""

import pytest

from keras_vit import layers

testing = pytest.importorskip("keras.src.testing", reason="Keras without its test helpers")
TOKENS, IMAGES = (2, 6, 8), (2, 8, 12, 3)
BOTH = {"tokens_shape": TOKENS, "images_shape": IMAGES}
# {layer: (arguments, shape of the input, or of each input by name)}
CASES = {
    "MLP": ({"mlp_dim": 16, "dropout_rate": 0.1}, TOKENS),
    "AttentionPooling": ({"num_heads": 2, "mlp_dim": 16}, TOKENS),
    "ClassToken": ({}, TOKENS),
    "DropPath": ({"rate": 0.5}, TOKENS),
    "ImageNormalization": ({"apply": True}, IMAGES),
    "LayerScale": ({}, TOKENS),
    "MultiHeadSelfAttention": ({"num_heads": 2, "qk_norm": True}, TOKENS),
    "PatchDropout": ({"rate": 0.5, "num_prefix_tokens": 1}, TOKENS),
    "PatchEmbedding": ({"hidden_dim": 8, "patch_size": 4}, IMAGES),
    "PatchMap": ({"patch_size": 4}, BOTH),
    "Patches": ({"patch_size": 4}, IMAGES),
    "PositionEmbedding": ({"patch_size": 4}, BOTH),
    "RotaryEmbedding": ({"kind": "dinov3", "head_dim": 8, "patch_size": 4}, IMAGES),
    "TokenPooling": ({"method": "token_gap", "num_prefix_tokens": 1}, TOKENS),
    "TransformerBlock": ({"num_heads": 2, "mlp_dim": 16, "drop_path_rate": 0.1}, TOKENS),
}


class Case(testing.TestCase):
    def runTest(self):
        """`unittest` needs a test."""


@pytest.mark.long
@pytest.mark.every_backend
@pytest.mark.parametrize("name", layers.__all__)
def test_layer_passes_the_test_of_keras(name):
    arguments, shape = CASES[name]
    # Keras' training step passes one input only.
    trains = not isinstance(shape, dict)
    Case().run_layer_test(getattr(layers, name), arguments, input_shape=shape, run_training_check=trains)
