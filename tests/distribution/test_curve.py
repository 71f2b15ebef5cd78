"""Trains on two processes or devices by the launcher of each backend: losses, and the end of a killed run."""

import json
import socket

import keras
import numpy as np
import pytest

from tests.distribution import children

pytestmark = [pytest.mark.every_backend, pytest.mark.long]
CPU = {"JAX_PLATFORMS": "cpu", "OMP_NUM_THREADS": "1"}


def address():
    with socket.create_server(("localhost", 0)) as server:
        return f"localhost:{server.getsockname()[1]}"


def started(folder):
    """Starts the run on several devices; returns its processes and logs."""
    backend, path = keras.backend.backend(), folder / "two"
    logs = [folder / f"{i}.log" for i in range(2)]
    environment = {"KERAS_BACKEND": backend, **CPU}
    if backend == "torch":
        return [children.torchrun("tests.distribution.curve", path, log=logs[0])], logs[:1]
    if backend == "tensorflow":
        return [children.start("curve", path, "devices", log=logs[0], **environment)], logs[:1]
    environment["JAX_NUM_CPU_DEVICES"], where = "2", address()
    return [children.start("curve", path, where, 2, i, log=logs[i], **environment) for i in range(2)], logs


def test_losses_of_two_processes_equal_one_device(tmp_path):
    one = children.start("curve", tmp_path / "one", log=tmp_path / "log", KERAS_BACKEND=keras.backend.backend(), **CPU)
    children.finish([one], [tmp_path / "log"], timeout=300)
    children.finish(*started(tmp_path), timeout=300)
    expected = json.loads((tmp_path / "one.0").read_text())
    parts = [json.loads(path.read_text()) for path in sorted(tmp_path.glob("two.*"))]
    assert len(parts) == (1 if keras.backend.backend() == "tensorflow" else 2)
    losses = np.mean([part["losses"] for part in parts], axis=0)
    assert len(set(expected["losses"])) == len(losses) == 30
    np.testing.assert_allclose(losses, expected["losses"], rtol=2e-5)
    for part in parts:
        assert part["memory"] == parts[0]["memory"]
        for name, values in expected["history"].items():
            np.testing.assert_allclose(part["history"][name], values, rtol=2e-5)
