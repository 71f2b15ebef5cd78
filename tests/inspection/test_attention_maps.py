import keras
import numpy as np
import pytest
from keras import ops

from keras_vit.inspection import attention_maps
from tests.inspection import reference


@pytest.mark.parametrize("changes", reference.MODELS.values(), ids=reference.MODELS)
def test_maps_are_those_of_the_definition(changes):
    model, images = reference.build(**changes)
    maps = attention_maps(model, images, blocks=None)
    logits, expected = reference.run(model, images)
    np.testing.assert_allclose(ops.convert_to_numpy(model(images)), logits, atol=1e-4)
    assert len(maps) == 2
    for actual, wanted in zip(maps, expected, strict=True):
        assert actual.dtype == "float32"
        np.testing.assert_allclose(actual, wanted, atol=1e-5)
        np.testing.assert_allclose(actual.sum(axis=-1), 1, atol=1e-5)


def test_blocks_are_chosen_and_batches_joined():
    model, images = reference.build(num_layers=3)
    first, second, third = attention_maps(model, images, blocks=None)
    np.testing.assert_array_equal(attention_maps(model, images), third)
    np.testing.assert_array_equal(attention_maps(model, images, blocks=-3), first)
    last, middle = attention_maps(model, images, blocks=[2, -2], batch_size=1)
    np.testing.assert_allclose(last, third, atol=1e-6)
    np.testing.assert_allclose(middle, second, atol=1e-6)
    np.testing.assert_array_equal(attention_maps(model, images, blocks=np.int64(2)), third)
    np.testing.assert_array_equal(attention_maps(model, images, blocks=np.array([0]))[0], first)


def test_fused_and_explicit_attention_give_the_same_logits(monkeypatch):
    model, images = reference.build(num_registers=2, position_embedding="relative")
    logits = []
    # Whether there is a fused kernel depends on the backend and its device: here both ways are taken on each.
    for fused in (True, False):
        monkeypatch.setattr("keras_vit.layers.attention.has_fused_kernel", lambda fused=fused: fused)
        logits.append(ops.convert_to_numpy(model(images)))
    np.testing.assert_allclose(*logits, atol=1e-5)
    # Nor does looking on leave anything behind.
    attention_maps(model, images)
    np.testing.assert_array_equal(ops.convert_to_numpy(model(images)), logits[1])


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_rows_sum_to_one_in_mixed_precision(policy):
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(policy)
    try:
        model, images = reference.build()
    finally:
        keras.config.set_dtype_policy(before)
    maps = attention_maps(model, images)
    np.testing.assert_allclose(maps.sum(axis=-1), 1, atol=1e-5)
    np.testing.assert_allclose(maps, reference.run(model, images)[1][1], atol=0.05)


def test_last_block_of_the_real_model(real):
    model, images, expected = real
    (actual,) = attention_maps(model, images, blocks=11)
    np.testing.assert_allclose(actual, expected["last_block_attention"], rtol=1e-3, atol=1e-7)


def test_what_is_wrong_is_said():
    model, images = reference.build()
    with pytest.raises(ValueError, match=r"below 2, the model's depth. Received: blocks=2"):
        attention_maps(model, images, blocks=2)
    with pytest.raises(ValueError, match=r"below 2.*blocks=\[0, -3\]"):
        attention_maps(model, images, blocks=[0, -3])
    for blocks in ("last", 0.5, [0.5], True, [[0]]):
        with pytest.raises(ValueError, match="`blocks` to be an integer, a list of them or None. Received: blocks="):
            attention_maps(model, images, blocks=blocks)
    with pytest.raises(ValueError, match="at least one image"):
        attention_maps(model, images[:0])
    with pytest.raises(ValueError, match="`batch_size`"):
        attention_maps(model, images, batch_size=0)
