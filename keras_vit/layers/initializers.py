"""Initializers that draw from NumPy: a seed gives equal weights on all backends, and models build faster on JAX."""

import math
import os
from concurrent.futures import ThreadPoolExecutor

import keras
import numpy as np
from keras import ops

# Each random generator draws at most this many numbers. PIECE is fixed, so weights do not depend on the number of
# threads.
PIECE = 2**20


@keras.saving.register_keras_serializable(package="keras_vit")
class RandomUniform(keras.initializers.RandomUniform):
    """`keras.initializers.RandomUniform` with NumPy's random numbers; `minval` and `maxval` are floats."""

    def __call__(self, shape, dtype=None):
        return draw(np.random.Generator.random, self.maxval - self.minval, self.minval, shape, dtype, self.seed)


@keras.saving.register_keras_serializable(package="keras_vit")
class RandomNormal(keras.initializers.RandomNormal):
    """`keras.initializers.RandomNormal` with NumPy's random numbers; `mean` and `stddev` are floats."""

    def __call__(self, shape, dtype=None):
        return draw(np.random.Generator.standard_normal, self.stddev, self.mean, shape, dtype, self.seed)


@keras.saving.register_keras_serializable(package="keras_vit")
class TruncatedNormal(keras.initializers.TruncatedNormal):
    """`keras.initializers.TruncatedNormal` with NumPy's random numbers; `mean` and `stddev` are floats."""

    def __call__(self, shape, dtype=None):
        return draw(truncated_normal, self.stddev, self.mean, shape, dtype, self.seed)


@keras.saving.register_keras_serializable(package="keras_vit")
class GlorotUniform(keras.initializers.GlorotUniform):
    """`keras.initializers.GlorotUniform` with NumPy's random numbers. The last two axes are (inputs, outputs)."""

    def __call__(self, shape, dtype=None):
        field = math.prod(shape[:-2])
        return xavier_uniform(field * shape[-2], field * shape[-1], self.seed)(shape, dtype)


@keras.saving.register_keras_serializable(package="keras_vit")
class LecunNormal(keras.initializers.LecunNormal):
    """`keras.initializers.LecunNormal` with NumPy's random numbers.

    The fan-in is the product of all kernel axes except the last one.
    """

    def __call__(self, shape, dtype=None):
        truncated_stddev = 0.87962566103423978
        stddev = math.sqrt(1 / max(1, math.prod(shape[:-1]))) / truncated_stddev
        return TruncatedNormal(stddev=stddev, seed=self.seed)(shape, dtype)


@keras.saving.register_keras_serializable(package="keras_vit")
class FanOutNormal(keras.initializers.HeNormal):
    """Normal numbers of standard deviation `sqrt(2 / fan_out)`, as in EfficientNet.

    The fan-out is the product of all kernel axes except the input axis, which is the second-to-last axis.
    """

    def __call__(self, shape, dtype=None):
        fan_out = math.prod(shape[:-2]) * shape[-1]
        return RandomNormal(stddev=math.sqrt(2 / fan_out), seed=self.seed)(shape, dtype)


def xavier_uniform(fan_in, fan_out, seed=None):
    """Returns a Glorot uniform initializer for the given fan-in and fan-out.

    A fused QKV kernel needs this initializer, because the fan-out that Keras computes from the kernel's shape is three
    times too large.
    """
    limit = math.sqrt(6 / max(1, fan_in + fan_out))
    return RandomUniform(-limit, limit, seed=seed)


def truncated_normal(rng, out, dtype):
    """Fills `out` with standard normal numbers between -2 and 2."""
    rng.standard_normal(out=out, dtype=dtype)
    while (far := np.abs(out) > 2).any():
        out[far] = rng.standard_normal(np.count_nonzero(far), dtype=dtype)


def draw(fill, scale, shift, shape, dtype, seed):
    """Returns a tensor of random numbers, times `scale`, plus `shift`. `fill(rng, out=, dtype=)` draws the numbers."""
    dtype = dtype or keras.config.floatx()
    size = math.prod(shape)
    starts = range(0, size, PIECE)
    seeds = np.random.SeedSequence(entropy(seed)).spawn(len(starts))

    def fill_one(seed, piece):
        fill(np.random.Generator(np.random.SFC64(seed)), out=piece, dtype="float32")
        piece *= scale
        piece += shift

    values = np.empty(size, "float32")
    fill_all(fill_one, seeds, [values[start : start + PIECE] for start in starts])
    return ops.convert_to_tensor(values.reshape(shape), dtype)


def entropy(seed):
    """Converts a Keras seed to a seed for `np.random.SeedSequence`: a non-negative int, or a list of such ints."""
    if isinstance(seed, keras.random.SeedGenerator):
        return [entropy(int(part)) for part in ops.convert_to_numpy(seed.next())]
    return seed & 0xFFFFFFFF


def fill_all(fill_one, seeds, pieces):
    """Calls `fill_one(seed, piece)` for each seed and piece, in threads if there are several pieces."""
    if len(pieces) > 1:
        try:
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                list(pool.map(fill_one, seeds, pieces))  # list() raises the threads' errors
            return
        except RuntimeError:
            pass  # Python starts no threads while shutting down.
    for seed, piece in zip(seeds, pieces, strict=True):
        fill_one(seed, piece)
