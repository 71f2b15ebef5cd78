import numpy as np
import pytest


@pytest.fixture
def arrays():
    """Random arrays in the shapes of typical weights."""
    rng = np.random.default_rng(0)
    shapes = {"b/kernel": (3, 4), "a/bias": (7,), "scale": (), "none": (0, 3), "c/kernel": (2, 2, 3, 5)}
    return {key: rng.normal(size=shape).astype("float32") for key, shape in shapes.items()}
