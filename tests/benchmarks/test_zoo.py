import json

import pytest

from tests.benchmarks.conftest import BENCHMARKS
from tests.peers import peer


@pytest.mark.long
def test_zoo_outcome_is_exact_wrong_or_refused(script, tmp_path):
    peer("timm")
    torch = pytest.importorskip("torch")
    timm = script.TimmModel("vit_tiny_patch16_224", shallow=True)
    module = script.randomize(timm.create())
    images = script.images_for(module, timm)
    expected = timm.outputs(module, images)

    def outcome():
        timm.save(module, tmp_path)
        return script.load(tmp_path, images, expected, timm.facts(module, tmp_path))

    row, model = outcome()
    assert (row["outcome"], row["compared"]) == ("exact", "logits")
    assert row["difference"] < 1e-5
    assert script.write_back(timm, model, tmp_path, images, expected["logits"]) == "written"
    with torch.no_grad():
        block = module.blocks[1]
        block.norm1.weight, block.norm2.weight = block.norm2.weight, block.norm1.weight
    assert outcome()[0]["outcome"] == "wrong"
    module.blocks[1].attn.extra = torch.nn.Parameter(torch.ones(3))
    row, _ = outcome()
    assert row["outcome"] == "refused" and "blocks.1.attn.extra" in row["message"]


def test_counts_of_pages_match_the_zoo_results(script):
    results = json.loads((BENCHMARKS / "results" / "zoo.json").read_text(encoding="utf-8"))
    pages = [BENCHMARKS.parent / page for page in ("README.md", "examples/site/docs/guides/coming_from.md")]
    readme, guide = (" ".join(page.read_text(encoding="utf-8").split()) for page in pages)
    versions = f"timm {results['timm']} and transformers {results['transformers']}"
    counts = {key: results["counts"].get(key, 0) for key in ("exact", "refused", "wrong", "crashed", "not made")}
    assert counts["wrong"] == counts["crashed"] == counts["not made"] == 0
    told = f"Of {sum(counts.values())} models of {versions}, {counts['exact']} are exact"
    assert told in readme and f"other {counts['refused']} are refused" in readme
    assert told in guide and f"{counts['refused']} are refused" in guide
    table = {row.split(":")[0]: row for row in guide.split("|") if row.startswith((" timm: ", " transformers: "))}
    exact = [row for row in results["rows"] if row["outcome"] == "exact"]
    families = {script.family_of(row["name"]) for row in exact} - {"transformers"}
    assert {family for family in script.FAMILIES if family in table[" timm"]} == families
