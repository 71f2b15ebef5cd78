def test_startup_child_measures_each_step(script, tmp_path):
    spec = {"model": "Ti/16", "num_layers": 1, "file": str(tmp_path / "Ti16")}
    assert script.child({**spec, "step": "save"}) == {}
    for step in script.STEPS:
        found = script.child({**spec, "step": step})
        assert found["seconds"] > 0
        if step != "import":
            assert found["bytes"] == 4 * (192 * (3 * 16**2 + 1 + 1 + 197 + 1002) + 12 * 192**2 + 13 * 192 + 1000)
