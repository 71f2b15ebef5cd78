import json

import pytest


@pytest.mark.long
def test_gpu_sides_compile_together_and_take_turns(run, tmp_path):
    options = ("--models", "Ti/16", "--num-layers", 1, "--batch", 2, "--device", "cpu", "--turns", 2, "--steps", 1)
    run(*options, "--sides", "keras_vit", "--tasks", "train", "--out", tmp_path / "a.json")
    rows = json.loads((tmp_path / "a.json").read_text())["rows"]
    found = [(row["backend"], row["name"], row["device"]) for row in rows]
    assert found == [("torch", "keras_vit", "cpu"), ("jax", "keras_vit", "cpu")]
    assert all(len(row["samples"]) == 2 and min(row["samples"]) > 0 for row in rows)


def test_gpu_side_beyond_the_budget_is_an_error_in_its_row(run, tmp_path):
    options = ("--models", "Ti/16", "--num-layers", 1, "--batch", 2, "--device", "cpu", "--budget", 0)
    run(*options, "--sides", "keras_vit", "--backends", "torch", "--tasks", "forward", "--out", tmp_path / "a.json")
    (row,) = json.loads((tmp_path / "a.json").read_text())["rows"]
    assert row["error"] == "Expected an answer within --budget and --compile-seconds. Received: none"
