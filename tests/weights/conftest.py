import numpy as np
import pytest

import keras_vit
from tests.tiny import build, randomize


@pytest.fixture
def tiny():
    return randomize(build())


@pytest.fixture(scope="session")
def tiny_bytes(tmp_path_factory):
    path = tmp_path_factory.mktemp("tiny") / "tiny.npz"
    keras_vit.save_weights(randomize(build()), path)
    return path.read_bytes()


@pytest.fixture
def tiny_file(tiny_bytes, tmp_path):
    """A file with the weights of `tiny`."""
    path = tmp_path / "tiny.npz"
    path.write_bytes(tiny_bytes)
    return path


@pytest.fixture
def tiny_arrays(tiny_file):
    with np.load(tiny_file) as file:
        return dict(file)


@pytest.fixture
def arrays():
    """Random arrays in the shapes of typical weights."""
    rng = np.random.default_rng(0)
    shapes = {"b/kernel": (3, 4), "a/bias": (7,), "scale": (), "none": (0, 3), "c/kernel": (2, 2, 3, 5)}
    return {key: rng.normal(size=shape).astype("float32") for key, shape in shapes.items()}
