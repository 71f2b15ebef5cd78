import json
import re

import numpy as np
import pytest

from keras_vit.distribution.synchronization import check_synchronized
from tests.distribution import children, torch_cases
from tests.errors import refuses
from tests.tiny import build

# Each process draws other masks in these cases.
RANDOM = ("mae", "dropout")


def params(*without):
    return children.marked(
        [case for case in torch_cases.CASES if case not in without], torch_cases.LONG, pytest.mark.long
    )


@pytest.fixture(scope="module")
def runs(tmp_path_factory, request):
    """Results and variables of one process, and of each of two."""
    folder = tmp_path_factory.mktemp("processes")
    names = children.chosen(request.config, torch_cases.CASES, torch_cases.LONG)
    log = folder / "log.txt"
    process = children.torchrun("tests.distribution.torch_cases", folder, *names, log=log)
    try:
        alone = {name: torch_cases.train(torch_cases.CASES[name]) for name in names}
    finally:
        children.finish([process], [log], timeout=300)
    found = []
    for i in range(2):
        results, arrays = json.loads((folder / f"{i}.json").read_text()), np.load(folder / f"{i}.npz")
        variables = {n: [arrays[k] for k in sorted(arrays) if k.split("/")[0] == n] for n in names}
        found.append((results, variables))
    results, variables = ({name: value[i] for name, value in alone.items()} for i in range(2))
    return [(results, variables), *found]


@pytest.mark.parametrize("case", params())
def test_processes_have_one_model(runs, case):
    _, (first_results, first), (second_results, second) = runs
    assert first_results[case] == second_results[case]
    for a, b in zip(first[case], second[case], strict=True):
        np.testing.assert_array_equal(a, b)
        assert np.isfinite(a).all()


@pytest.mark.parametrize("case", params(*RANDOM))
def test_two_processes_train_like_one(runs, case):
    (alone, alone_variables), (results, variables), _ = runs
    # Half precision rounds batches of other sizes in another way.
    tolerance = 1e-2 if case == "float16" else 1e-5
    assert len(results[case]["steps"]) == torch_cases.STEPS
    _assert_close(results[case], alone[case], tolerance)
    for a, b in zip(variables[case], alone_variables[case], strict=True):
        assert np.abs(a - b).max() <= tolerance * np.abs(b).max()


def test_non_finite_gradient_halves_the_scale_in_all(runs):
    assert [results["float16"]["scale"] for results, _ in runs] == [512.0] * 3


def test_evaluation_counts_each_image_once(runs):
    evaluated = runs[1][0]["plain"]["evaluated"]
    # 13 images in 3 batches of process 0 and 1 of process 1.
    assert evaluated["accuracy"] * 13 == pytest.approx(round(evaluated["accuracy"] * 13), abs=1e-5)


def test_synchronized_optimizer_is_saved_as_the_given_one(runs):
    for results, _ in runs[1:]:
        saved = results["saved"]
        assert saved["kinds"] == ["LayerDecay", "LayerDecay"] and saved["iterations"] == 1
        assert len(saved["differences"]) > 10 and not any(saved["differences"])
        # The given optimizer and the averaging one share their settings.
        assert saved["rate"] == 0.5


def test_non_finite_loss_of_one_process_is_in_all_logs(runs):
    assert [results["not finite"] for results, _ in runs[1:]] == [[True, False]] * 2


def test_processes_draw_numbers_that_follow_from_the_seed(runs):
    alone = torch_cases.seeds()
    first, second = (results["seeds"] for results, _ in runs[1:])
    # Process 0 draws the numbers of a single process.
    assert first == alone
    for i in range(2):
        for a, b in zip(first[i], second[i], strict=True):
            assert a != b
    assert second[1] == second[2]
    assert second[3] == first[3]
    # All seeds of process 0 are 7.
    seeds = [seed for seed, _ in second[1][:-1]]
    assert len(set(seeds)) == len(seeds) > 1


def test_processes_that_differ_all_raise(runs):
    for results, _ in runs[1:]:
        refusals = results["refusals"]
        assert re.search(r"the same \d+ variables in processes 0 and 1", refusals["model"])
        assert re.search("`model` to be compiled and built.*compiled=False, built=True", refusals["not compiled"])
        for name in ("check", "fit"):
            assert "Expected a model that 2 PyTorch processes train together" in refusals[name]
        assert refusals["steps"] == 0 and not refusals["is_left"]


def test_check_synchronized_detects_torchrun(monkeypatch):
    model = build()
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1")
    monkeypatch.setenv("WORLD_SIZE", "1")
    check_synchronized(model)
    monkeypatch.setenv("WORLD_SIZE", "4")
    refuses("4 PyTorch processes", check_synchronized, model, error=RuntimeError)


def _assert_close(found, expected, tolerance):
    if isinstance(expected, dict):
        assert list(found) == list(expected)
        found, expected = list(found.values()), list(expected.values())
    if isinstance(expected, list):
        for a, b in zip(found, expected, strict=True):
            _assert_close(a, b, tolerance)
    else:
        assert found == pytest.approx(expected, rel=tolerance, nan_ok=True)
