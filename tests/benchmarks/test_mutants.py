import ast

import pytest

CODE = """
def larger(a, b):
    if a > b:
        return a + 0
    return b
"""
TEST = """
from keras_vit.layers.code import larger

def test_larger():
    assert larger(1, 2) == 2 and larger(2, 1) == 2
"""
CHECKOUT = {
    "keras_vit/layers/code.py": CODE,
    "tests/layers/test_code.py": TEST,
    "pyproject.toml": "[tool.pytest.ini_options]\npythonpath = ['.']\n",
    **dict.fromkeys(("README.md", "benchmarks/none.py", "examples/none.py"), ""),
}


def test_draw_same_seed_same_mutants(script):
    first, again, other = (script.draw(script.ROOT, seed) for seed in (0, 0, 1))
    assert first == again != other
    assert len(first) == 200 and {row["group"] for row in first} == set(script.GROUPS)


def test_each_mutant_compiles_and_differs(script):
    for row in script.draw(script.ROOT, 0)[::8]:
        source = (script.ROOT / row["file"]).read_bytes()
        mutated = source[: row["begin"]] + row["after"].encode() + source[row["end"] :]
        assert ast.dump(ast.parse(mutated)) != ast.dump(ast.parse(source)), row


@pytest.mark.long
def test_run_finds_faults_and_resumes(script, run, tmp_path, monkeypatch, capsys):
    for name, text in CHECKOUT.items():
        (tmp_path / "root" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "root" / name).write_text(text)
    monkeypatch.setattr(script, "GROUPS", {"layers": ("layers/*.py", "layers", 20)})
    monkeypatch.setattr(script, "BACKENDS", ("torch",))
    out = tmp_path / "mutants.json"
    options = ("--root", tmp_path / "root", "--out", out, "--records", tmp_path / "records")
    run(*options)
    rows = {(row["before"], row["after"]): row for row in script.json.loads(out.read_text())["rows"]}
    assert rows["a > b", "(not a > b)"]["result"] == "killed"
    assert rows["a > b", "(not a > b)"]["by"] == "tests/layers/test_code.py::test_larger"
    assert rows["a > b", "(a >= b)"]["result"] == "survived"
    before = out.read_text()
    capsys.readouterr()
    run(*options)
    assert out.read_text() == before and "survived" not in capsys.readouterr().out
