import dataclasses
import inspect
import math
import re

import keras
import numpy as np
import pytest
from keras import ops

import keras_vit
from keras_vit import inspection, pretraining
from keras_vit.training.layer_decay import layer_multipliers
from keras_vit.training.trainable import enable_lora, freeze
from tests.contract import check_model, check_nan, randomize

# Those of timm and of the paper's table 2, in millions there: without the statistics of the norms.
PARAMETERS = {
    "B0": 5_288_548,
    "B1": 7_794_184,
    "B2": 9_109_994,
    "B3": 12_233_232,
    "B4": 19_341_616,
    "B5": 30_389_784,
    "B6": 43_040_704,
    "B7": 66_347_960,
    "B8": 87_413_142,
    "L2": 480_309_308,
}
SIZES = {"B0": 224, "B1": 240, "B2": 260, "B3": 300, "B4": 380, "B5": 456, "B6": 528, "B7": 600, "B8": 672, "L2": 800}
BLOCKS = {"B0": 16, "B1": 23, "B2": 23, "B3": 26, "B4": 32, "B5": 39, "B6": 45, "B7": 55, "B8": 61, "L2": 88}
WIDTHS = (8, 8, 8, 16, 16, 24, 32, 32, 40)
REPEATS = (1, 2, 1, 1, 2, 1, 1)


def build(**changes):
    small = {"widths": WIDTHS, "repeats": REPEATS, "image_size": (33, 48), "num_classes": 5}
    return keras_vit.EfficientNet("B0", **{**small, "head_init": "glorot_uniform", **changes})


def images(*shape):
    return np.random.default_rng(0).normal(size=shape).astype("float32")


@pytest.mark.parametrize(
    "changes",
    [
        {"drop_path_rate": 0.0, "dropout_rate": 0.0},
        {"num_classes": 0, "in_channels": 1, "padding": "symmetric", "drop_path_rate": 0.0},
    ],
)
def test_contract(changes):
    model = build(**changes)
    # Deep in this small model the training's norms see two pixels.
    check_model(model, images(4, *model.input_shape[1:]))


def statistics(config):
    """The number of running means and variances."""
    norms = config.widths[0] + config.widths[-1]
    channels = config.widths[0]
    for _, stage, width, _ in config.blocks():
        norms += channels * stage.expansion * (2 if stage.expansion > 1 else 1) + width
        channels = width
    return 2 * norms


@pytest.mark.parametrize("variant", PARAMETERS)
def test_parameter_count(variant, count_params):
    builder = getattr(keras_vit, f"EfficientNet{variant}")
    config = keras_vit.EfficientNetConfig.from_variant(variant)
    assert count_params(builder) - statistics(config) == PARAMETERS[variant]
    assert config.image_size == (SIZES[variant],) * 2 and len(config.block_names) == BLOCKS[variant]
    assert config.model_name == f"EfficientNet-{variant}"


def test_the_variants_have_the_papers_dropout():
    rates = [keras_vit.EfficientNet(v, image_size=32, repeats=(1,) * 7, widths=WIDTHS) for v in ("B1", "B2", "L2")]
    assert [model.get_layer("dropout").rate for model in rates] == [0.2, 0.3, 0.5]
    with pytest.raises(ValueError, match="`dropout_rate`"):
        build(dropout_rate=1)


def test_stochastic_depth_grows_from_0_to_the_last_block_but_one_step():
    model = build(drop_path_rate=0.18)
    rates = [model.get_layer(name).drop_path_rate for name in model.config.block_names]
    np.testing.assert_allclose(rates, 0.18 * np.arange(9) / 9)


def test_layers_are_flat_and_named():
    names = [layer.name for layer in build(padding="symmetric").layers]
    blocks = ["stage_1_block_01", "stage_2_block_01", "stage_2_block_02", "stage_3_block_01", "stage_4_block_01"]
    blocks += ["stage_5_block_01", "stage_5_block_02", "stage_6_block_01", "stage_7_block_01"]
    stem = ["images", "normalization", "stem_pad", "stem_conv", "stem_norm", "stem_activation"]
    assert names == [*stem, *blocks, "top_conv", "top_norm", "top_activation", "pooling", "dropout", "head"]
    assert "stem_pad" not in [layer.name for layer in build().layers]


def test_stages_reduce_the_image_32_times():
    model = build(image_size=(225, 160), num_classes=0)
    taps = keras_vit.features(model)
    sides = [(113, 80), (57, 40), (29, 20), (15, 10), (15, 10), (8, 5), (8, 5)]
    assert [y.shape[1:] for y in taps.outputs] == [(*side, w) for side, w in zip(sides, WIDTHS[1:-1], strict=True)]
    with pytest.raises(ValueError, match="Expected VT modules as `blocks` with format='tokens'"):
        keras_vit.features(model, blocks=(0,), format="tokens")


@pytest.mark.parametrize("padding", ["same", "symmetric"])
def test_any_size_at_run_time_is_the_model_of_that_size(padding):
    any_size, fixed = build(image_size=(None, None), padding=padding), build(padding=padding)
    randomize(fixed, np.random.default_rng(0))
    any_size.set_weights(fixed.get_weights())
    x = images(2, *fixed.input_shape[1:])
    np.testing.assert_allclose(any_size.predict_on_batch(x), fixed.predict_on_batch(x), rtol=1e-5, atol=1e-5)
    assert any_size.predict_on_batch(images(1, 7, 70, 3)).shape == (1, 5)


def test_the_record_says_what_the_weights_compute(tmp_path):
    model = build(padding="symmetric", batch_norm_epsilon=1e-5, class_names=list("abcde"))
    config = model.config
    assert (config.widths, config.repeats, config.padding) == (WIDTHS, REPEATS, "symmetric")
    assert keras_vit.EfficientNetConfig.from_dict(config.to_dict()) == config
    assert {model.get_layer(n).epsilon for n in ("stem_norm", "stage_4_block_01", "top_norm")} == {1e-5}
    model.save(tmp_path / "model.keras")
    for again in (keras.saving.load_model(tmp_path / "model.keras"), keras.models.clone_model(model)):
        assert keras_vit.config_of(again) == config and again.preprocessing == model.preprocessing
        assert type(again) is keras_vit.models.EfficientNetModel


def test_every_field_is_an_argument_of_the_builder():
    fields = {field.name for field in dataclasses.fields(keras_vit.EfficientNetConfig)}
    assert not fields - set(inspect.signature(keras_vit.EfficientNet).parameters)


def test_images_are_prepared_as_in_the_official_code():
    for variant, size in SIZES.items():
        found = keras_vit.EfficientNet(variant, widths=WIDTHS, repeats=REPEATS).preprocessing
        assert (found.mean, found.std) == ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
        assert (found.interpolation, found.resize_mode) == ("bicubic", "crop")
        # Resized so that 16 pixels are cut off on each side.
        assert math.floor(size / found.crop_fraction) == size + 32
    assert build(image_size=(None, None)).preprocessing.crop_fraction == 0.875
    advprop = build(mean=0.5, std=0.5).preprocessing
    assert (advprop.mean, advprop.std, advprop.interpolation) == ((0.5,), (0.5,), "bicubic")


@pytest.mark.parametrize("name", ["mixed_bfloat16", "mixed_float16"])
def test_pooling_and_head_compute_in_float32(name):
    float32, model = build(), build(dtype=name)
    model.set_weights(float32.get_weights())
    assert model.get_layer("stage_1_block_01").compute_dtype == name.removeprefix("mixed_")
    assert {model.get_layer(layer).compute_dtype for layer in ("pooling", "head")} == {"float32"}
    x = images(2, 33, 48, 3)
    y = model.predict_on_batch(x)
    assert y.dtype == "float32"
    np.testing.assert_allclose(y, float32.predict_on_batch(x), atol=0.1)


def test_a_step_lowers_the_loss_and_moves_the_statistics():
    model = build(drop_path_rate=0.0, dropout_rate=0.0, image_size=48)
    x, y = images(4, 48, 48, 3), np.arange(4)
    model.compile(keras.optimizers.Adam(3e-3), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    before = ops.convert_to_numpy(model.get_layer("top_norm").moving_mean)
    losses = [float(model.train_on_batch(x, y)) for _ in range(6)]
    assert losses[-1] < losses[0]
    assert not np.array_equal(ops.convert_to_numpy(model.get_layer("top_norm").moving_mean), before)


def test_layers_decay_from_the_head_and_freeze_from_the_stem():
    model = build()
    factors = layer_multipliers(model, 0.5)
    assert [factors[name] for name in ("stem_conv", "stem_norm")] == [0.5**10] * 2
    assert [factors[name] for name in model.config.block_names] == [0.5 ** (9 - i) for i in range(9)]
    assert [factors[name] for name in ("top_conv", "top_norm", "head")] == [1, 1, 1]
    freeze(model)
    assert {w.path.split("/")[0] for w in model.trainable_variables} == {"head"}
    # Frozen norms keep their statistics in training.
    model.compile("sgd", "mse")
    before = ops.convert_to_numpy(model.get_layer("stem_norm").moving_mean)
    inner = ops.convert_to_numpy(model.get_layer("stage_2_block_01").expand_norm.moving_variance)
    model.train_on_batch(images(2, 33, 48, 3), np.zeros((2, 5)))
    np.testing.assert_array_equal(ops.convert_to_numpy(model.get_layer("stem_norm").moving_mean), before)
    after = ops.convert_to_numpy(model.get_layer("stage_2_block_01").expand_norm.moving_variance)
    np.testing.assert_array_equal(after, inner)


def multiply_adds(config, size):
    """Counted by hand: kernel values times pixels."""
    sides, channels = -(-size // 2), config.widths[0]
    total = sides**2 * 27 * channels
    for _, stage, width, strides in config.blocks():
        inside = channels * stage.expansion
        total += sides**2 * channels * inside if stage.expansion > 1 else 0
        sides = -(-sides // strides)
        total += sides**2 * inside * (stage.kernel_size**2 + width) + 2 * inside * (channels // 4)
        channels = width
    return total + sides**2 * channels * config.widths[-1] + config.widths[-1] * config.num_classes


# Billions of table 2 of the paper; L2: timm's count, 172.11, also counts norms and means.
@pytest.mark.parametrize("variant, size, billions", [("B0", 224, 0.39), ("B3", 300, 1.8), ("L2", 475, 172.11)])
def test_multiply_adds(variant, size, billions, count_params):
    found = []

    def profiled():
        model = keras_vit.EfficientNet(variant, image_size=size)
        found.append(keras_vit.profile(model))
        return model

    count = count_params(profiled)
    assert (found[0].parameters, found[0].not_counted) == (count, [])
    assert found[0].multiply_adds == multiply_adds(keras_vit.EfficientNetConfig.from_variant(variant), size)
    assert found[0].multiply_adds / 1e9 == pytest.approx(billions, rel=0.02)


@pytest.mark.filterwarnings("ignore:.*does not have a `quantize` method")
def test_quantized_to_int8_and_reloaded(tmp_path):
    model = build()
    randomize(model, np.random.default_rng(0))
    model.quantize("int8")
    modes = [
        dense.quantization_mode for name in model.config.block_names for dense in model.get_layer(name).dense_layers()
    ]
    assert modes and set(modes) == {"int8"}
    x = images(1, 33, 48, 3)
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(again.predict_on_batch(x), model.predict_on_batch(x), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "function, expected",
    [
        (lambda model, x: enable_lora(model, 2), "a model of this package's builders, with transformer blocks"),
        (lambda model, x: inspection.attention_maps(model, x), "a model that holds a ViT"),
        (lambda model, x: inspection.position_similarity(model), "a model with position embeddings"),
        (lambda model, x: pretraining.MaskedPatchPrediction(model), "a ViT"),
        (lambda model, x: keras_vit.fold_preprocessing(model), "a ViT"),
    ],
)
def test_what_needs_tokens_is_refused(function, expected):
    with pytest.raises(ValueError, match=f"Expected {expected}"):
        function(build(), images(1, 33, 48, 3))


@pytest.mark.parametrize("num_classes", [3, 0])
def test_nan_in_an_image_is_nan_in_its_outputs(num_classes):
    check_nan(build(num_classes=num_classes))


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"image_size": (16, None)}, "`image_size`"),
        ({"in_channels": 0}, "`in_channels`"),
        ({"num_classes": -1}, "`num_classes`"),
        ({"widths": (8, 8)}, "`widths`. Expected 9 integers, the channels of the stem, of each of 7 stages and of the"),
        ({"repeats": (1,) * 8}, "`repeats`. Expected 7 integers, the numbers of blocks of each of 7 stages. Received"),
        ({"repeats": (0,) * 7}, "`repeats`. Expected an integer of at least 1. Received: 0"),
        ({"padding": "valid"}, "`padding`. Expected one of 'same', 'symmetric'. Received: 'valid'"),
        ({"batch_norm_epsilon": 0.0}, "`batch_norm_epsilon`. Expected a number above 0. Received: 0.0"),
        ({"drop_path_rate": 1.0}, "`drop_path_rate`. Expected a number in [0, 1). Received: 1.0"),
    ],
)
def test_bad_arguments_are_named(changes, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        build(**changes)


@pytest.mark.parametrize("variant", ["b0", "B9", "L2-475", "R50x1", "", None, 0])
def test_a_variant_that_is_none_is_refused(variant):
    with pytest.raises(ValueError, match=r"`variant`. Expected one of 'B0', .*'L2'. Received"):
        keras_vit.EfficientNet(variant)


def test_exports_give_the_models_answers(tmp_path):
    pytest.importorskip("onnxruntime")
    model = build(padding="symmetric", include_preprocessing=True)
    randomize(model, np.random.default_rng(0))
    for export, path in ((keras_vit.export.saved_model, "1"), (keras_vit.export.onnx, "model.onnx")):
        # Each compares the file's answers with the model's, and raises if they differ.
        export(model, tmp_path / path)
        assert (tmp_path / path).exists()
