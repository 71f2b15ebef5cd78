import keras
import numpy as np
import pytest

from keras_vit.distribution import device_mesh, initialize, layout_map, processes
from tests.errors import refuses
from tests.tiny import build

jax_only = pytest.mark.backends("jax")


@pytest.mark.parametrize(
    "name, values",
    [
        ("coordinator", ["localhost", "localhost:", ":1234", "localhost:port", None]),
        ("num_processes", [0, 1.5]),
        ("process_id", [2, -1, None, True, 1.0]),
    ],
)
def test_initialize_invalid_argument_is_named(name, values):
    for value in values:
        with pytest.raises(ValueError, match=f"`{name}`"):
            initialize(**{"coordinator": "localhost:1234", "num_processes": 2, "process_id": 0, name: value})


@pytest.mark.every_backend
def test_single_process_shares_nothing():
    assert (processes.num_processes(), processes.process_id()) == (1, 0)
    processes.barrier()
    assert processes.agree(7) == 7
    assert processes.first_in_process_0(lambda: "called") == "called"
    model = build()
    assert processes.on_one_device(model) is model
    for variable in model.variables[:3]:
        np.testing.assert_array_equal(processes.to_numpy(variable), keras.ops.convert_to_numpy(variable))
    assert processes.share_of_metrics(np.float32(3)) == 3


@jax_only
@pytest.mark.parametrize("model", [0, -1, 1.5, 1000])
def test_device_mesh_invalid_number_is_refused(model):
    refuses("`model`", device_mesh, model)


@jax_only
def test_layout_map_needs_a_mesh_with_two_axes():
    mesh = keras.distribution.DeviceMesh((1,), ["batch"], keras.distribution.list_devices()[:1])
    refuses("`mesh`. Expected a mesh with the axes 'data' and 'model'", layout_map, mesh)
