import json

import pytest

from tests.benchmarks.conftest import BENCHMARKS

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


def test_committed_shares_match_the_layouts(script):
    results = json.loads((BENCHMARKS / "results" / "scaling_devices.json").read_text(encoding="utf-8"))
    rows = {(row["model"], row["layout"], row["devices"]): row for row in results["rows"]}
    assert len(rows) == len(script.LAYOUTS) * len(script.MODELS)
    for (model, layout, devices), row in rows.items():
        if (layout, devices) == ("fsdp", 8):
            assert row["state"] <= (1 / 8 + 0.02) * row["whole_state"], model
        if layout == "tensor":
            shares = [row["split_kernels_share"], *row["inner_shares"].values()]
            assert max(shares) <= 0.25 + 0.02, model
