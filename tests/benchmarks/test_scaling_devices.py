import pytest

pytestmark = pytest.mark.backends("jax")
ROW = {
    **{"state": 5, "arguments": 6e9, "temporary": 3e9, "flops": 2e12},
    "collectives": [
        {"kind": "all-reduce", "group": 4, "span": 4, "number": 1, "bytes": 1e9},
        {"kind": "all-gather", "group": 64, "span": 256, "number": 9, "bytes": 3e9},
    ],
}


def test_roofline_of_known_numbers(script):
    hardware = script.Hardware(tflops=10, memory=9, node=8, inside=4, between=2)
    assert script.roofline(ROW, hardware, 0.5) == (True, 0.4, 2e9 / 4e9 + 3e9 / 2e9)
    assert script.roofline(ROW, hardware._replace(memory=8.9, node=2), 1) == (False, 0.2, 5e9 / 2e9)
