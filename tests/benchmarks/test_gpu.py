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
