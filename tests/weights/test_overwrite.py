import keras
import numpy as np
import pytest

from keras_vit import from_pretrained, save_weights
from keras_vit.weights.overwrite import free, overwrite
from tests.errors import refuses
from tests.tiny import build, randomize

pytestmark = pytest.mark.every_backend
VALUE = np.arange(6, dtype="float32").reshape(3, 2)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_overwrite_sets_value_and_keeps_dtype(dtype):
    variable = keras.Variable(np.ones((3, 2), "float32"), dtype=dtype)
    free([variable])
    overwrite(variable, VALUE)
    assert variable.dtype == dtype
    np.testing.assert_array_equal(keras.ops.convert_to_numpy(keras.ops.cast(variable, "float32")), VALUE)


def test_overwrite_of_other_shape_is_refused():
    refuses("shape", overwrite, keras.Variable(np.ones((3, 2), "float32")), VALUE[:1])


@pytest.mark.backends("tensorflow")
def test_loaded_weights_are_read_without_copy(tmp_path):
    save_weights(randomize(build()), tmp_path / "vit.safetensors")
    for weight in from_pretrained(tmp_path / "vit.safetensors").weights:
        # Both views exist at once, so a copy would need other memory.
        first, second = (memoryview(weight.value.read_value()) for _ in range(2))
        assert np.shares_memory(np.asarray(first), np.asarray(second)), weight.path
