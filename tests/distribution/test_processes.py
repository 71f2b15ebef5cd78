import keras
import numpy as np
import pytest

from keras_vit.distribution import device_mesh, initialize, layout_map, processes
from tests.tiny import build

BACKEND = keras.backend.backend()
jax_only = pytest.mark.backends("jax")


@pytest.mark.parametrize(
    "given, name",
    [
        (("localhost", 2, 0), "coordinator"),
        (("localhost:", 2, 0), "coordinator"),
        ((":1234", 2, 0), "coordinator"),
        (("localhost:port", 2, 0), "coordinator"),
        ((None, 2, 0), "coordinator"),
        (("localhost:1234", 0, 0), "num_processes"),
        (("localhost:1234", 1.5, 0), "num_processes"),
        (("localhost:1234", 2, 2), "process_id"),
        (("localhost:1234", 2, -1), "process_id"),
        (("localhost:1234", 2, None), "process_id"),
        (("localhost:1234", 2, True), "process_id"),
        (("localhost:1234", 2, 1.0), "process_id"),
    ],
)
def test_initialize_names_a_wrong_argument(given, name):
    with pytest.raises(ValueError, match=f"`{name}`"):
        initialize(*given)


def test_one_process_alone_shares_nothing():
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
def test_a_mesh_names_a_wrong_number_of_devices(model):
    with pytest.raises(ValueError, match="`model`"):
        device_mesh(model)


@jax_only
def test_layouts_need_a_mesh_with_the_two_axes():
    mesh = keras.distribution.DeviceMesh((1,), ["batch"], keras.distribution.list_devices()[:1])
    with pytest.raises(ValueError, match="`mesh`. Expected a mesh with the axes 'data' and 'model'"):
        layout_map(mesh)
