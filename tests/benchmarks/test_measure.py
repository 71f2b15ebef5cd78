import numpy as np
import pytest


def test_take_turns_rotates_the_first_side(script):
    calls = []
    runs = {name: lambda name=name: calls.append(name) or np.ones(2) for name in "abc"}
    samples, rates = script.take_turns(runs, work=8, rounds=2, warm_up=1)
    assert calls == list("abcbcacab") and rates == {}
    assert {len(values) for clock in samples.values() for values in clock.values()} == {2}
    _, rates = script.take_turns(runs, work=8, rounds=3, warm_up=1, rulers={"products": lambda: 5.0})
    assert rates == {"products": [5.0] * 3}


def test_take_turns_refuses_results_with_nan(script):
    with pytest.raises(RuntimeError, match="finite results of a. Received: NaN"):
        script.take_turns({"a": lambda: np.array([np.nan])}, work=1, rounds=1)
