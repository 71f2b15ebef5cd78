"""Initial weights that NumPy draws: a seed gives the same ones on each backend, and none of them is slow at it."""

import math
import os
from concurrent.futures import ThreadPoolExecutor

import keras
import numpy as np
from keras import ops

# So many numbers come from one stream. Fixed, so that they do not depend on how many threads a machine has.
PIECE = 2**20


@keras.saving.register_keras_serializable(package="keras_vit")
class RandomUniform(keras.initializers.RandomUniform):
    """Keras' initializer of the same name and arguments, but for where the numbers come from."""

    def __call__(self, shape, dtype=None):
        def fill(rng, out):
            rng.random(out=out, dtype="float32")
            out *= self.maxval - self.minval
            out += self.minval

        return draw(fill, shape, dtype, self.seed)


@keras.saving.register_keras_serializable(package="keras_vit")
class RandomNormal(keras.initializers.RandomNormal):
    """Keras' initializer of the same name and arguments, but for where the numbers come from."""

    def __call__(self, shape, dtype=None):
        def fill(rng, out):
            rng.standard_normal(out=out, dtype="float32")
            out *= self.stddev
            out += self.mean

        return draw(fill, shape, dtype, self.seed)


@keras.saving.register_keras_serializable(package="keras_vit")
class TruncatedNormal(keras.initializers.TruncatedNormal):
    """Keras' initializer of the same name and arguments, but for where the numbers come from."""

    def __call__(self, shape, dtype=None):
        def fill(rng, out):
            rng.standard_normal(out=out, dtype="float32")
            while (far := np.abs(out) > 2).any():
                out[far] = rng.standard_normal(np.count_nonzero(far), dtype="float32")
            out *= self.stddev
            out += self.mean

        return draw(fill, shape, dtype, self.seed)


def xavier_uniform(fan_in, fan_out):
    """Xavier uniform. The fans are given, for a kernel may hide them: one fused over heads, or over q, k and v."""
    limit = math.sqrt(6 / (fan_in + fan_out))
    return RandomUniform(-limit, limit)


def lecun_normal(fan_in):
    """LeCun normal: of variance 1 / `fan_in` after it is truncated at two standard deviations."""
    truncated_stddev = 0.87962566103423978
    return TruncatedNormal(stddev=math.sqrt(1 / fan_in) / truncated_stddev)


def draw(fill, shape, dtype, seed):
    """Has `fill(rng, out)` fill the pieces of a tensor of `shape`, several at the same time."""
    dtype = dtype or keras.config.floatx()
    size = math.prod(shape)
    starts = range(0, size, PIECE)
    rngs = [np.random.Generator(np.random.SFC64(s)) for s in np.random.SeedSequence(seed).spawn(len(starts))]
    # Fresh memory costs as much as the numbers do. JAX takes an array as it is; the others copy it, faster in pieces.
    if len(starts) <= 1 or keras.backend.backend() == "jax":
        values = np.empty(size, "float32")
        fill_all(fill, rngs, [values[start : start + PIECE] for start in starts])
        return ops.convert_to_tensor(values.reshape(shape), dtype)
    pieces = [np.empty(min(PIECE, size - start), "float32") for start in starts]
    fill_all(fill, rngs, pieces)
    return ops.reshape(ops.concatenate([ops.convert_to_tensor(piece, dtype) for piece in pieces]), shape)


def fill_all(fill, rngs, pieces):
    """Calls `fill` for each piece, in threads where there are several: NumPy draws without holding the others up."""
    if len(pieces) <= 1:
        list(map(fill, rngs, pieces))
        return
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(fill, rngs, pieces))
