import re

import keras
import numpy as np
import pytest
from keras import ops

import keras_vit
from tests.contract import check_model, check_nan, randomize

PARAMETERS = {
    "VTResNet18": 11_811_752,
    "VTResNet34": 21_792_168,
    "VTResNet50": 23_246_760,
    "VTResNet101": 42_291_112,
}


def build(**changes):
    """The smallest VT-ResNet with both kinds of tokenizer."""
    tiny = {
        "image_size": (32, 41),
        "stages": (1, 1),
        "num_modules": 2,
        "width": 4,
        "num_tokens": 3,
        "token_dim": 12,
        "key_dim": 6,
        "num_classes": 5,
        "head_init": "glorot_uniform",
    }
    return keras_vit.VTResNet("R18", **{**tiny, **changes})


def images(*shape):
    return np.random.default_rng(0).normal(size=shape).astype("float32")


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"num_classes": 0, "in_channels": 1, "include_preprocessing": True},
        {"bottleneck": True, "num_modules": 1, "dropout_rate": 0.01, "drop_path_rate": 0.01},
    ],
)
def test_contract(changes):
    model = build(**changes)
    # Without norms above the ResNet, larger images would round by more than the check allows.
    check_model(model, 0.1 * images(2, *model.input_shape[1:]))


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameter_count(name, count_params):
    assert count_params(getattr(keras_vit, name)) == PARAMETERS[name]


def test_layers_are_flat_and_named():
    names = [layer.name for layer in build(dropout_rate=0.1).layers]
    root = [f"root_{part}" for part in ("padding", "conv", "norm", "relu", "pool")]
    blocks = ["stage_1_unit_01", "stage_2_unit_01", "vt_1", "vt_2"]
    assert names == ["images", "normalization", *root, *blocks, "pooling", "dropout", "head"]


def test_modules_work_on_a_sixteenth_of_the_image():
    with keras.StatelessScope(initialize_variables=False):
        model = keras_vit.VTResNet34(num_classes=0)
    shapes = [[y.shape for y in keras.tree.flatten(model.get_layer(f"vt_{i}").output)] for i in (1, 2, 3)]
    assert shapes == 2 * [[(None, 14, 14, 256), (None, 16, 1024)]] + [[(None, 16, 1024)]]
    assert model.output_shape == (None, 1024)
    keras.utils.clear_session(free_memory=False)


def test_only_the_first_module_has_filters_and_only_the_last_no_projector():
    modules = [build(num_modules=3).get_layer(f"vt_{i}") for i in (1, 2, 3)]
    assert [type(module.tokenizer).__name__ for module in modules] == [
        "FilterTokenizer",
        "RecurrentTokenizer",
        "RecurrentTokenizer",
    ]
    assert [module.projector is None for module in modules] == [False, False, True]


def test_the_mean_of_the_last_tokens_is_classified():
    model = build()
    x = images(2, 32, 41, 3)
    tokens, y = (
        ops.convert_to_numpy(y) for y in keras.Model(model.input, [model.get_layer("vt_2").output, model.output])(x)
    )
    kernel, bias = map(ops.convert_to_numpy, model.head.weights)
    np.testing.assert_allclose(y, tokens.mean(axis=1) @ kernel + bias, rtol=1e-4, atol=1e-5)


def test_its_config_travels_with_it(tmp_path):
    model = build(bottleneck=True, class_names=list("abcde"), mean=0.4)
    config = model.config
    assert config == keras_vit.VTResNetConfig.from_dict(config.to_dict())
    fields = {"family": "vt_resnet", "stages": [1, 1], "bottleneck": True, "num_modules": 2, "token_dim": 12}
    assert fields.items() <= config.to_dict().items()
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    clone = keras.models.clone_model(model)
    own = keras.Model(model.input, keras.layers.Dense(2)(model.get_layer("pooling").output))
    for each in (again, clone, own):
        assert keras_vit.config_of(each) == config and keras_vit.config_of(each).class_names == tuple("abcde")
    assert isinstance(again, keras_vit.models.VTResNetModel)
    model.save_weights(tmp_path / "model.weights.h5")
    other = build(bottleneck=True, mean=0.4)
    other.load_weights(tmp_path / "model.weights.h5")
    x = images(1, 32, 41, 3)
    np.testing.assert_array_equal(*(ops.convert_to_numpy(each(x)) for each in (model, other)))


def test_any_size_at_run_time_is_the_model_of_that_size():
    any_size, fixed = build(image_size=(None, None)), build()
    randomize(fixed, np.random.default_rng(0))
    any_size.set_weights(fixed.get_weights())
    x = images(2, *fixed.input_shape[1:])
    np.testing.assert_allclose(any_size.predict_on_batch(x), fixed.predict_on_batch(x), rtol=1e-5, atol=1e-5)
    assert any_size.predict_on_batch(images(1, 7, 70, 3)).shape == (1, 5)


def test_a_step_in_bfloat16():
    model = build(dtype="mixed_bfloat16", drop_path_rate=0.2)
    assert model.get_layer("vt_1").compute_dtype == "bfloat16"
    assert {model.get_layer(name).compute_dtype for name in ("pooling", "head")} == {"float32"}
    before = [ops.convert_to_numpy(weight) for weight in model.weights]
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    loss = model.fit(images(4, 32, 41, 3), np.array([0, 1, 2, 3]), batch_size=2, verbose=0).history["loss"]
    assert np.isfinite(loss).all() and model.predict(images(2, 32, 41, 3), verbose=0).dtype == "float32"
    assert any((ops.convert_to_numpy(w) != old).any() for w, old in zip(model.weights, before, strict=True))


def test_stochastic_depth_rises_from_the_first_block_to_the_last():
    model = build(drop_path_rate=0.3)
    rates = [model.get_layer(name).drop_path_rate for name in model.config.block_names]
    np.testing.assert_allclose(rates, [0, 0.1, 0.2, 0.3])
    assert model.config == build().config


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"image_size": (16, None)}, "`image_size`"),
        ({"num_classes": -1}, "`num_classes`"),
        ({"stages": 3}, "`stages`. Expected the number of units of each stage, as in (3, 4, 9). Received: 3"),
        ({"bottleneck": 1}, "`bottleneck`. Expected a bool. Received: 1"),
        ({"num_modules": 0}, "`num_modules`. Expected an integer of at least 1. Received: 0"),
        ({"width": 0}, "`width`"),
        ({"num_tokens": 0}, "`num_tokens`"),
        ({"token_dim": 1.5}, "`token_dim`"),
        ({"key_dim": None}, "`key_dim`"),
        ({"dropout_rate": 1}, "`dropout_rate`. Expected a number in [0, 1). Received: 1"),
        ({"drop_path_rate": -0.1}, "`drop_path_rate`"),
        ({"class_names": ["a"]}, "`class_names`"),
    ],
)
def test_bad_arguments_are_named(changes, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        build(**changes)


@pytest.mark.parametrize("variant", ["R152", "r18", 18, None, ["R18"], "R18x1"])
def test_a_variant_that_is_none_is_refused(variant):
    with pytest.raises(ValueError, match=r"`variant`. Expected one of 'R18'.*Received"):
        keras_vit.VTResNet(variant)


@pytest.mark.parametrize("num_classes", [3, 0])
def test_nan_in_an_image_is_nan_in_its_outputs(num_classes):
    check_nan(build(num_classes=num_classes))


@pytest.mark.backends("tensorflow", "torch")
@pytest.mark.parametrize("image_size", [(32, 41), (None, None)])
def test_export(image_size, tmp_path):
    model = build(image_size=image_size)
    if keras.backend.backend() == "tensorflow":
        report = keras_vit.export.saved_model(model, tmp_path / "1")
    else:
        pytest.importorskip("onnxruntime")
        report = keras_vit.export.onnx(model, tmp_path / "model.onnx")
    assert report.difference < 1e-5


def test_other_rooms_say_what_they_expect():
    backbone = build(num_classes=0, include_preprocessing=True)
    with pytest.raises(ValueError, match="Expected a ViT of this package's builders"):
        keras_vit.pretraining.MaskedPatchPrediction(backbone)
    with pytest.raises(ValueError, match="Expected a ViT of this package's builders"):
        keras_vit.fold_preprocessing(backbone)


def test_few_images_a_class_are_classified_by_its_features():
    rng = np.random.default_rng(0)
    labels = np.arange(12) % 2
    x = (rng.normal(size=(12, 32, 41, 3)) + 3 * labels[:, None, None, None]).astype("float32")
    found = keras_vit.evaluation.few_shot_accuracy(build(num_classes=0), (x, labels), (x, labels), shots=4)
    assert float(found) == 1
