import json

import pytest

from tests.benchmarks.conftest import BENCHMARKS

pytestmark = pytest.mark.backends("jax")
TINY = {"model": "Ti/16", "image_size": 32, "hidden_dim": 256, "num_heads": 8, "mlp_dim": 1024, "blocks": 2}
ROW = {
    **{"state": 5, "arguments": 6e9, "temporary": 3e9, "flops": 2e12},
    "collectives": [
        {"kind": "all-reduce", "group": 4, "span": 4, "number": 1, "bytes": 1e9},
        {"kind": "all-gather", "group": 64, "span": 256, "number": 9, "bytes": 3e9},
    ],
}
GROUPS = [
    ("replica_groups=[4,64]<=[64,4]T(1,0), dimensions={1}", 64),
    ("replica_groups={{0,1,2},{3,4,5}}, dimensions={1}", 3),
    ("source_target_pairs={{0,1},{1,0}}", 2),
    ("replica_groups=mesh['axis_0'=1,'axis_1'=4,'axis_2'=64], device_ids=([64,4]T(1,0)) {'axis_1'}, x={2}", 4),
    ("replica_groups=mesh['axis_0'=8,'axis_1'=2] {'axis_0','axis_1'}", 16),
]


@pytest.mark.long
def test_fsdp_splits_parameters_and_optimizer_state(script):
    row = script.run({**TINY, "layout": "fsdp", "devices": 4, "model_devices": 1, "batch": 12, "remat": False})
    assert 0.25 < row["state"] / row["whole_state"] < 0.27
    assert row["arguments"] - row["state"] == 3 * (32 * 32 * 3 + 1) * 4
    # Products forward and twice backward, but for the gradient of images; the rest is small. The last block computes
    # queries, keys and values of the 5 tokens, and the rest of the class token alone.
    first, last = 5 * 12 * 256**2 + 2 * 5**2 * 256, 24 * 256**2 + 2 * 5 * 256
    products = 3 * (first + last) + 2 * 4 * 768 * 256
    assert 1 < row["flops"] / (3 * 2 * products) < 1.25
    kinds = {each["kind"]: each for each in row["collectives"]}
    assert {each["group"] for each in row["collectives"]} == {4}
    # Kernels are gathered and their gradients summed in 16 bits, but for the head's.
    for kind in ("all-gather", "all-reduce"):
        assert 1 < kinds[kind]["bytes"] / (2 * (2 * 12 * 256**2 + 768 * 256) + 4 * 256 * 1000) < 1.05


@pytest.mark.long
def test_tensor_layout_splits_kernels_and_activations(script):
    row = script.run({**TINY, "layout": "tensor", "devices": 4, "model_devices": 4, "batch": 3, "remat": True})
    assert row["split_kernels_share"] == 0.25
    assert row["inner_shares"] == {"scores": 0.25, "qkv": 0.25, "mlp": 0.25}
    assert row["residual_whole"]


@pytest.mark.parametrize("text, group", GROUPS)
def test_group_of_reads_each_hlo_notation(script, text, group):
    assert script.group_of(f"%a = f32[8]{{0}} all-gather(%b), channel_id=1, {text}") == group


def test_roofline_of_known_numbers(script):
    hardware = script.Hardware(tflops=10, memory=9, node=8, inside=4, between=2)
    assert script.roofline(ROW, hardware, 0.5) == (True, 0.4, 2e9 / 4e9 + 3e9 / 2e9)
    assert script.roofline(ROW, hardware._replace(memory=8.9, node=2), 1) == (False, 0.2, 5e9 / 2e9)


def test_scaling_run_resumes_with_missing_models(script, run, tmp_path, monkeypatch, capsys):
    compiled, count, options = [], len(script.LAYOUTS), ("--out", tmp_path / "a.json")
    monkeypatch.setattr(script, "run", lambda setting: compiled.append(setting) or ROW)
    run(*options, "--models", "L/16")
    assert len(compiled) == count
    run(*options, "--models", "L/16", "H/14")
    assert len(compiled) == 2 * count
    rows = json.loads((tmp_path / "a.json").read_text())["rows"]
    assert [row["model"] for row in rows] == ["L/16"] * count + ["H/14"] * count
    capsys.readouterr()
    run(*options, "--summary", "--hardware", "X", "10", "9", "8", "4", "2")
    assert len(compiled) == 2 * count
    assert "X days" in capsys.readouterr().out
    assert (tmp_path / "a.png").exists()


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
