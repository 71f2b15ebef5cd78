import importlib
from pathlib import Path

import numpy as np
import pytest


# What takes turns here uses no backend.
@pytest.fixture
def measure(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    return importlib.import_module("measure")


def test_sides_take_turns_with_a_rotating_start(measure):
    calls = []
    runs = {name: lambda name=name: calls.append(name) or np.ones(2) for name in "abc"}
    samples, rates = measure.take_turns(runs, work=8, rounds=2, warm_up=1)
    assert calls == list("abcbcacab") and rates == {}
    assert {len(values) for clock in samples.values() for values in clock.values()} == {2}
    _, rates = measure.take_turns(runs, work=8, rounds=3, warm_up=1, rulers={"products": lambda: 5.0})
    assert rates == {"products": [5.0] * 3}


def test_results_that_are_not_finite_stop_it(measure):
    with pytest.raises(RuntimeError, match="finite results of a. Received: NaN"):
        measure.take_turns({"a": lambda: np.array([np.nan])}, work=1, rounds=1)
