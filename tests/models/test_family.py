import re

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.models.family import FamilyModel, cut_from
from keras_vit.training import SAM
from tests.errors import refuses
from tests.tiny import assert_close, build


@pytest.mark.parametrize("name", ["head", "config", "blocks", "preprocessing"])
def test_properties_of_layers_cannot_be_set(name):
    model = build()
    with pytest.raises(AttributeError, match=f"Cannot set `{name}` of model 'vit_B16'"):
        setattr(model, name, keras.layers.Dense(7))
    model.mine = 3
    assert model.mine == 3 and len(model.weights) == len(build().weights)


def test_float16_models_compile_with_loss_scaling(tmp_path):
    model = build(num_layers=1, dtype="mixed_float16")
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    cut = cut_from(model, model.input, model.get_layer("pre_logits").output)
    model.compile("adam", "mse")
    model.train_on_batch(np.zeros((2, 16, 16, 3)), np.zeros((2, 5)))
    model.save(tmp_path / "trained.keras")
    reloaded = keras.models.load_model(tmp_path / "trained.keras").optimizer
    for found, saved in zip(reloaded.variables, model.optimizer.variables, strict=True):
        np.testing.assert_array_equal(keras.ops.convert_to_numpy(found), keras.ops.convert_to_numpy(saved))
    assert float(reloaded.dynamic_scale) + int(reloaded.iterations) != 2**15, "no step was taken"
    for each in (model, again, keras.models.clone_model(model), cut, SAM(again)):
        each.compile("sgd", "mse")
        assert isinstance(each.optimizer, keras.optimizers.LossScaleOptimizer)
    plain = build(num_layers=1, dtype="mixed_bfloat16")
    plain.compile("sgd", "mse")
    assert not isinstance(plain.optimizer, keras.optimizers.LossScaleOptimizer)


def test_builder_dtype_reaches_inner_layers_and_is_not_kept():
    before = keras.config.dtype_policy().name
    assert build(dtype="mixed_bfloat16").get_layer("block_00").mlp.dense_1.compute_dtype == "bfloat16"
    assert keras.config.dtype_policy().name == before
    refuses("pooling", build, dtype="mixed_bfloat16", pooling="mean")
    assert keras.config.dtype_policy().name == before


@pytest.mark.backends("jax", "tensorflow")
@pytest.mark.parametrize("pooling, num_classes", [("token", 5), ("gap", 5), ("token", 0)])
def test_policy_map_of_a_model_is_kept_in_its_file(pooling, num_classes, tmp_path):
    policies = keras.dtype_policies.DTypePolicyMap(default_policy="mixed_bfloat16")
    policies["block_00/mlp/dense_1"] = keras.dtype_policies.get("int8_from_float32")
    model = build(dtype=policies, pooling=pooling, num_layers=1, num_classes=num_classes)
    images = np.random.default_rng(0).normal(size=(2, 16, 16, 3)).astype("float32")
    expected = model.predict(images, verbose=0)
    model.save(tmp_path / "model.keras")
    for again in (keras.models.load_model(tmp_path / "model.keras"), keras.models.clone_model(model)):
        mlp = again.get_layer("block_00").mlp
        assert (mlp.dense_1.quantization_mode, mlp.dense_2.compute_dtype) == ("int8", "bfloat16")
        again.set_weights(model.get_weights())
        np.testing.assert_array_equal(again.predict(images, verbose=0), expected)
        again.save(tmp_path / "again.keras")


@pytest.mark.parametrize("rotary_embedding", ["dinov3", "eva02"])
def test_rotary_angles_have_compute_dtype_in_both_modes(rotary_embedding):
    import torch

    model, images = build(rotary_embedding=rotary_embedding, dtype="bfloat16"), torch.rand(2, 16, 16, 3)
    seen = []
    for block in model.blocks:
        attention = block.attention
        attention.call = lambda *a, call=attention.call, **k: seen.append(k["rotary"].dtype) or call(*a, **k)
    expected = model(images)
    with torch.no_grad():
        found = model(images)
    assert set(seen) == {torch.bfloat16}
    torch.testing.assert_close(found, expected.detach(), rtol=0.02, atol=0.02)


@pytest.mark.parametrize("learning", [True, False])
def test_nested_model_refuses_other_image_sizes(learning):
    inner = build()
    inputs = keras.Input((None, None, 3))
    outer = type(inner)(inputs, inner(inputs))
    images = np.zeros((2, 18, 18, 3), "float32")
    with pytest.raises(ValueError, match="18"):
        outer(images) if learning else outer.predict_on_batch(images)


def test_cut_from_keeps_the_models_class():
    model = build()
    cut = cut_from(model, model.input, model.get_layer("pre_logits").output, name="cut")
    assert type(cut) is type(model) and cut.name == "cut" and cut.config == model.config
    plain = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    assert type(cut_from(plain, plain.inputs, plain.outputs)) is type(keras.Model(plain.inputs, plain.outputs))


@pytest.mark.parametrize(
    "name, value, hint",
    [
        ("include_top", False, "Use num_classes=0 for a model without a head"),
        ("input_shape", (32, 32, 3), r"Use image_size=\(height, width\) and in_channels="),
        ("pretrained", True, "Use weights=.* or keras_vit.from_pretrained"),
        ("mlp_ratio", 4, "Use mlp_dim="),
        ("mean", 0.5, r"Use preprocessing=keras_vit.Preprocessing\("),
        ("multi_label", True, 'Use task="multi_label"'),
        ("regression", False, 'Use task="regression" instead of True'),
        ("variant", "base", r'Use a builder that takes a variant, such as keras_vit.ViT\("B/16"\)'),
        ("num_clases", 3, "Did you mean 'num_classes'"),
        ("fields", 3, r"See help\(keras_vit.ViTB16\)"),
    ],
)
def test_argument_of_other_libraries_is_translated(name, value, hint):
    refuses(f"argument of keras_vit.ViTB16. Received: {name}=.*{hint}", keras_vit.ViTB16, **{name: value})


def test_changed_preprocessing_keeps_the_builders_constants():
    sizes = {"image_size": 16, "num_layers": 1, "hidden_dim": 12, "mlp_dim": 8, "num_classes": 2}
    usual = keras_vit.DeiTTi16(**sizes).preprocessing
    found = keras_vit.DeiTTi16(preprocessing={"interpolation": "bilinear"}, **sizes).preprocessing
    assert (found.mean, found.std, found.crop_fraction) == (usual.mean, usual.std, usual.crop_fraction)
    assert found.interpolation == "bilinear" and len(found.mean) == 3
    gray = keras_vit.DeiTTi16(preprocessing={"interpolation": "bilinear"}, in_channels=1, **sizes).preprocessing
    assert gray.mean == pytest.approx([np.mean(usual.mean)])
    message = "fields of a Preprocessing: .*Received: .*'median'"
    refuses(message, keras_vit.DeiTTi16, preprocessing={"median": 0.5}, **sizes)


@pytest.mark.parametrize("name", ["depth", "embed_dim", "global_pool", "mlp_ratio"])
def test_translation_names_no_argument_that_the_family_lacks(name):
    for builder in (keras_vit.BiTR50x1, keras_vit.CoAtNet0):
        with pytest.raises(ValueError, match=f"argument of keras_vit.{builder.__name__}. Received: {name}=2") as caught:
            builder(**{name: 2})
        assert not re.search("num_layers|hidden_dim|pooling=|head_dim|se_ratio", str(caught.value))


def test_pooling_of_other_libraries_is_translated():
    refuses("pooling='avg'. Use num_classes=0 for a model without a head", keras_vit.BiTR50x1, pooling="avg")
    for pooling, hint in {"avg": 'Did you mean "gap"', "max": "No layer .* pools the maximum"}.items():
        refuses(f"`pooling`.*Received: '{pooling}'. {hint}", keras_vit.ViTB16, pooling=pooling)
    refuses(r"`pooling`. Expected one of 'token', .*Received: \['avg'\]", keras_vit.ViTB16, pooling=["avg"])


def test_model_in_an_h5_file_can_be_loaded(tiny, tmp_path):
    tiny.save(tmp_path / "model.h5")
    loaded = keras.saving.load_model(tmp_path / "model.h5")
    assert isinstance(loaded, FamilyModel) and loaded.config == tiny.config
    assert_close(loaded.get_weights(), tiny.get_weights())


def test_class_names_of_version_0_2_are_known():
    custom = keras.saving.get_custom_objects()
    old = ("VisionTransformer", "BigTransfer", "ConvolutionAndAttention", "EfficientNetModel", "VTResNetModel")
    assert all(custom[f"keras_vit>{name}"] is FamilyModel for name in old)
    fields = {"multi_label": True, "regression": False, "pooling": None}
    config = keras_vit.ViTConfig.from_dict({**build().config.to_dict(), "task": "single_label", **fields})
    assert config.pooling == "none"
