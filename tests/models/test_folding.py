import re

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.training import enable_lora
from tests.errors import refuses
from tests.models.bit import test_model as bit
from tests.models.small import answers
from tests.tiny import assert_close, build, randomize
from tests.weights.helpers import check_not_saved, check_refused, unchanged

RNG = np.random.default_rng(0)
IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
RAW = {"include_preprocessing": True, "preprocessing": IMAGENET}
KINDS = {
    "plain": {},
    "one constant": {"preprocessing": {"mean": 0.5, "std": 0.25}},
    "one channel": {"in_channels": 1, "preprocessing": {"mean": 0.4, "std": 0.3}, "image_size": (18, 27)},
    "any size": {"image_size": (None, None), "grid_size": (4, 4)},
    "merging, registers": {"token_merging": 3, "num_registers": 2, "pooling": "gap"},
    "two heads": {"distillation_token": True, "return_both_heads": True},
}


@pytest.mark.parametrize("kind", KINDS)
def test_folded_model_gives_the_same_outputs(kind, tmp_path):
    model = build(**{**RAW, **KINDS[kind]})
    before = model.get_weights()
    size = (16, 24) if kind == "any size" else model.input_shape[1:3]
    images = RNG.integers(0, 256, (3, *size, model.input_shape[-1])).astype("uint8")
    folded = keras_vit.fold_preprocessing(model)
    folded.save(tmp_path / "folded.keras")
    clone = keras.models.clone_model(folded)
    clone.set_weights(folded.get_weights())
    for copy in (folded, keras.saving.load_model(tmp_path / "folded.keras"), clone):
        assert_close(*(keras.tree.flatten(each(images)) for each in (copy, model)), rtol=1e-7, atol=1e-4)
    assert unchanged(model, before)
    assert [layer.name for layer in folded.layers] == [layer.name for layer in model.layers]
    assert folded.name == model.name


def test_folded_constants_stay_readable():
    folded = keras_vit.fold_preprocessing(build(**RAW))
    images = RNG.uniform(0, 255, (1, 16, 16, 3)).astype("float32")
    np.testing.assert_array_equal(keras_vit.preprocess_input(images, folded), images)
    np.testing.assert_array_equal(keras_vit.inspection.inputs.raw_pictures(folded, images), images)
    assert folded.get_layer("normalization").preprocessing.mean == IMAGENET["mean"]
    # The folded model saves a pass over the pixels.
    (row,) = (row for row in keras_vit.profile(folded).rows if row.name == "normalization")
    assert row.activation_bytes == 0


def test_folding_keeps_layers_frozen():
    model = build(**RAW)
    for layer in model.layers[:-1]:
        layer.trainable = False
    assert [w.path for w in keras_vit.fold_preprocessing(model).trainable_weights] == ["head/kernel", "head/bias"]


def test_folding_keeps_lora():
    model = build(**RAW)
    enable_lora(model, rank=2, alpha=3.0)
    randomize(model)
    folded = keras_vit.fold_preprocessing(model)
    assert [(w.path, w.trainable) for w in folded.weights] == [(w.path, w.trainable) for w in model.weights]
    images = RNG.uniform(0, 255, (2, 16, 16, 3)).astype("float32")
    np.testing.assert_allclose(answers(folded, images), answers(model, images), rtol=1e-4, atol=1e-4)


def with_another_reader():
    model = build(**RAW)
    scaled = keras.layers.GlobalAveragePooling2D(name="mean_color")(model.get_layer("normalization").output)
    return keras.Model(model.input, [model.output, scaled])


@pytest.mark.parametrize(
    "make, message",
    [
        (build, "not folded yet. Received: model 'vit_B16' with include_preprocessing=False"),
        (lambda: keras_vit.fold_preprocessing(build(**RAW)), "include_preprocessing=True, folded=True"),
        (lambda: build(stages=(1,), width_factor=0.5, image_size=32, patch_size=2, **RAW), "in which root_conv reads"),
        (lambda: build(**RAW, patch_bias=False), "a model with patch_bias=True"),
        (with_another_reader, "in which mean_color reads them too"),
        (lambda: build(**RAW, dtype="mixed_bfloat16"), "and a patch embedding in bfloat16"),
        (lambda: keras.Sequential([keras.Input((16, 16, 3)), build(**RAW)]), "pass the layer: model.get_layer"),
        (lambda: bit.build(include_preprocessing=True), "layers named normalization, patch_embedding, block_00"),
    ],
    ids=["scaled", "twice", "hybrid", "no bias", "another reader", "bfloat16", "nested", "BiT"],
)
def test_folding_refuses_models_it_would_change(make, message):
    refuses(re.escape(message), keras_vit.fold_preprocessing, make())


def test_functions_of_weights_refuse_a_folded_model(tmp_path):
    model = randomize(build(**RAW, name="raw"))
    folded = keras_vit.fold_preprocessing(model)
    keras_vit.save_weights(model, tmp_path / "weights.npz")
    check_not_saved("preprocessing folded into its patch embedding. Nothing was", folded, tmp_path / "folded.npz")
    check_refused("is not folded into its weights. Received: model 'raw'", tmp_path / "weights.npz", into=folded)
    refuses("not folded into its filters. Received: model 'raw'", keras_vit.inspection.embedding_filters, folded)
    refuses("without folded preprocessing.*Received: model 'raw'", keras_vit.pretraining.SimMIM, folded)
