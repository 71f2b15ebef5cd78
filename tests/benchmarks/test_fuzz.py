import pytest

FORMATS = (
    *("npz", "safetensors", "keras", "official_npz", "modern_pth"),
    *("weights_h5", "timm_safetensors", "huggingface", "legacy_pth"),
)


@pytest.mark.long
@pytest.mark.parametrize("name", FORMATS)
def test_damaged_checkpoint_is_refused_or_read_as_whole(script, name, tmp_path):
    assert set(FORMATS) == set(script.CHECKSUM)
    files = script.Files(tmp_path, name)
    outcomes = [files.run(script.rng_of(0, name, case))[0] for case in range(10)]
    # Without a checksum, some damage cannot be noticed.
    assert set(outcomes) <= ({"refused", "loaded"} if script.CHECKSUM[name] else {"refused", "loaded", "silent"})
    assert "refused" in outcomes


def test_wrong_loaders_are_classified(script, tmp_path):
    files = script.Files(tmp_path, "npz")
    whole = files.checkpoints.load_weights

    def change(model, path):
        model.set_weights([w + 1 for w in model.get_weights()])

    def fail(error):
        raise error

    cases = {
        "silent": change,
        "changed": lambda model, path: (change(model, path), whole(model, path.parent / "none.npz")),
        "crash": lambda model, path: fail(TypeError("no")),
        "unclear": lambda model, path: fail(ValueError("no")),
        "loaded": lambda model, path: whole(model, files.whole),
    }
    for outcome, load in cases.items():
        files.checkpoints.load_weights = load
        assert files.load(files.whole.with_name("bad.npz"))[0] == outcome
    rows = [script.finding("files", name, "silent", "") for name in ("npz", "weights_h5")]
    assert [script.is_failure(row) for row in rows] == [True, False]
