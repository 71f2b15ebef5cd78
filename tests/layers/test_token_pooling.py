import numpy as np
from keras import ops

from keras_vit.layers import TokenPooling
from tests.errors import refuses


def test_definition():
    x = np.random.default_rng(0).normal(size=(3, 6, 8)).astype("float32")
    for num_prefix_tokens in (1, 2):
        y = TokenPooling("token", num_prefix_tokens=num_prefix_tokens)(x)
        np.testing.assert_array_equal(ops.convert_to_numpy(y), x[:, 0])
    for num_prefix_tokens in (0, 2):
        y = TokenPooling("gap", num_prefix_tokens=num_prefix_tokens)(x)
        np.testing.assert_allclose(ops.convert_to_numpy(y), x[:, num_prefix_tokens:].mean(1), rtol=1e-5, atol=1e-6)


def test_token_and_mean_of_the_patches():
    arguments = {"method": "token_gap", "num_prefix_tokens": 2}
    x = np.random.default_rng(0).normal(size=(3, 6, 8)).astype("float32")
    expected = np.concatenate([x[:, 0], x[:, 2:].mean(1)], axis=-1)
    np.testing.assert_allclose(ops.convert_to_numpy(TokenPooling(**arguments)(x)), expected, rtol=1e-5, atol=1e-6)
    for method in ("token", "token_gap"):
        refuses(f"at least 1 prefix token for method='{method}'. Received: num_prefix_tokens=0", TokenPooling, method)


def test_mean_of_merged_tokens_is_weighted_by_size():
    x = np.random.default_rng(0).normal(size=(2, 4, 8)).astype("float32")
    sizes = np.array([[1, 2, 1, 3], [1, 1, 5, 1]], "int32")
    y = ops.convert_to_numpy(TokenPooling("gap", num_prefix_tokens=1)(x, sizes))
    expected = [np.repeat(x[i, 1:], sizes[i, 1:], axis=0).mean(axis=0) for i in range(2)]
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-6)


def test_mean_is_summed_in_float32():
    # Summed in bfloat16, 1 would stop growing at 256. Summed in float16, 1000 would overflow.
    for dtype, value in {"mixed_bfloat16": 1, "mixed_float16": 1000}.items():
        y = TokenPooling("gap", dtype=dtype)(np.full((1, 1000, 2), value, "float32"))
        np.testing.assert_array_equal(ops.convert_to_numpy(ops.cast(y, "float32")), value)
