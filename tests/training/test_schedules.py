import json

import keras
import numpy as np
import pytest

from keras_vit.training import optimizers
from keras_vit.training.optimizers import WarmupDecay
from tests.errors import refuses
from tests.golden import GOLDEN_FOLDER


def official():
    for name, case in json.loads((GOLDEN_FOLDER / "lr_schedules_official.json").read_text()).items():
        args = dict(case["args"])
        options = {"end": args.pop("linear_end")} if "linear_end" in args else {}
        yield name, args, options, np.array(case["steps"]), np.array(case["lr"])


def test_schedules_equal_the_official_code():
    cases = list(official())
    assert {args["decay_type"] for _, args, *_ in cases} == {"linear", "cosine"}
    for name, args, options, steps, lr in cases:
        kind, values = args["decay_type"], (args["base"], args["total_steps"], args["warmup_steps"])
        decay, schedule = optimizers.DECAYS[kind], WarmupDecay(*values, kind, **options)
        found = decay(steps, *values, **options)
        np.testing.assert_allclose(found, lr, atol=1e-6, rtol=1e-6, err_msg=name)
        np.testing.assert_allclose([decay(int(s), *values, **options) for s in steps], found, rtol=1e-12)
        found = [float(schedule(keras.ops.convert_to_tensor(s, "int32"))) for s in steps]
        np.testing.assert_allclose(found, lr, atol=1e-6, rtol=1e-6, err_msg=name)


@pytest.mark.parametrize("decay", optimizers.DECAYS)
def test_schedule_starts_at_the_peak_without_warmup(decay):
    function = optimizers.DECAYS[decay]
    np.testing.assert_allclose(function(np.array([0.0]), 0.5, 100), 0.5, rtol=1e-6)
    # Without a cooldown, the inverse square root does not reach 0.
    assert (function(np.array([100.0]), 0.5, 100)[0] > 0.4) == (decay in ("constant", "rsqrt"))


@pytest.mark.parametrize("decay", optimizers.DECAYS)
def test_schedule_of_a_million_steps_in_float32(decay):
    steps = np.array([0, 9_999, 10_000, 10_001, 499_999, 999_998, 1_000_000])
    exact = optimizers.DECAYS[decay](steps.astype("float64"), 1e-3, 1_000_000, 10_000)
    schedule = WarmupDecay(1e-3, 1_000_000, 10_000, decay)
    found = [float(schedule(keras.ops.convert_to_tensor(s, "int32"))) for s in steps]
    np.testing.assert_allclose(found, exact, rtol=1e-5, atol=1e-9)


def test_schedules_warm_up_stay_decay_and_cool_down():
    constant = WarmupDecay(0.5, 100, 10, "constant")
    assert [float(constant(s)) for s in (0, 5, 10, 10**6)] == [0, 0.25, 0.5, 0.5]
    schedule = WarmupDecay(1.0, 1000, 100, "rsqrt", timescale=100, cooldown_steps=50)
    assert [float(schedule(s)) for s in (0, 50, 100, 400)] == pytest.approx([0, 0.5, 1, 0.5])
    assert float(schedule(975)) == pytest.approx(0.5 / np.sqrt(9.75))
    assert float(schedule(1000)) == float(schedule(1001)) == 0


def test_schedule_in_a_compiled_train_step():
    """With a gradient of 1, the weight moves by the sum of the learning rates."""
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")])
    schedule = WarmupDecay(0.1, 8, 4, "linear", end=0.01)
    model.compile(keras.optimizers.SGD(schedule), lambda y, y_pred: -y_pred)
    model.fit(np.ones((6, 1)), np.ones((6, 1)), batch_size=1, epochs=1, verbose=0)
    expected = sum(optimizers.linear(step, 0.1, 8, 4, end=0.01) for step in range(6))
    np.testing.assert_allclose(model.get_weights()[0], [[expected]], rtol=1e-5)


@pytest.mark.parametrize(
    "options", [{"decay": "linear", "end": 1e-4}, {"decay": "rsqrt", "timescale": 50}, {"decay": "constant"}]
)
def test_serialized_schedule_is_equal(options):
    schedule = WarmupDecay(0.1, 100, 10, **options)
    optimizer = keras.optimizers.deserialize(keras.optimizers.serialize(keras.optimizers.SGD(schedule)))
    reloaded = optimizer._learning_rate
    assert isinstance(reloaded, WarmupDecay) and reloaded.get_config() == schedule.get_config()
    assert float(reloaded(70)) == float(schedule(70))


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"total_steps": 0}, "`total_steps`.*at least 1"),
        ({"warmup_steps": 100}, "`warmup_steps`.*less than total_steps=100"),
        ({"decay": "constant", "end": 0.1}, "with decay='constant': none. Received: end"),
        ({"timescale": 3}, "only these options with decay='cosine': end. Received: timescale"),
        ({"end": "low"}, "`end`.*finite number"),
        ({"decay": "rsqrt", "timescale": 0}, "`timescale`.*above 0"),
        ({"decay": "rsqrt", "cooldown_steps": -5}, "`cooldown_steps`.*at least 0"),
    ],
)
def test_schedule_invalid_arguments_are_refused(arguments, message):
    refuses(message, WarmupDecay, **{"peak": 0.1, "total_steps": 100, **arguments})
