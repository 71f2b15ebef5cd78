import ast
import sys
import textwrap

import pytest


@pytest.fixture
def checkout(tmp_path):
    """A checkout with one function and one test that finds some of its mutants."""
    root = tmp_path / "root"
    for name in ("keras_vit/layers", "tests/layers", "benchmarks", "examples"):
        (root / name).mkdir(parents=True)
    code = """
    def larger(a, b):
        if a > b:
            return a + 0
        return b
    """
    (root / "keras_vit" / "layers" / "code.py").write_text(textwrap.dedent(code))
    test = """
    from keras_vit.layers.code import larger

    def test_larger():
        assert larger(1, 2) == 2 and larger(2, 1) == 2
    """
    (root / "tests" / "layers" / "test_code.py").write_text(textwrap.dedent(test))
    (root / "pyproject.toml").write_text("[tool.pytest.ini_options]\npythonpath = ['.']\n")
    (root / "README.md").write_text("")
    return root


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
def test_run_finds_faults_and_resumes(script, checkout, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(script, "GROUPS", {"layers": ("layers/*.py", "layers", 20)})
    monkeypatch.setattr(script, "BACKENDS", ("torch",))
    out = tmp_path / "mutants.json"
    command = ["mutants.py", "--root", str(checkout), "--out", str(out), "--records", str(tmp_path / "records")]
    monkeypatch.setattr(sys, "argv", command)
    script.main()
    rows = {(row["before"], row["after"]): row for row in script.json.loads(out.read_text())["rows"]}
    assert rows["a > b", "(not a > b)"]["result"] == "killed"
    assert rows["a > b", "(not a > b)"]["by"] == "tests/layers/test_code.py::test_larger"
    assert rows["a > b", "(a >= b)"]["result"] == "survived"
    before = out.read_text()
    capsys.readouterr()
    script.main()
    assert out.read_text() == before and "survived" not in capsys.readouterr().out
