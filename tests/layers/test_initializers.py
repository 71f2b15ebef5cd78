import math
import subprocess
import sys

import keras
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from keras import ops

import keras_vit
from keras_vit.layers import initializers
from keras_vit.models.bit.standardized_conv import StandardizedConv2D

CLASSES = (initializers.RandomUniform, initializers.RandomNormal, initializers.TruncatedNormal)
DEVIATIONS = [
    (initializers.xavier_uniform(300, 500), math.sqrt(2 / 800)),
    (initializers.GlorotUniform(), math.sqrt(2 / (6 * 1100))),
    (initializers.LecunNormal(), math.sqrt(1 / 1800)),
]


def values(initializer, shape, dtype=None):
    return ops.convert_to_numpy(initializer(shape, dtype))


@pytest.mark.parametrize("of_class", CLASSES)
@given(shape=st.lists(st.integers(0, 5), max_size=4))
def test_any_shape_is_filled(of_class, shape):
    drawn = values(of_class(seed=1), tuple(shape))
    assert drawn.shape == tuple(shape)
    assert drawn.dtype == "float32"
    assert np.unique(drawn).size == drawn.size
    assert np.all(np.isfinite(drawn))


@pytest.mark.parametrize("size", [1000, initializers.PIECE, 2 * initializers.PIECE + 1000])
def test_statistics_in_every_piece(size):
    uniform = values(initializers.RandomUniform(-0.1, 0.3, seed=2), (size,))
    normal = values(initializers.RandomNormal(0.5, 0.02, seed=2), (size,))
    truncated = values(initializers.TruncatedNormal(0.5, 0.02, seed=2), (size,))
    for start in range(0, size, initializers.PIECE):
        piece = slice(start, start + initializers.PIECE)
        count = uniform[piece].size
        assert -0.1 <= uniform[piece].min() < -0.095 and 0.295 < uniform[piece].max() <= 0.3
        np.testing.assert_allclose(uniform[piece].mean(), 0.1, atol=0.5 / math.sqrt(count))
        np.testing.assert_allclose(uniform[piece].std(), 0.4 / math.sqrt(12), rtol=3 / math.sqrt(count))
        np.testing.assert_allclose(normal[piece].mean(), 0.5, atol=0.1 / math.sqrt(count))
        np.testing.assert_allclose(normal[piece].std(), 0.02, rtol=3 / math.sqrt(count))
        assert 0.038 < np.abs(truncated[piece] - 0.5).max() <= 0.04 + 1e-6
        np.testing.assert_allclose(truncated[piece].mean(), 0.5, atol=0.1 / math.sqrt(count))
        np.testing.assert_allclose(truncated[piece].std(), 0.02 * 0.87962566, rtol=3 / math.sqrt(count))
    assert np.unique(uniform[:1000]).size > 990
    if size > initializers.PIECE:
        assert not np.array_equal(uniform[:1000], uniform[initializers.PIECE : initializers.PIECE + 1000])


@pytest.mark.parametrize("initializer, stddev", DEVIATIONS)
def test_variance_follows_the_fans(initializer, stddev):
    np.testing.assert_allclose(values(initializer, (2, 3, 300, 800)).std(), stddev, rtol=0.01)


@pytest.mark.parametrize("of_class", CLASSES)
def test_seed_alone_decides(of_class, monkeypatch):
    shape = (initializers.PIECE + 10, 2)
    drawn = values(of_class(seed=3), shape)
    for threads in (1, 7):
        monkeypatch.setattr(initializers.os, "cpu_count", lambda threads=threads: threads)
        np.testing.assert_array_equal(values(of_class(seed=3), shape), drawn)
    assert not np.array_equal(values(of_class(seed=4), shape), drawn)


def sums_of(**changes):
    """Returns the sums of all new weights of a small ViT, by their paths."""
    keras.utils.set_random_seed(6)
    model = keras_vit.ViTTi16(image_size=32, num_classes=0, num_layers=1, **changes)
    return {weight.path: np.abs(ops.convert_to_numpy(weight)).sum(dtype="float64") for weight in model.weights}


@pytest.mark.every_backend
def test_seed_gives_every_backend_the_same_model():
    block = {"attention/qkv/kernel": 6915.06, "attention/out/kernel": 2306.134}
    block |= {"mlp/dense_1/kernel": 5839.499, "mlp/dense_1/bias": 0.0006078705}
    block |= {"mlp/dense_2/kernel": 5840.206, "mlp/dense_2/bias": 0.0001596752}
    plain = {f"block_00/{name}": value for name, value in block.items()}
    plain |= {"patch_embedding/kernel": 4372.457, "registers/tokens": 0.0001710631, "pre_logits/kernel": 54.68237}
    plain |= {"position_embedding/embeddings": 15.24421}
    other = {"column_embeddings": 3.421262, "row_embeddings": 2.871421}
    other = {f"position_embedding/{name}": value for name, value in other.items()}
    pooling = {"query": 2305.99, "key": 2304.015, "value": 2293.37, "attention_output": 2286.487}
    other |= {f"pooling/attention/{name}/kernel": value for name, value in pooling.items()}
    other |= {"pooling/probe": 18.31522, "patch_embedding/kernel": 4372.457}
    for pinned, changes in (
        (plain, {"representation_size": 5, "num_registers": 1}),
        (other, {"pooling": "map", "position_embedding": "learned2d"}),
        ({"block_00/attention/relative_embeddings": 9.448211}, {"position_embedding": "relative"}),
    ):
        found = sums_of(**changes)
        assert {path: found[path] for path in pinned} == pytest.approx(pinned, rel=1e-5, abs=0)
        zeros = {path for path, value in found.items() if not value}
        assert zeros == {p for p in found if p.endswith(("beta", "bias", "class_token/tokens")) and "/mlp/" not in p}


def test_seed_gives_pinned_convolutions_and_decoders():
    keras.utils.set_random_seed(6)
    conv = StandardizedConv2D(5, 3)
    conv.build((None, 8, 8, 4))
    backbone = keras_vit.ViT("Ti/16", image_size=32, num_layers=1, hidden_dim=8, num_heads=2, mlp_dim=8)
    head = keras_vit.pretraining.SimMIM(backbone).head
    sums = [float(ops.sum(ops.abs(kernel))) for kernel in (conv.kernel, head.kernel)]
    assert sums == pytest.approx([22.331907, 268.04364], rel=1e-5)


@pytest.mark.parametrize("seed", [-1, 2**40, lambda: keras.random.SeedGenerator(3)])
def test_initializer_takes_every_seed_of_keras(seed):
    initializer = initializers.RandomNormal(seed=seed() if callable(seed) else seed)
    assert np.unique(values(initializer, (3, 4))).size == 12


@pytest.mark.parametrize("of_class", CLASSES)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_reduced_dtypes_round_the_same_numbers(of_class, dtype):
    shape = (initializers.PIECE + 10,)
    reduced = of_class(seed=7)(shape, dtype)
    assert keras.backend.standardize_dtype(reduced.dtype) == dtype
    reduced = ops.convert_to_numpy(ops.cast(reduced, "float32"))
    np.testing.assert_allclose(reduced, values(of_class(seed=7), shape), rtol=2**-8, atol=1e-6)


@pytest.mark.parametrize("of_class", CLASSES)
def test_config_round_trip(of_class):
    initializer = of_class(0.25, 0.5, seed=8)
    again = keras.initializers.deserialize(keras.initializers.serialize(initializer))
    assert type(again) is of_class
    np.testing.assert_array_equal(values(again, (7, 3)), values(initializer, (7, 3)))


@pytest.mark.long
def test_initializer_works_while_python_ends():
    script = """
import atexit, keras
from keras_vit.layers import initializers
normal = initializers.RandomNormal(seed=1)
shape = (initializers.PIECE + 10,)
before = keras.ops.convert_to_numpy(normal(shape))
atexit.register(lambda: print((keras.ops.convert_to_numpy(normal(shape)) == before).all()))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "True", done.stderr
