import keras
import numpy as np
import pytest

from keras_vit import from_pretrained, save_weights
from keras_vit.weights.overwrite import free, overwrite
from tests.tiny import build, randomize

VALUE = np.arange(6, dtype="float32").reshape(3, 2)


@pytest.mark.every_backend
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_variable_gets_the_value(dtype):
    variable = keras.Variable(np.ones((3, 2), "float32"), dtype=dtype)
    free([variable])
    overwrite(variable, VALUE)
    assert variable.dtype == dtype
    np.testing.assert_array_equal(keras.ops.convert_to_numpy(keras.ops.cast(variable, "float32")), VALUE)


def test_another_shape_is_refused():
    with pytest.raises(ValueError, match="shape"):
        overwrite(keras.Variable(np.ones((3, 2), "float32")), VALUE[:1])


@pytest.mark.backends("tensorflow")
def test_weights_that_were_loaded_are_not_copied_when_they_are_read(tmp_path):
    save_weights(randomize(build()), tmp_path / "vit.safetensors")
    for weight in from_pretrained(tmp_path / "vit.safetensors").weights:
        # Both alive, so that the second could not have the first one's memory.
        first, second = (memoryview(weight.value.read_value()) for _ in range(2))
        assert np.shares_memory(np.asarray(first), np.asarray(second)), weight.path
