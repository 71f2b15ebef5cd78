import json
import os
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest

from keras_vit import distribution
from tests.distribution import tensorflow_cases

pytestmark = pytest.mark.backends("tensorflow")


class Results(dict):
    """Results by case; one that ended with an error has none."""

    def __getitem__(self, name):
        result = super().__getitem__(name)
        assert not (isinstance(result, dict) and "error" in result), result["error"]
        return result


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What came of all cases, each in a process with two logical devices or one."""
    folder = tmp_path_factory.mktemp("replicas")
    rng = np.random.default_rng(0)
    for label in range(2):
        (folder / "images" / str(label)).mkdir(parents=True)
        for i in range(10):
            pixels = rng.integers(0, 128 + 127 * label, (12, 12, 3))
            keras.utils.save_img(folder / "images" / str(label) / f"{i}.png", pixels, scale=False)
    environment = {**os.environ, "KERAS_BACKEND": "tensorflow", "CUDA_VISIBLE_DEVICES": ""}
    ran = subprocess.run(
        [sys.executable, "-m", "tests.distribution.tensorflow_cases", str(folder)],
        cwd=Path(__file__).parents[2],
        env=environment,
        check=False,
        capture_output=True,
        text=True,
        timeout=540,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    return Results(json.loads((folder / "results.json").read_text()))


@pytest.mark.parametrize("case", [case.__name__ for case in tensorflow_cases.CASES])
def test_two_replicas_train_like_one_device(found, case):
    one, two = found[f"{case} one"], found[f"{case} two"]
    assert len(one["losses"]) == len(set(one["losses"])) == tensorflow_cases.STEPS
    np.testing.assert_allclose(two["losses"], one["losses"], rtol=1e-4)
    # The absolute error of SimMIM has kinks, on which rounding decides.
    tolerance = 1e-2 if case == "simmim" else 1e-4
    np.testing.assert_allclose(two["weights"], one["weights"], rtol=tolerance, atol=1e-7)


def test_a_checkpoint_is_loaded_for_both_replicas(found):
    assert found["loaded"] == [0, 0]


def test_replicas_draw_different_masks_once_synchronized(found):
    alike, other = found["masks"]
    # Keras alone.
    assert all(first == second for first, second in alike)
    assert all(first != second for first, second in other)
    # The first draws as it would have.
    assert [first for first, _ in other] == [first for first, _ in alike]
    assert other[0] != other[1]


@pytest.mark.parametrize("setting", ["gradient_accumulation_steps", "clipnorm", "clipvalue"])
def test_what_keras_computes_for_each_replica_alone_is_refused(found, setting):
    assert f"ValueError: Expected an optimizer without {setting} on several devices" in found["refusals"][setting]
    assert "JAX and PyTorch" in found["refusals"][setting]


def test_a_gradient_that_is_not_finite_in_one_replica_is_skipped_in_both(found):
    one, two = found["float16 one"], found["float16 two"]
    assert one["scale"] == two["scale"] == 512.0
    for a, b in zip(one["fits"], two["fits"], strict=True):
        # Half precision rounds otherwise in parts of a batch.
        np.testing.assert_allclose(b["losses"], a["losses"], rtol=1e-2)
        np.testing.assert_allclose(b["weights"], a["weights"], rtol=1e-2, atol=1e-4)
    assert np.isfinite(two["fits"][1]["losses"]).all()


def test_a_run_of_one_device_goes_on_with_two(found):
    one, two = found["run one"], found["run two"]
    assert (one["replicas"], two["replicas"]) == (1, 2)
    assert (one["first_step"], two["first_step"]) == (0, 3)
    assert two["history"].keys() == one["history"].keys()
    for name, values in one["history"].items():
        np.testing.assert_allclose(two["history"][name], values, rtol=1e-4, err_msg=name)
    assert two["test"] == pytest.approx(one["test"], rel=1e-4)


def test_a_batch_that_the_devices_do_not_divide_is_refused_before_a_model_is_built(found):
    assert found["refused run"].startswith("ValueError: Expected a `batch_size` that the 2 devices")
    assert found["refused run"].endswith("Received: 5")


def test_several_workers_are_refused():
    with pytest.raises(RuntimeError, match="JAX or PyTorch backend for several processes.*MultiWorkerMirroredStrategy"):
        distribution.initialize("localhost:1234", num_processes=2, process_id=0)
