import math

import keras
import numpy as np
import pytest

from keras_vit.training import freezing
from keras_vit.training.decay_groups import decay_groups
from keras_vit.training.lora import enable_lora, merge_lora
from keras_vit.training.optimizers import adamw
from tests import tiny
from tests.training.test_decay_groups import MODELS

RNG = np.random.default_rng(0)
IMAGES, LABELS = RNG.normal(size=(8, 16, 16, 3)).astype("float32"), np.arange(8) % 5


def trained(**options):
    model = tiny.build(num_layers=1, qk_norm=True, layer_scale_init=0.5)
    enable_lora(model, rank=2, **options)
    model.compile(adamw(0.01), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    before = {v.path: keras.ops.convert_to_numpy(v).copy() for v in model.weights}
    model.fit(IMAGES, LABELS, batch_size=4, epochs=3, verbose=0)
    return model, {v.path for v in model.weights if not np.array_equal(before[v.path], v)}


def test_counts_and_outputs_before_training():
    model = tiny.build()
    expected = model.predict(IMAGES, verbose=0)
    size = model.count_params()
    counts = enable_lora(model, rank=2)
    # qkv 12 x 36, out 12 x 12, dense_1 12 x 20 and dense_2 20 x 12 in each of two blocks; a head of 12 x 5 and 5.
    updates = 2 * 2 * (12 + 36 + 12 + 12 + 12 + 20 + 20 + 12)
    assert counts == (updates + 65, size - 65)
    np.testing.assert_allclose(model.predict(IMAGES, verbose=0), expected, atol=1e-6)


def test_training_changes_the_updates_and_the_head_alone():
    _, changed = trained()
    assert {path for path in changed if "lora_kernel" not in path} == {"head/kernel", "head/bias"}
    assert len([path for path in changed if "lora_kernel" in path]) == 4 * 2


def test_norms_can_be_trained_and_the_head_left():
    _, changed = trained(train_head=False, train_norms=True)
    others = {path for path in changed if "lora_kernel" not in path}
    assert others and all("norm" in path for path in others)
    assert {"norm/gamma", "block_00/norm_1/beta", "block_00/attention/key_norm/gamma"} <= others


def test_merged(tmp_path):
    model, _ = trained(alpha=3.0)
    expected = model.predict(IMAGES, verbose=0)
    merged = merge_lora(model)
    updates = sum(math.prod(w.shape) for w in model.weights if "lora_kernel" in w.path)
    assert freezing.count_parameters(merged) == (model.count_params() - updates, 0)
    assert not freezing.has_lora(merged) and freezing.has_lora(model)
    np.testing.assert_allclose(merged.predict(IMAGES, verbose=0), expected, atol=1e-5)
    np.testing.assert_allclose(model.predict(IMAGES, verbose=0), expected, atol=1e-6)
    merged.save(tmp_path / "merged.keras")
    reloaded = keras.models.load_model(tmp_path / "merged.keras")
    np.testing.assert_allclose(reloaded.predict(IMAGES, verbose=0), expected, atol=1e-5)


def around(name, backbone):
    dense = keras.layers.Dense(5, name="mine")
    if name == "own_head":
        return keras.Model(backbone.input, dense(backbone.output))
    # A norm of the same path as the backbone's.
    inputs = keras.Input((16, 16, 3))
    return keras.Model(inputs, dense(keras.layers.LayerNormalization(name="norm")(backbone(inputs))))


@pytest.mark.parametrize("name", ["own_head", "nested"])
def test_a_head_of_the_users_own(name):
    model = around(name, tiny.build(num_classes=0, num_layers=1))
    size = model.count_params()
    counts = enable_lora(model, rank=2)
    heads = 12 * 5 + 5 + (2 * 12 if name == "nested" else 0)
    assert counts == (2 * (12 + 36 + 12 + 12 + 12 + 20 + 20 + 12) + heads, size - heads)
    for weight in model.weights:
        if "lora_kernel" in weight.path:
            weight.assign(RNG.normal(size=weight.shape))
    merged = merge_lora(model)
    assert merged.count_params() == size and not freezing.has_lora(merged)
    np.testing.assert_allclose(merged.predict(IMAGES, verbose=0), model.predict(IMAGES, verbose=0), atol=1e-5)


def test_without_a_head_the_updates_are_trained():
    model = tiny.build(num_classes=0)
    size = model.count_params()
    assert enable_lora(model, rank=2) == (2 * 2 * (12 + 36 + 12 + 12 + 12 + 20 + 20 + 12), size)
    model = around("nested", tiny.build(num_classes=0))
    enable_lora(model, rank=2, train_head=False)
    assert all("lora_kernel" in v.path for v in model.trainable_variables)


def flags(model):
    return [(v.path, v.trainable, str(v.dtype)) for v in model.weights]


def test_training_goes_on_after_a_reload(tmp_path):
    model, _ = trained(alpha=3.0, train_norms=True)
    model.save(tmp_path / "m.keras")
    reloaded = keras.models.load_model(tmp_path / "m.keras")
    assert flags(reloaded) == flags(model)
    for value, expected in zip(reloaded.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(value, expected)
    for each in (model, reloaded):
        each.fit(IMAGES, LABELS, batch_size=8, epochs=2, verbose=0)
    again = tmp_path / "again.keras"
    reloaded.save(again)
    expected = model.predict(IMAGES, verbose=0)
    for each in (reloaded, keras.models.load_model(again), merge_lora(keras.models.load_model(again))):
        np.testing.assert_allclose(each.predict(IMAGES, verbose=0), expected, atol=1e-5)


@pytest.mark.parametrize("name", ["own_head", "nested", "mixed_bfloat16", "int8", "int8_before"])
def test_it_comes_back_in_every_model(name, tmp_path):
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(name if name == "mixed_bfloat16" else before)
    try:
        model = tiny.build(num_classes=0, num_layers=1)
        model = around(name, model) if name in ("own_head", "nested") else model
        tiny.randomize(model)
    finally:
        keras.config.set_dtype_policy(before)
    if name == "int8_before":
        model.quantize("int8")
    enable_lora(model, rank=2, alpha=3.0, train_head=name == "own_head")
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
    for each in (reloaded, clone):
        np.testing.assert_array_equal(keras.ops.convert_to_numpy(each(IMAGES)), expected)
    if name.startswith("int8"):
        with pytest.raises(ValueError, match="not quantized"):
            merge_lora(reloaded)
        return
    for value, merged in zip(merge_lora(reloaded).get_weights(), merge_lora(model).get_weights(), strict=True):
        np.testing.assert_array_equal(value, merged)


def test_weights_files_of_either_kind_open_in_the_other(tmp_path):
    model, _ = trained(alpha=3.0)
    plain = merge_lora(model)
    for name, each in (("lora", model), ("plain", plain)):
        each.save_weights(tmp_path / f"{name}.weights.h5")
    expected = model.predict(IMAGES, verbose=0)
    other = tiny.build(num_layers=1, qk_norm=True, layer_scale_init=0.5)
    other.load_weights(tmp_path / "lora.weights.h5")
    np.testing.assert_allclose(other.predict(IMAGES, verbose=0), expected, atol=1e-5)
    model.load_weights(tmp_path / "plain.weights.h5")
    np.testing.assert_allclose(model.predict(IMAGES, verbose=0), expected, atol=1e-5)
    # An update of two zero factors would have no gradient.
    assert all(np.any(v) for v in map(keras.ops.convert_to_numpy, model.weights) if v.shape[-1] == 2)


def test_merging_keeps_float32_under_mixed_precision():
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        model = tiny.build()
        enable_lora(model, rank=2)
        merged = merge_lora(model)
    finally:
        keras.config.set_dtype_policy("float32")
    for path in ("block_00/attention/qkv/kernel", "block_01/mlp/dense_2/kernel"):
        old, new = ({v.path: v for v in m.weights}[path] for m in (model, merged))
        np.testing.assert_array_equal(keras.ops.convert_to_numpy(new), keras.ops.convert_to_numpy(old))


def test_decay_groups_partition_its_variables():
    model = tiny.build()
    enable_lora(model, rank=2)
    decayed, kept = decay_groups(model)
    assert len(decayed) + len(kept) == len(model.trainable_variables)
    assert [v.path for v in kept] == ["head/bias"]


def test_bad_arguments():
    model = tiny.build()
    with pytest.raises(ValueError, match="Expected a model with LoRA"):
        merge_lora(model)
    with pytest.raises(ValueError, match="`rank`.*at least 1"):
        enable_lora(model, rank=0)
    with pytest.raises(ValueError, match="`alpha`.*above 0"):
        enable_lora(model, rank=2, alpha=0)
    with pytest.raises(ValueError, match="with transformer blocks.*stage_1_unit_01"):
        enable_lora(MODELS["bit"](), rank=2)
    assert not freezing.has_lora(model)
    enable_lora(model, rank=2)
    with pytest.raises(ValueError, match="Expected a model without LoRA"):
        enable_lora(model, rank=2)
