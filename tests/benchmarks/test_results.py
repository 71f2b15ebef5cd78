import json

from tests.benchmarks.conftest import BENCHMARKS

# This file contains counts of parameters, which another test computes again.
COMPUTED = {"vt_resnet"}


def test_each_result_states_the_version_of_the_program():
    paths = sorted((BENCHMARKS / "results").glob("*.json"))
    assert len(paths) > 40
    for path in paths:
        found = json.loads(path.read_text(encoding="utf-8"))
        if path.stem in COMPUTED:
            continue
        rows = found if isinstance(found, list) else [found] if "keras_vit" in found else found["rows"]
        versions = [row.get("keras_vit") or row.get("run", found)["versions"]["keras_vit"] for row in rows]
        assert versions and all(version.startswith("0.") for version in versions), path.name
