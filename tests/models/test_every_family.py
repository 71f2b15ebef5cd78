"""Checks that models of all families pass. The contracts of those without convolutions are in other files."""

import pickle

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit import inspection, pretraining
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
EXPORTED = [(efficientnet.build, {"padding": "symmetric", "include_preprocessing": True}), (vt_resnet.build, {})]
EXPORTED += [(vt_resnet.build, {"image_size": (None, None)})]
NEED_TOKENS = [
    (lambda model, x: inspection.attention_maps(model, x), "a model that holds a ViT"),
    (lambda model, x: inspection.patch_layout(model, x), "a model that holds a ViT"),
    (lambda model, x: inspection.position_similarity(model), "a model with position embeddings"),
    (lambda model, x: pretraining.MaskedPatchPrediction(model), "a ViT built by keras_vit"),
    (lambda model, x: keras_vit.fold_preprocessing(model), "a ViT built by keras_vit"),
]
UNKNOWN_VARIANTS = [
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
ADAPTED = [
    ("coatnet", {"depths": (1, 1, 1, 1)}, {f"stage_{i}_block_01" for i in (1, 2, 3, 4)}),
    ("vt_resnet", {}, {"vt_1", "vt_2"}),
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


@pytest.mark.parametrize(
    "name, call, sizes", [("R50ViTB16", 'ViT("R50+B/16"', hybrid.TINY), ("BiTR50x3", 'BiT("R50x3"', {"image_size": 32})]
)
def test_named_builder_is_documented_and_pickles(name, call, sizes):
    builder = getattr(keras_vit, name)
    assert builder.__name__ == name and f"keras_vit.{call}, ...)" in builder.__doc__
    assert pickle.loads(pickle.dumps(builder)) is builder
    # TensorFlow's name scopes allow neither "+" nor "/" in a model's name.
    assert builder(**{"stages": (1,), "width_factor": 0.5, **sizes}).name in ("vit_R50_B16", "bit_R50x3")
    refuses(f"argument of keras_vit.{name}. Received: variant='R101x1'", builder, variant="R101x1")


@pytest.mark.parametrize("function, expected", NEED_TOKENS)
@pytest.mark.parametrize("family", ["coatnet", "efficientnet", "vt_resnet"])
def test_functions_that_need_tokens_refuse_other_families(family, function, expected):
    model = BUILDERS[family][0](num_classes=0, include_preprocessing=True)
    refuses(f"Expected {expected}", function, model, images(1, *model.input_shape[1:]))


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


@pytest.mark.parametrize("family, changes, adapted", ADAPTED)
def test_lora_trains_its_updates_and_the_head(family, changes, adapted, tmp_path):
    model = BUILDERS[family][0](**changes)
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
