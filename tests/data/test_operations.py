from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from keras_vit.data.operations import OFFICIAL, TIMM
from tests.golden.make_randaugment import CUTOUT_CENTRE

GOLDEN = np.load(Path(__file__).parents[1] / "golden" / "randaugment.npz")
FAMILIES = {"official": OFFICIAL, "timm": TIMM}
WARPS = {"timm/Rotate", "timm/ShearX", "timm/ShearY", "timm/TranslateX", "timm/TranslateY"}
OPERATIONS = [f"{family}/{name}" for family, table in FAMILIES.items() for name in table]


def levels(name):
    """Returns the golden images of an operation, by (magnitude, sign)."""
    found = {}
    for full, image in zip(GOLDEN["names"], GOLDEN["images"], strict=True):
        if full.rpartition("/")[0] == name:
            level = full.rpartition("/")[2]
            found[float(level.rstrip("-")), -1.0 if level.endswith("-") else 1.0] = image
    return found


@pytest.fixture
def graph_optimizer():
    """Turns on TensorFlow's optimizer, which orders the arithmetic of a rotation as it does in the official code."""
    options = tf.config.optimizer.get_experimental_options()
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": False})
    yield
    tf.config.optimizer.set_experimental_options(options)


@pytest.mark.usefixtures("graph_optimizer")
@pytest.mark.parametrize("name", OPERATIONS)
def test_randaugment_operation_matches_official_code(name):
    family, operation = name.split("/")
    picture = GOLDEN["picture"]
    apply = tf.function(FAMILIES[family][operation], autograph=False)
    centre = tf.constant((np.array(CUTOUT_CENTRE) + 0.5) / picture.shape[:2], "float32")
    golden = levels(name)
    assert {level for level, _ in golden} >= {0, 5, 9, 10}
    for (level, sign), image in golden.items():
        m, s = tf.constant(level / 10, "float64"), tf.constant(sign, "float64")
        found = apply(tf.constant(picture), m, s, centre).numpy()
        assert found.dtype == "uint8"
        difference = np.abs(found.astype(int) - image)
        if name in WARPS:
            assert difference.max() <= 1 and (difference > 0).mean() < 0.003
        else:
            assert not difference.any(), (level, sign)


def test_randaugment_operations_are_complete():
    assert {name.rpartition("/")[0] for name in GOLDEN["names"]} == set(OPERATIONS)


def test_contrast_operations_keep_uniform_picture():
    picture = tf.fill((8, 8, 3), tf.constant(77, "uint8"))
    for table in (OFFICIAL, TIMM):
        for name in ("AutoContrast", "Equalize"):
            np.testing.assert_array_equal(table[name](picture, 0.5, 1.0, None), picture)
