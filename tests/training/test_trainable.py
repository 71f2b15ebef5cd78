import contextlib
import functools
import math

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.training import trainable
from keras_vit.training.optimizers import AdamW, is_decayed
from keras_vit.training.trainable import enable_lora, freeze, merge_lora
from tests import tiny
from tests.errors import refuses
from tests.models.vt_resnet import test_model as vt_resnet
from tests.tiny import assert_close
from tests.training.test_optimizers import MODELS

RNG = np.random.default_rng(0)
IMAGES, LABELS = RNG.normal(size=(8, 16, 16, 3)).astype("float32"), np.arange(8) % 5


def trained_layers(model):
    return list(dict.fromkeys(v.path.split("/")[0] for v in model.trainable_variables))


@pytest.mark.parametrize("blocks, num_frozen", [(0, 0), (1, 1), (2, 2), (None, 3)])
def test_freeze_trains_the_layers_above(blocks, num_frozen):
    model = tiny.build()
    counts = freeze(model, blocks)
    assert trained_layers(model) == ["block_00", "block_01", "norm", "head"][num_frozen:]
    assert counts.trainable == sum(int(np.prod(v.shape)) for v in model.trainable_variables)
    assert counts.trainable + counts.frozen == model.count_params()


def test_freeze_can_be_repeated_and_undone():
    model = tiny.build()
    all_of_it = trainable.count_parameters(model)
    assert all_of_it.frozen == 0
    freeze(model)
    assert freeze(model, blocks=1).trainable > freeze(model, blocks=2).trainable
    model.get_layer("block_01").mlp.trainable = False
    freeze(model)
    assert trainable.unfreeze(model) == trainable.count_parameters(model) == all_of_it


def own_head(backbone):
    x = keras.layers.BatchNormalization(name="bn")(backbone.output)
    return keras.Model(backbone.input, keras.layers.Dense(5, name="mine")(x))


def nested(backbone, norm="bn"):
    inputs = keras.Input(backbone.input_shape[1:])
    x = backbone(keras.layers.Rescaling(1.0)(keras.layers.RandomFlip()(inputs)))
    return keras.Model(inputs, keras.layers.Dense(5, name="mine")(keras.layers.BatchNormalization(name=norm)(x)))


def sequential(backbone):
    head = keras.Sequential([keras.layers.BatchNormalization(name="bn"), keras.layers.Dense(5, name="mine")])
    return keras.Sequential([backbone, head])


# This norm has the path of the backbone's norm.
HEADS = {"own_head": own_head, "nested": functools.partial(nested, norm="norm")}


def owners(variables):
    """Returns the names of the layers of variables, also within a Sequential."""
    known = {"bn", "mine", "norm", "pre_logits", "block_00", "block_01", "stage_1_unit_01", "stage_2_unit_01"}
    return list(dict.fromkeys(next(part for part in v.path.split("/") if part in known) for v in variables))


@pytest.mark.parametrize("around", [own_head, nested, sequential])
def test_freeze_trains_a_custom_head(around):
    model = around(tiny.build(num_classes=0, representation_size=7))
    counts = freeze(model)
    assert owners(model.trainable_variables) == ["bn", "mine"] and counts.trainable == 2 * 7 + 7 * 5 + 5
    model.get_layer(index=-1).trainable = False
    freeze(model, blocks=1)
    assert owners(model.trainable_variables) == ["block_01", "norm", "pre_logits", "bn", "mine"]
    assert trainable.unfreeze(model).frozen == 2 * 7
    bit = around(keras_vit.BiT("R50x1", stages=(1, 1), width_factor=0.5, image_size=32, num_classes=0))
    freeze(bit)
    assert owners(bit.trainable_variables) == ["bn", "mine"]


def test_freeze_with_nothing_left_to_train_is_refused():
    model = tiny.build(num_classes=0)
    refuses("weights left to train. Received: model 'vit_B16'", freeze, model)
    refuses("weights left to train", freeze, keras.Sequential([model, keras.layers.Dropout(0.1)]))
    body = keras.Model(model.input, model.get_layer("block_01").output)
    refuses("freeze fewer blocks", freeze, body, blocks=2)
    refuses("`blocks`.*at most 2, the model's depth. Received: 3", freeze, model, blocks=3)
    assert not model.non_trainable_weights and freeze(model, blocks=2).trainable == 2 * 12
    # This head has no weights until it is built.
    assert freeze(keras.Sequential([keras.layers.Rescaling(1.0), model, keras.layers.Dense(2)])).trainable == 0


def test_freeze_trains_the_layers_above_of_other_models():
    distilled, bit, hybrid, resnet = MODELS["distilled"](), MODELS["bit"](), MODELS["hybrid"](), vt_resnet.build()
    freeze(distilled)
    assert trained_layers(distilled) == ["head", "head_dist"]
    freeze(bit, blocks=1)
    assert trained_layers(bit) == ["stage_2_unit_01", "norm", "head"]
    freeze(hybrid, blocks=0)
    assert trained_layers(hybrid) == ["block_00", "norm", "head"]
    freeze(resnet, blocks=2)
    assert trained_layers(resnet) == ["vt_1", "vt_2", "head"]


@pytest.mark.parametrize("name", ["vit", "hybrid", "bit", "own_head", "nested"])
def test_reloaded_model_stays_frozen(name, tmp_path):
    model = HEADS[name](tiny.build(num_classes=0)) if name in HEADS else MODELS[name]()
    counts = freeze(model)
    model.save(tmp_path / "m.keras")
    reloaded = keras.models.load_model(tmp_path / "m.keras")
    for each in (reloaded, keras.models.clone_model(model)):
        assert [v.path for v in each.trainable_variables] == [v.path for v in model.trainable_variables]
        assert trainable.count_parameters(each) == counts
    # Only the statistics of a batch normalization stay frozen.
    frozen = 2 * 12 if name in HEADS else 0
    assert trainable.unfreeze(reloaded) == (model.count_params() - frozen, frozen)


def test_reloaded_block_keeps_frozen_parts(tmp_path):
    model = tiny.build()
    model.get_layer("block_00").mlp.trainable = False
    block = model.get_layer("block_01")
    block.trainable = False
    block.attention.qkv.bias.trainable = True
    expected = [v.path for v in model.trainable_variables]
    assert "block_01/attention/qkv/bias" in expected and "block_00/mlp/dense_1/bias" not in expected
    model.save(tmp_path / "m.keras")
    for each in (keras.models.load_model(tmp_path / "m.keras"), keras.models.clone_model(model)):
        assert [v.path for v in each.trainable_variables] == expected
        assert trainable.unfreeze(each).frozen == 0


def trained(**options):
    model = tiny.build(num_layers=1, qk_norm=True, layer_scale_init=0.5)
    enable_lora(model, rank=2, **options)
    model.compile(AdamW(0.01), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    before = {v.path: keras.ops.convert_to_numpy(v).copy() for v in model.weights}
    model.fit(IMAGES, LABELS, batch_size=4, epochs=3, verbose=0)
    return model, {v.path for v in model.weights if not np.array_equal(before[v.path], v)}


def test_enable_lora_counts_and_keeps_the_outputs():
    model = tiny.build()
    expected = model.predict(IMAGES, verbose=0)
    size = model.count_params()
    counts = enable_lora(model, rank=2)
    # Each of two blocks has qkv of 12 x 36, out of 12 x 12, dense_1 of 12 x 20 and dense_2 of 20 x 12.
    updates = 2 * 2 * (12 + 36 + 12 + 12 + 12 + 20 + 20 + 12)
    assert counts == (updates + 65, size - 65)
    np.testing.assert_allclose(model.predict(IMAGES, verbose=0), expected, atol=1e-6)
    assert [v.path for v in model.trainable_variables if not is_decayed(v.path)] == ["head/bias"]


def test_lora_can_train_the_norms_without_the_head():
    _, changed = trained(train_head=False, train_norms=True)
    others = {path for path in changed if "lora_kernel" not in path}
    assert others and all("norm" in path for path in others)
    assert {"norm/gamma", "block_00/norm_1/beta", "block_00/attention/key_norm/gamma"} <= others


def test_trained_lora_can_be_merged_and_exchanged(tmp_path):
    model, changed = trained(alpha=3.0)
    assert {path for path in changed if "lora_kernel" not in path} == {"head/kernel", "head/bias"}
    assert len([path for path in changed if "lora_kernel" in path]) == 4 * 2
    expected = model.predict(IMAGES, verbose=0)
    merged = merge_lora(model)
    updates = sum(math.prod(w.shape) for w in model.weights if "lora_kernel" in w.path)
    assert trainable.count_parameters(merged) == (model.count_params() - updates, 0)
    assert not trainable.has_lora(merged) and trainable.has_lora(model)
    np.testing.assert_allclose(merged.predict(IMAGES, verbose=0), expected, atol=1e-5)
    np.testing.assert_allclose(model.predict(IMAGES, verbose=0), expected, atol=1e-6)
    merged.save(tmp_path / "merged.keras")
    reloaded = keras.models.load_model(tmp_path / "merged.keras")
    np.testing.assert_allclose(reloaded.predict(IMAGES, verbose=0), expected, atol=1e-5)
    # Models with and without LoRA load each other's weights.
    for name, each in (("lora", model), ("plain", merged)):
        each.save_weights(tmp_path / f"{name}.weights.h5")
    other = tiny.build(num_layers=1, qk_norm=True, layer_scale_init=0.5)
    other.load_weights(tmp_path / "lora.weights.h5")
    np.testing.assert_allclose(other.predict(IMAGES, verbose=0), expected, atol=1e-5)
    again = tiny.build(num_layers=1, qk_norm=True, layer_scale_init=0.5)
    enable_lora(again, rank=2, alpha=1.0)
    again.load_weights(tmp_path / "lora.weights.h5")
    np.testing.assert_allclose(again.predict(IMAGES, verbose=0), expected, atol=1e-5)
    model.load_weights(tmp_path / "plain.weights.h5")
    np.testing.assert_allclose(model.predict(IMAGES, verbose=0), expected, atol=1e-5)
    # An update of two zero factors would have no gradient.
    assert all(np.any(v) for v in map(keras.ops.convert_to_numpy, model.weights) if v.shape[-1] == 2)


@pytest.mark.parametrize("name", HEADS)
def test_lora_with_a_custom_head_can_be_merged(name):
    model = HEADS[name](tiny.build(num_classes=0, num_layers=1))
    size = model.count_params()
    counts = enable_lora(model, rank=2)
    heads = 12 * 5 + 5 + 2 * 12
    assert counts == (2 * (12 + 36 + 12 + 12 + 12 + 20 + 20 + 12) + heads, size - heads)
    for weight in model.weights:
        if "lora_kernel" in weight.path:
            weight.assign(RNG.normal(size=weight.shape))
    merged = merge_lora(model)
    assert merged.count_params() == size and not trainable.has_lora(merged)
    np.testing.assert_allclose(merged.predict(IMAGES, verbose=0), model.predict(IMAGES, verbose=0), atol=1e-5)


def test_lora_without_a_head_trains_the_updates():
    model = tiny.build(num_classes=0)
    size = model.count_params()
    assert enable_lora(model, rank=2) == (2 * 2 * (12 + 36 + 12 + 12 + 12 + 20 + 20 + 12), size)
    model = nested(tiny.build(num_classes=0))
    enable_lora(model, rank=2, train_head=False)
    assert all("lora_kernel" in v.path for v in model.trainable_variables)


def flags(model):
    return [(v.path, v.trainable, str(v.dtype)) for v in model.weights]


@keras.saving.register_keras_serializable("tests.trainable")
class Own(keras.layers.Layer):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.inner = keras.layers.Dense(3, name="inner")

    def build(self, shape):
        self.inner.build(shape)

    def call(self, x):
        return self.inner(x)


def test_quantized_layers_are_not_trained():
    model = tiny.build(num_layers=1)
    model.quantize("int8")
    for train in (freeze, lambda model: enable_lora(model, rank=2)):
        refuses("no layer to train is quantized. .* with quantized head", train, model)
    refuses("with quantized head, block_00/attention/qkv, .*, block_00/mlp/dense_2", freeze, model, blocks=0)
    assert not trainable.has_lora(model)
    enable_lora(model, rank=2, train_head=False)
    # Kernels in float8 have a gradient.
    for mode, refused in (("int8", True), ("float8", False)):
        inner = tiny.build(num_layers=1, num_classes=0)
        own = Own(name="own")
        model = keras.Model(inner.input, own(inner.output))
        own.inner.quantize(mode)
        with pytest.raises(ValueError, match="with quantized own/inner") if refused else contextlib.nullcontext():
            freeze(model)


@pytest.mark.parametrize("name", ["own_head", "nested", "mixed_bfloat16", "int8", "int8_before"])
def test_reloaded_lora_is_identical(name, tmp_path):
    model = tiny.build(num_classes=0, num_layers=1, dtype=name if name == "mixed_bfloat16" else None)
    model = tiny.randomize(HEADS[name](model) if name in HEADS else model)
    if name == "int8_before":
        model.quantize("int8")
    enable_lora(model, rank=2, alpha=3.0, train_head=name == "own_head", train_norms=name == "nested")
    for weight in model.weights:
        if "lora_kernel" in weight.path:
            weight.assign(RNG.normal(size=weight.shape))
    if name == "int8":
        model.quantize("int8")
    model.save(tmp_path / "m.keras")
    reloaded = keras.models.load_model(tmp_path / "m.keras")
    clone = keras.models.clone_model(model)
    assert flags(reloaded) == flags(clone) == flags(model)
    clone.set_weights(model.get_weights())
    expected = keras.ops.convert_to_numpy(model(IMAGES))
    reloaded.save(tmp_path / "again.keras")
    for each in (reloaded, clone, keras.models.load_model(tmp_path / "again.keras")):
        np.testing.assert_array_equal(keras.ops.convert_to_numpy(each(IMAGES)), expected)
    if name.startswith("int8"):
        refuses("not quantized", merge_lora, reloaded)
        return
    assert_close(merge_lora(reloaded).get_weights(), merge_lora(model).get_weights())


def test_merge_lora_mixed_precision_keeps_float32():
    model = tiny.build(dtype="mixed_bfloat16")
    enable_lora(model, rank=2)
    merged = merge_lora(model)
    for path in ("block_00/attention/qkv/kernel", "block_01/mlp/dense_2/kernel"):
        old, new = ({v.path: v for v in m.weights}[path] for m in (model, merged))
        np.testing.assert_array_equal(keras.ops.convert_to_numpy(new), keras.ops.convert_to_numpy(old))


def test_lora_invalid_arguments_are_refused():
    model = tiny.build()
    refuses("Expected a model with LoRA", merge_lora, model)
    refuses("`rank`.*at least 1", enable_lora, model, rank=0)
    refuses("with transformer blocks.*stage_1_unit_01", enable_lora, MODELS["bit"](), rank=2)
    assert not trainable.has_lora(model)
    counts = enable_lora(model, rank=2)
    for train in (freeze, lambda model: enable_lora(model, rank=2)):
        refuses("Expected a model without LoRA", train, model)
    assert trainable.count_parameters(model) == counts
