import keras
import numpy as np
import pytest

from keras_vit.distribution import device_mesh, initialize, layout_map, processes
from tests.errors import refuses
from tests.tiny import build

jax_only = pytest.mark.backends("jax")
REFUSED = [("coordinator", ["localhost", "localhost:", ":1234", "localhost:port", None])]
REFUSED += [("num_processes", [0, 1.5]), ("process_id", [2, -1, None, True, 1.0])]


@pytest.mark.parametrize("name, values", REFUSED)
def test_initialize_invalid_argument_is_named(name, values):
    for value in values:
        with pytest.raises(ValueError, match=f"`{name}`"):
            initialize(**{"coordinator": "localhost:1234", "num_processes": 2, "process_id": 0, name: value})


@pytest.mark.every_backend
def test_single_process_shares_nothing():
    assert (processes.num_processes(), processes.process_id()) == (1, 0)
    assert processes.agree(7) == 7
    assert processes.first_in_process_0(lambda: "called") == "called"
    model = build()
    assert processes.on_one_device(model) is model
    for variable in model.variables[:3]:
        np.testing.assert_array_equal(processes.to_numpy(variable), keras.ops.convert_to_numpy(variable))


@jax_only
@pytest.mark.parametrize("model", [0, -1, 1.5, 1000])
def test_device_mesh_invalid_number_is_refused(model):
    refuses("`model`", device_mesh, model)


@jax_only
@pytest.mark.parametrize("names", [["batch"], ["data", "model", "sequence"]])
def test_layout_map_needs_a_mesh_with_two_axes(names):
    mesh = keras.distribution.DeviceMesh((1,) * len(names), names, keras.distribution.list_devices()[:1])
    refuses("`mesh`. Expected a mesh with two axes", layout_map, mesh)


def test_initialize_without_a_launcher_does_nothing(monkeypatch):
    monkeypatch.setenv("SLURM_NTASKS", "2")
    initialize()
    assert processes.num_processes() == 1


@pytest.mark.backends("tensorflow", "jax")
def test_initialize_under_torchrun_needs_pytorch(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    refuses("Expected the .*PyTorch backend.*Received: ", initialize, error=RuntimeError)


@jax_only
def test_initialize_under_slurm_joins_by_jax(monkeypatch):
    joined = []
    monkeypatch.setattr("jax.distributed.initialize", lambda *given: joined.append(given))
    monkeypatch.setenv("SLURM_NTASKS", "2")
    monkeypatch.setenv("SLURM_STEP_NODELIST", "node[1-2]")
    initialize()
    initialize("node1:1234", 2, 1)
    assert joined == [(None, None, None), ("node1:1234", 2, 1)]
