import inspect
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keras_vit.weights import codecs

# For each codec: the shape of a model weight, by number of heads, width of a head and hidden width.
SHAPES = {
    codecs.Identity(): lambda h, d, n: (n, h),
    codecs.Squeeze(): lambda h, d, n: (n + 1,),
    codecs.Squeeze(before=2): lambda h, d, n: (n + 1, h),
    codecs.Squeeze(without=1): lambda h, d, n: (1, n + 1, h),
    codecs.Heads(0): lambda h, d, n: (h * d, n),
    codecs.Heads(1): lambda h, d, n: (n, h * d),
    codecs.Transposed(): lambda h, d, n: (n, h),
    codecs.TORCH_CONV: lambda h, d, n: (h, d, 3, n),
    codecs.TORCH_DEPTHWISE: lambda h, d, n: (h, d, n, 1),
    codecs.Pointwise(): lambda h, d, n: (h, n),
    codecs.Fused(codecs.Heads(1)): lambda h, d, n: (n, 3 * h * d),
    codecs.Fused(codecs.Heads(0)): lambda h, d, n: (3 * h * d,),
    codecs.Fused(codecs.Transposed()): lambda h, d, n: (n, 3 * h * d),
    codecs.Fused(codecs.Identity()): lambda h, d, n: (3 * h * d,),
    codecs.Fused(codecs.Transposed(), 2): lambda h, d, n: (n, 2 * h),
    codecs.QueryValue(): lambda h, d, n: (3 * h * d,),
    codecs.Masked(): lambda h, d, n: (3 * h * d,),
    codecs.Transposed(inputs=1): lambda h, d, n: (n, h, d),
    codecs.Transposed(inputs=2): lambda h, d, n: (h, d, n),
    codecs.Flat(): lambda h, d, n: (h, d),
}


def name(codec):
    settings = {key: name(value) if isinstance(value, codecs.Identity) else value for key, value in vars(codec).items()}
    return f"{type(codec).__name__}{settings or ''}"


@pytest.mark.parametrize("codec", SHAPES, ids=name)
@given(h=st.integers(1, 4), d=st.integers(1, 5), n=st.integers(1, 6))
def test_codec_round_trip_keeps_values(codec, h, d, n):
    shape, heads = SHAPES[codec](h, d, n), (h, d)
    value = np.random.default_rng(0).normal(size=shape).astype("float32")
    if codec.without_keys:
        value[h * d : 2 * h * d] = 0
    arrays = codec.to_file(value, heads)
    shapes = tuple(array.shape for array in arrays)
    assert shapes == codec.file_shapes(shape, heads) and codec.fits(shapes, shape, heads)
    found = codec.model_shape(shapes)
    joined = [(*shape[:i], shape[i] * shape[i + 1], *shape[i + 2 :]) for i in range(len(shape) - 1)]
    assert found in (shape, *joined)
    np.testing.assert_array_equal(codec.to_model(arrays, shape), value)


def test_other_shapes_do_not_fit_any_codec():
    classes = {c for _, c in inspect.getmembers(codecs, inspect.isclass)}
    assert classes - {type(codec) for codec in SHAPES} == {codecs.Part}
    for codec in SHAPES:
        shape, heads = SHAPES[codec](2, 3, 5), (2, 3)
        longer = tuple((*s[:-1], s[-1] + 1) for s in codec.file_shapes(shape, heads))
        assert not codec.fits(longer, shape, heads), codec


@given(count=st.integers(1, 4), h=st.integers(1, 3), d=st.integers(1, 4))
def test_parts_of_one_array_keep_their_order(count, h, d):
    rng = np.random.default_rng(0)
    values = [rng.normal(size=(5, h, d)).astype("float32") for _ in range(count)]
    parts = [codecs.Part(codecs.Transposed(), i, count) for i in range(count)]
    whole = np.concatenate([p.to_file(v, (h, d))[0] for p, v in zip(parts, values, strict=True)])
    for part, value in zip(parts, values, strict=True):
        assert part.fits((whole.shape,), value.shape, (h, d))
        assert math.prod(part.model_shape((whole.shape,))) == value.size
        np.testing.assert_array_equal(part.to_model((whole,), value.shape), value)
