"""Images for the small models of these tests, and the outputs of a model as arrays."""

import keras
import numpy as np
from keras import ops


def images(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


def answers(model, x):
    """Returns the outputs of a model as NumPy arrays. JAX compiles the whole model once instead of each operation."""
    run = model.predict_on_batch if keras.backend.backend() == "jax" else model
    return keras.tree.map_structure(ops.convert_to_numpy, run(x))
