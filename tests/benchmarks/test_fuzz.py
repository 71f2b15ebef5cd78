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
