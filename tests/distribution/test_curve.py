"""Trains on two processes of JAX. tests/distribution/torch_cases.py does so on PyTorch, which has other processes."""

import json
import socket

import numpy as np
import pytest

from tests.distribution import children

pytestmark = [pytest.mark.backends("jax"), pytest.mark.long]


def test_losses_of_two_processes_equal_one_device(tmp_path):
    with socket.create_server(("localhost", 0)) as server:
        address = f"localhost:{server.getsockname()[1]}"
    environment = {"KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu", "OMP_NUM_THREADS": "1"}
    one = children.start("curve", tmp_path / "one", log=tmp_path / "log", **environment)
    children.finish([one], [tmp_path / "log"], timeout=300)
    environment["JAX_NUM_CPU_DEVICES"] = "2"
    logs = [tmp_path / f"{i}.log" for i in range(2)]
    arguments = [(tmp_path / "two", address, 2, i) for i in range(2)]
    two = [children.start("curve", *each, log=log, **environment) for each, log in zip(arguments, logs, strict=True)]
    children.finish(two, logs, timeout=300)
    expected = json.loads((tmp_path / "one.0").read_text())
    parts = [json.loads(path.read_text()) for path in sorted(tmp_path.glob("two.*"))]
    losses = np.mean([part["losses"] for part in parts], axis=0)
    assert len(parts) == 2 and len(set(expected["losses"])) == len(losses) == 30
    np.testing.assert_allclose(losses, expected["losses"], rtol=2e-5)
    for part in parts:
        assert part["memory"] == parts[0]["memory"]
        for name, values in expected["history"].items():
            np.testing.assert_allclose(part["history"][name], values, rtol=2e-5)
