"""Checks that models of all families pass. The contracts of those without convolutions are in other files."""

import pickle

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.training import enable_lora, merge_lora
from tests import tiny
from tests.contract import check_model, check_nan, randomize
from tests.errors import refuses
from tests.models.bit import test_model as bit
from tests.models.coatnet import test_model as coatnet
from tests.models.efficientnet import test_model as efficientnet
from tests.models.small import answers, images
from tests.models.vit import test_hybrid as hybrid
from tests.models.vt_resnet import test_model as vt_resnet

STEM = {"patch_size": (2, 3), "position_embedding": "learned2d", "in_channels": 1}
FEATURES = {"num_classes": 0, "in_channels": 1, "include_preprocessing": True}
RMLP = {"variant": "coatnet_rmlp_1_rw", "include_preprocessing": True, "layer_scale_init": 0.1}
BOTTLENECK = {"bottleneck": True, "num_modules": 1, "dropout_rate": 0.01, "drop_path_rate": 0.01}
SHALLOW = {"depths": (1, 1, 1, 1)}
OF_EFFICIENTNET = {"drop_path_rate": 0.0, "in_channels": 1, "padding": "symmetric"}
# Each choice that a builder offers is in one of them.
CONTRACTS = {
    "bit": (bit.build, {}),
    "bit_features": (bit.build, {**FEATURES, "pool_padding": "zeros"}),
    "hybrid": (hybrid.build, {}),
    "hybrid_stem": (hybrid.build, {"variant": "R+Ti/16", **STEM}),
    "coatnet": (coatnet.build, {}),
    "coatnet_bn": (coatnet.build, {"variant": "coatnet_bn_0_rw", "num_classes": 0, "in_channels": 1, **SHALLOW}),
    "coatnet_rmlp": (coatnet.build, {**RMLP, **SHALLOW}),
    "efficientnet": (efficientnet.build, {"drop_path_rate": 0.0, "dropout_rate": 0.0}),
    "efficientnet_features": (efficientnet.build, {"num_classes": 0, **OF_EFFICIENTNET}),
    "vt_resnet": (vt_resnet.build, {}),
    "vt_resnet_features": (vt_resnet.build, FEATURES),
    "vt_resnet_bottleneck": (vt_resnet.build, BOTTLENECK),
}
BUILDERS = {
    "vit": (tiny.build, "block_00"),
    "bit": (bit.build, "stage_1_unit_01"),
    "hybrid": (hybrid.build, "root_conv"),
    "coatnet": (coatnet.build, "stage_3_block_01"),
    "efficientnet": (efficientnet.build, "stage_1_block_01"),
    "vt_resnet": (vt_resnet.build, "vt_1"),
}
each_builder = pytest.mark.parametrize("family", BUILDERS)
ANY_SIZE = {
    "bit": (bit.build, {}, (7, 70)),
    "hybrid": (hybrid.build, {"position_embedding": "sincos2d"}, (17, 64)),
    "coatnet": (coatnet.build, {"table_image_size": (64, 40)}, (37, 70)),
    "coatnet_rmlp": (coatnet.build, {"variant": "rmlp_0_rw", "table_image_size": (64, 40)}, (37, 70)),
    "efficientnet": (efficientnet.build, {}, (7, 70)),
    "efficientnet_symmetric": (efficientnet.build, {"padding": "symmetric"}, (7, 70)),
    "vt_resnet": (vt_resnet.build, {}, (7, 70)),
}
ROTARY = {"rotary_embedding": "eva02", "hidden_dim": 24, "gated_mlp": True, "mlp_norm": True, "attention_norm": True}
EXPORTED = [(efficientnet.build, {"padding": "symmetric", "include_preprocessing": True}), (tiny.build, ROTARY)]
EXPORTED += [(vt_resnet.build, {"image_size": (None, None)})]
HYBRIDS = ["R50+B", "R50+B/8", "R26+B/16", "R+B/32", "R101+B/16", "R50B/16", "R50+X/16", "+B/16", "R50++B/16"]
ADAPTED = [
    (coatnet.build, {"depths": (1, 1, 1, 1)}, {f"stage_{i}_block_01" for i in (1, 2, 3, 4)}),
    (vt_resnet.build, {}, {"vt_1", "vt_2"}),
    (tiny.build, {**ROTARY, "norm_before_blocks": True, "num_registers": 2}, {"block_00", "block_01"}),
    (tiny.build, {"rotary_embedding": "dinov3", "key_bias": False}, {"block_00", "block_01"}),
]
# The names of the layers between the normalization and the head, which files of Keras also contain.
LAYERS = {
    "vit": "patch_embedding class_token position_embedding block_00 block_01 norm pooling pre_logits",
    "bit": "root_conv root_pool stage_1_unit_01 stage_1_unit_02 stage_2_unit_01 norm relu pooling",
    "hybrid": "root_conv root_norm root_relu root_pool stage_1_unit_01 stage_2_unit_01 stage_2_unit_02"
    " patch_embedding class_token position_embedding block_00 norm pooling pre_logits",
    "coatnet": "stem_conv stem_norm stem_activation stem_conv_2 stage_1_block_01 stage_2_block_01 stage_3_block_01"
    " stage_3_block_02 stage_4_block_01 pooling norm pre_logits pre_logits_tanh",
    "efficientnet": "stem_conv stem_norm stem_activation stage_1_block_01 stage_2_block_01 stage_2_block_02"
    " stage_3_block_01 stage_4_block_01 stage_5_block_01 stage_5_block_02 stage_6_block_01 stage_7_block_01"
    " top_conv top_norm top_activation pooling dropout",
    "vt_resnet": "root_padding root_conv root_norm root_relu root_pool stage_1_unit_01 stage_2_unit_01 vt_1 vt_2"
    " pooling",
}
# (format of a file, builder, setting, value other than the default)
SETTINGS = [
    ("npz", bit.build, "resnet_epsilons", "timm"),
    ("npz", bit.build, "pool_padding", "zeros"),
    ("timm", coatnet.build, "downsampling", "depthwise"),
    ("timm", coatnet.build, "se_activation", "silu"),
    ("timm", efficientnet.build, "padding", "symmetric"),
]
UNKNOWN_VARIANTS = [
    (keras_vit.ViT, "", ["B", "B16", "X/16", "B/0", "B/16.0", "b/16", "", None, 16, *HYBRIDS]),
    (keras_vit.BiT, "", ["R50", "R50x", "R50x0", "R51x1", "r50x1", "50x1", "R50x1.5", "B/16", "", None, 50]),
    (keras_vit.CoAtNet, "", ["6", "coatnet_6_224", "0_rw_22", "", None, 0, "B/16"]),
    (keras_vit.EfficientNet, ". Expected one of 'B0', .*'L2'", ["b0", "B9", "L2-475", "R50x1", "", None, 0]),
    (keras_vit.VTResNet, ". Expected one of 'R18'", ["R152", "r18", 18, None, ["R18"], "R18x1"]),
]
DROP_PATH_RATES = [
    (lambda **rate: tiny.build(num_layers=4, **rate), [0, 0.1, 0.2, 0.3]),
    (vt_resnet.build, [0, 0.1, 0.2, 0.3]),
    # EfficientNet's last block stays one step below the rate.
    (efficientnet.build, 0.3 * np.arange(9) / 9),
]


@pytest.mark.long_elsewhere
@pytest.mark.parametrize("kind", CONTRACTS)
def test_model_contract(kind):
    builder, changes = CONTRACTS[kind]
    model = builder(**changes)
    # The norms deep in the small EfficientNet see two pixels of each image. VT-ResNet has no norms above its ResNet, so
    # larger images would round by more than the check allows.
    count, scale = (4, 1) if "efficientnet" in kind else (2, 0.1) if "vt" in kind else (2, 1)
    # A bias that all keys share does not change the softmax. In an EfficientNet, the batch norm after the next
    # convolution removes a constant that `project_norm` adds to a channel.
    no_gradient = ("position_bias_2", *(["project_norm/beta"] if "efficientnet" in kind else []))
    check_model(model, scale * images(count, *model.input_shape[1:]), no_gradient=no_gradient)


@each_builder
def test_layers_are_flat_and_named(family):
    names = [layer.name for layer in BUILDERS[family][0]().layers]
    assert names == ["images", "normalization", *LAYERS[family].split(), "head"]


# On other backends, ReLU turns NaN into 0.
@pytest.mark.backends("torch")
@each_builder
@pytest.mark.parametrize("num_classes", [3, 0])
def test_nan_in_image_is_nan_in_its_outputs(family, num_classes):
    check_nan(BUILDERS[family][0](num_classes=num_classes))


def test_nan_in_image_is_nan_in_logits_of_other_vits():
    check_nan(tiny.build(pooling="map", token_merging=4))
    check_nan(tiny.build(pooling="gap", token_merging=4, num_registers=2))
    check_nan(tiny.build(distillation_token=True, activation="relu"))


@each_builder
def test_new_head_gives_uniform_probabilities(family):
    model = BUILDERS[family][0](head_init="zeros", classifier_activation="softmax")
    np.testing.assert_allclose(answers(model, images(1, *model.input_shape[1:])), np.full((1, 5), 0.2), atol=1e-7)


@pytest.mark.parametrize("builder, rates", DROP_PATH_RATES)
def test_drop_path_rates_rise_linearly(builder, rates):
    model = builder(drop_path_rate=0.3)
    found = [model.get_layer(name).drop_path_rate for name in model.config.block_names]
    np.testing.assert_allclose(found, rates)
    assert model.config == builder().config


@pytest.mark.parametrize("name, variant", [("R50ViTB16", 'ViT("R50+B/16"'), ("BiTR50x3", 'BiT("R50x3"')])
def test_named_builder_is_documented_and_pickles(name, variant):
    builder = getattr(keras_vit, name)
    assert builder.__name__ == name and f"keras_vit.{variant}, ...)" in builder.__doc__
    assert pickle.loads(pickle.dumps(builder)) is builder
    refuses(f"argument of keras_vit.{name}. Received: variant='R101x1'", builder, variant="R101x1")


@pytest.mark.parametrize("builder, changes, other_size", ANY_SIZE.values(), ids=ANY_SIZE)
def test_any_size_model_equals_fixed_size_model(builder, changes, other_size):
    any_size = builder(**{**changes, "image_size": (None, None)})
    fixed = builder(**{name: value for name, value in changes.items() if name != "table_image_size"})
    randomize(fixed, np.random.default_rng(0))
    any_size.set_weights(fixed.get_weights())
    x = images(2, *fixed.input_shape[1:])
    rtol = 1e-4 if builder is coatnet.build else 1e-5
    np.testing.assert_allclose(any_size.predict_on_batch(x), fixed.predict_on_batch(x), rtol=rtol, atol=1e-5)
    assert any_size.predict_on_batch(images(1, *other_size, 3)).shape == (1, 5)


@each_builder
@pytest.mark.parametrize("dtype", ["mixed_bfloat16", "mixed_float16"])
def test_half_precision_pools_and_classifies_in_float32(family, dtype):
    builder, layer = BUILDERS[family]
    float32, model = builder(), builder(dtype=dtype)
    model.set_weights(float32.get_weights())
    assert model.get_layer(layer).compute_dtype == dtype.removeprefix("mixed_")
    heads = {"head"} if family in ("vit", "hybrid") else {"pooling", "head"}
    assert {model.get_layer(name).compute_dtype for name in heads} == {"float32"}
    x = images(2, *model.input_shape[1:])
    found, expected = model.predict_on_batch(x), float32.predict_on_batch(x)
    assert found.dtype == "float32"
    # Untrained outputs may be tiny, such as EfficientNet's.
    np.testing.assert_allclose(found, expected, rtol=0, atol=0.05 * np.abs(expected).max())


@each_builder
def test_config_survives_files_clones_and_new_heads(family, tmp_path):
    options = {"efficientnet": {"padding": "symmetric", "batch_norm_epsilon": 1e-5}, "vt_resnet": {"bottleneck": True}}
    model = BUILDERS[family][0](class_names=list("abcde"), preprocessing={"mean": 0.4}, **options.get(family, {}))
    config = model.config
    assert type(config).from_dict(config.to_dict()) == config
    model.save(tmp_path / "model.keras")
    again, clone = keras.saving.load_model(tmp_path / "model.keras"), keras.models.clone_model(model)
    assert type(again) is type(clone) is type(model)
    own = keras.Model(model.input, keras.layers.Dense(2)(model.get_layer("pooling").output))
    for each in (again, clone, own):
        found = keras_vit.config_of(each)
        assert found == config and found.class_names == tuple("abcde") and found.preprocessing == model.preprocessing


@pytest.mark.parametrize("builder, changes, adapted", ADAPTED)
def test_lora_trains_its_updates_and_the_head(builder, changes, adapted, tmp_path):
    model = builder(**changes)
    randomize(model, np.random.default_rng(0))
    x = images(4, *model.input_shape[1:])
    before = answers(model, x)
    enable_lora(model, rank=2)
    np.testing.assert_allclose(answers(model, x), before, rtol=1e-4, atol=1e-5)
    trainable = {w.path for w in model.trainable_weights}
    assert {path.split("/")[0] for path in trainable} == adapted | {"head"}
    old = {w.path: keras.ops.convert_to_numpy(w) for w in model.weights}
    model.compile("sgd", "mse")
    model.fit(x, np.ones((4, 5)), epochs=2, verbose=0)
    changed = {w.path for w in model.weights if (keras.ops.convert_to_numpy(w) != old[w.path]).any()}
    # A first factor whose ReLU is off has no gradient. The statistics of batch normalization stay too.
    assert {path for path in trainable if not path.endswith("lora_kernel_a")} <= changed <= trainable
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    assert {w.path for w in again.trainable_weights} == trainable
    for same in (again, merge_lora(model)):
        np.testing.assert_allclose(answers(same, x), answers(model, x), rtol=1e-4, atol=1e-4)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:.*does not have a `quantize` method")
@pytest.mark.parametrize("builder, changes", [(coatnet.build, SHALLOW), (efficientnet.build, {})])
def test_int8_model_survives_its_file(builder, changes, tmp_path):
    model = builder(**changes)
    randomize(model, np.random.default_rng(0))
    model.quantize("int8")
    blocks = [model.get_layer(name) for name in model.config.block_names]
    assert {dense.quantization_mode for block in blocks for dense in block.dense_layers()} == {"int8"}
    x = images(1, *model.input_shape[1:])
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(again.predict_on_batch(x), model.predict_on_batch(x), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("format, builder, name, value", SETTINGS)
def test_file_of_another_setting_is_refused_unless_allowed(format, builder, name, value, tmp_path):
    variant = {"variant": "coatnet_0_rw", "image_size": 64} if builder is coatnet.build else {}
    model, other = builder(**{name: value}, **variant), builder(**variant)
    path = tmp_path / ("model.npz" if format == "npz" else "model.safetensors")
    keras_vit.save_weights(model, path, format, allow=name)
    message = f"was trained with {name}={value!r}, and model .* {name}={getattr(other.config, name)!r}"
    refuses(message, keras_vit.load_weights, other, path)
    keras_vit.load_weights(other, path, allow=name)
    assert keras_vit.from_pretrained(path).config == model.config


@pytest.mark.parametrize("builder, message, variants", UNKNOWN_VARIANTS)
def test_unknown_variants_are_refused(builder, message, variants):
    for variant in variants:
        refuses(f"`variant`{message}.*Received", builder, variant)


@pytest.mark.long
@pytest.mark.backends("tensorflow", "torch")
@pytest.mark.parametrize("builder, changes", EXPORTED)
def test_export_equals_the_model(builder, changes, tmp_path):
    model = builder(**changes)
    if keras.backend.backend() == "tensorflow":
        report = keras_vit.export.saved_model(model, tmp_path / "1")
    else:
        pytest.importorskip("onnxruntime")
        report = keras_vit.export.onnx(model, tmp_path / "model.onnx")
    assert report["difference"] < 1e-5
