"""Compares the committed figures with the models and with the paper."""

import json

import pytest

import keras_vit
from keras_vit.models.vt_resnet.config import VT_RESNETS


def test_committed_figures_match_the_models(script):
    results = json.loads(script.RESULTS.read_text())
    assert list(results) == list(VT_RESNETS)
    assert script.measure("R18") == results["R18"]
    lines = script.tables(results).splitlines()
    assert lines[1].split() == ["R18", "11.81", "11.60", "11.70", "1,561.47", "1,579", "1,569"]


@pytest.mark.parametrize(
    "variant, table, within", [("R18", 2, 0.02), ("R34", 2, 0.02), ("R50", 8, 0.09), ("R101", 8, 0.05)]
)
def test_committed_figures_are_near_the_paper(script, variant, table, within):
    own = json.loads(script.RESULTS.read_text())[variant]
    paper = {2: script.TABLE_2, 8: script.TABLE_8}[table][variant]
    assert (own["parameters"], own["multiply_adds"]) == pytest.approx(paper, rel=within)


def test_model_of_the_equations_has_3_8_million_weights(count_params):
    assert count_params(lambda: keras_vit.VTResNet("R18", token_dim=256, key_dim=256)) == pytest.approx(3.8e6, rel=0.01)
