import json
import re

import pytest

import keras_vit
from tests.benchmarks.conftest import BENCHMARKS
from tests.peers import peer

NAME = "vit_tiny_patch16_224"
# The first start of a class of transformers, and its word in the guide's table.
TRANSFORMERS = {
    **{"ViTMAE": "MAE", "IJepa": "I-JEPA", "Dinov2": "DINOv2", "DINOv3": "DINOv3", "Siglip": "SigLIP"},
    **{"CLIP": "CLIP", "Bit": "BiT", "DeiT": "DeiT", "ViT": "ViT"},
}
DIFFERING = [
    ({"label_names": ["a"] * 1000}, "class names .'a', 'a', 'a'., expected .'name 0', 'name 1'"),
    ({"problem_type": "regression"}, "task regression, expected single_label"),
    ({"crop_pct": 0.8}, "of the pixels of a picture, by up to"),
]


@pytest.fixture
def zoo(script):
    peer("timm")
    return script


@pytest.fixture
def case(zoo):
    """A model of timm: its maker, the module, images, and its outputs for them."""
    timm = zoo.TimmModel(NAME, shallow=True)
    module = zoo.randomize(timm.create())
    images = zoo.images_for(module, timm)
    return timm, module, images, timm.outputs(module, images)


@pytest.mark.long
def test_zoo_outcome_is_exact_wrong_or_refused(zoo, case, tmp_path):
    torch = pytest.importorskip("torch")
    timm, module, images, expected = case

    def outcome():
        timm.save(module, tmp_path)
        return zoo.load(tmp_path, images, expected)

    row, model = outcome()
    assert (row["outcome"], row["compared"]) == ("exact", "logits")
    assert row["difference"] < 1e-5
    assert zoo.write_back(timm, model, tmp_path, images, expected["logits"]) == "written"
    with torch.no_grad():
        block = module.blocks[1]
        block.norm1.weight, block.norm2.weight = block.norm2.weight, block.norm1.weight
    assert outcome()[0]["outcome"] == "wrong"
    module.blocks[1].attn.extra = torch.nn.Parameter(torch.ones(3))
    row, _ = outcome()
    assert row["outcome"] == "refused"
    assert "blocks.1.attn.extra" in row["message"]


@pytest.mark.long
@pytest.mark.parametrize("changes, message", DIFFERING)
def test_zoo_finds_differing_facts(zoo, case, tmp_path, changes, message):
    timm, module, images, expected = case
    timm.save(module, tmp_path)
    facts, path = timm.facts(module, tmp_path), tmp_path / "config.json"
    assert zoo.load(tmp_path, images, expected, facts)[0]["outcome"] == "exact"
    config = json.loads(path.read_text())
    for key, value in changes.items():
        (config["pretrained_cfg"] if key in config["pretrained_cfg"] else config)[key] = value
    path.write_text(json.dumps(config))
    row, _ = zoo.load(tmp_path, images, expected, facts)
    assert row["outcome"] == "wrong"
    assert re.search(message, row["message"])
    smaller = keras_vit.from_pretrained(tmp_path, image_size=96)
    assert "a picture of (96, 96, 3), expected (224, 224, 3)" in zoo.differing_facts(smaller, facts)


@pytest.mark.long
def test_random_weights_reveal_activation_and_epsilon(zoo, case):
    torch = pytest.importorskip("torch")
    timm, module, images, expected = case
    for cls, setting, value in ((torch.nn.GELU, "approximate", "tanh"), (torch.nn.LayerNorm, "eps", 1e-12)):
        layers = [layer for layer in module.modules() if isinstance(layer, cls)]
        before = getattr(layers[0], setting)
        for layer in layers:
            setattr(layer, setting, value)
        assert zoo.closest(timm.outputs(module, images)["logits"], expected)[0] > zoo.EXACT
        for layer in layers:
            setattr(layer, setting, before)


@pytest.mark.long
def test_zoo_run_resumes_with_missing_models(zoo, run, tmp_path, monkeypatch, capsys):
    peer("transformers")
    asked = []

    def rows_of(names, shallow, seconds):
        for name in names:
            asked.append(name)
            yield {"name": name, "kind": "timm", "outcome": "exact", "difference": 0.0, "written": "written"}

    def results_of(*arguments):
        asked.clear()
        run("--out", tmp_path / "zoo.json", *arguments)
        return json.loads((tmp_path / "zoo.json").read_text())

    monkeypatch.setattr(zoo, "rows_of", rows_of)
    monkeypatch.setattr(zoo, "TIMM_PATTERNS", (NAME, "deit_tiny_patch16_224"))
    monkeypatch.setattr(zoo, "CLASSES", {})
    results = results_of("--only", NAME)
    assert [row["name"] for row in results["rows"]] == asked == [NAME]
    results = results_of()
    assert asked == ["deit_tiny_patch16_224"]
    assert [row["name"] for row in results["rows"]] == ["deit_tiny_patch16_224", NAME]
    assert results["counts"] == {"exact": 2, "written": 2}
    results_of("--only", "deit*|nothing*", "--again")
    assert asked == ["deit_tiny_patch16_224"]
    results_of("--summary")
    assert not asked and "written" in capsys.readouterr().out


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
    for row in exact:
        if row["kind"] == "transformers":
            word = next(word for start, word in TRANSFORMERS.items() if row["name"].startswith(start))
            assert word in table[" transformers"]
