import pytest

from tests.examples import scripts

COMMON = ("--out", "--epochs", "--batch-size", "--learning-rate", "--seed", "KERAS_BACKEND")
WORDS = dict.fromkeys(("finetune.py", "inspect_model.py", "pretrain.py", "train.py"), COMMON)
WORDS["few_shot.py"] = ("--shots", "--draws", "--weights", "--out", "KERAS_BACKEND")


@pytest.mark.parametrize("script", WORDS)
def test_help_of_script_names_options_and_backend(script, capsys):
    with pytest.raises(SystemExit) as stop:
        scripts.load(script).parse_arguments(["--help"])
    assert not stop.value.code
    output = capsys.readouterr().out
    assert all(word in output for word in WORDS[script])
