import json
import re

import pytest

import keras_vit
from tests.benchmarks.conftest import BENCHMARKS
from tests.peers import peer

DIFFERING = [
    ({"label_names": ["a"] * 1000}, "class names .'a', 'a', 'a'., expected .'name 0', 'name 1'"),
    ({"problem_type": "regression"}, "task regression, expected single_label"),
    ({"crop_pct": 0.8}, "of the pixels of a picture, by up to"),
]


@pytest.fixture
def case(script):
    """A model of timm: its maker, the module, images, and its outputs for them."""
    peer("timm")
    timm = script.TimmModel("vit_tiny_patch16_224", shallow=True)
    module = script.randomize(timm.create())
    images = script.images_for(module, timm)
    return timm, module, images, timm.outputs(module, images)


@pytest.mark.long
def test_zoo_outcome_is_exact_wrong_or_refused(script, case, tmp_path):
    torch = pytest.importorskip("torch")
    timm, module, images, expected = case

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


@pytest.mark.long
@pytest.mark.parametrize("changes, message", DIFFERING)
def test_zoo_finds_differing_facts(script, case, tmp_path, changes, message):
    timm, module, images, expected = case
    timm.save(module, tmp_path)
    facts, path = timm.facts(module, tmp_path), tmp_path / "config.json"
    assert script.load(tmp_path, images, expected, facts)[0]["outcome"] == "exact"
    config = json.loads(path.read_text())
    for key, value in changes.items():
        (config["pretrained_cfg"] if key in config["pretrained_cfg"] else config)[key] = value
    path.write_text(json.dumps(config))
    row, _ = script.load(tmp_path, images, expected, facts)
    assert row["outcome"] == "wrong"
    assert re.search(message, row["message"])
    smaller = keras_vit.from_pretrained(tmp_path, image_size=96)
    assert "a picture of (96, 96, 3), expected (224, 224, 3)" in script.differing_facts(smaller, facts)


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
