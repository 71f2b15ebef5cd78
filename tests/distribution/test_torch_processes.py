import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest

from keras_vit.distribution import torch_processes
from tests.distribution import torch_cases
from tests.tiny import build

torch_only = pytest.mark.backends("torch")
# Each process draws masks of its own in these.
RANDOM = ("mae", "dropout")
CASES = [case.__name__ for case in torch_cases.CASES]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Results and variables of one process, and of each of two."""
    folder = tmp_path_factory.mktemp("processes")
    with socket.create_server(("localhost", 0)) as server:
        coordinator = f"localhost:{server.getsockname()[1]}"
    environment = {**os.environ, "KERAS_BACKEND": "torch", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-m", "tests.distribution.torch_cases", coordinator, "2"]
    logs = [folder / f"{i}.log" for i in range(2)]
    processes = []
    try:
        for i, log in enumerate(logs):
            with log.open("w") as output:
                processes.append(
                    subprocess.Popen(
                        [*command, str(i), str(folder)],
                        cwd=Path(__file__).parents[2],
                        env=environment,
                        stdout=output,
                        stderr=subprocess.STDOUT,
                    )
                )
        alone = {case.__name__: torch_cases.train(case) for case in torch_cases.CASES}
        codes = [process.wait(timeout=120) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert codes == [0, 0], "\n".join(log.read_text()[-3000:] for log in logs)
    found = []
    for i in range(2):
        results, arrays = json.loads((folder / f"{i}.json").read_text()), np.load(folder / f"{i}.npz")
        variables = {n: [arrays[k] for k in sorted(arrays) if k.split("/")[0] == n] for n in CASES}
        found.append((results, variables))
    results, variables = ({name: value[i] for name, value in alone.items()} for i in range(2))
    return [(results, variables), *found]


@torch_only
@pytest.mark.parametrize("case", CASES)
def test_processes_have_one_model(runs, case):
    _, (first_results, first), (second_results, second) = runs
    assert first_results[case] == second_results[case]
    for a, b in zip(first[case], second[case], strict=True):
        np.testing.assert_array_equal(a, b)
        assert np.isfinite(a).all()


@torch_only
@pytest.mark.parametrize("case", [case for case in CASES if case not in RANDOM])
def test_two_processes_train_like_one(runs, case):
    (alone, alone_variables), (results, variables), _ = runs
    # Half precision rounds otherwise in batches of other sizes.
    tolerance = 1e-2 if case == "float16" else 1e-5
    assert len(results[case]["steps"]) == torch_cases.STEPS
    _assert_close(results[case], alone[case], tolerance)
    for a, b in zip(variables[case], alone_variables[case], strict=True):
        assert np.abs(a - b).max() <= tolerance * np.abs(b).max()


@torch_only
def test_a_gradient_that_is_not_finite_in_one_process_halves_the_scale_in_all(runs):
    assert [results["float16"]["scale"] for results, _ in runs] == [512.0] * 3


@torch_only
def test_evaluation_counts_each_image_once(runs):
    evaluated = runs[1][0]["plain"]["evaluated"]
    # 13 images in 3 batches of process 0 and 1 of process 1.
    assert evaluated["accuracy"] * 13 == pytest.approx(round(evaluated["accuracy"] * 13), abs=1e-5)


@torch_only
def test_processes_draw_different_numbers_that_follow_from_the_seed(runs):
    alone = torch_cases.seeds()
    first, second = (results["seeds"] for results, _ in runs[1:])
    # Process 0 draws as one process alone.
    assert first == alone
    for i in range(2):
        for a, b in zip(first[i], second[i], strict=True):
            assert a != b
    assert second[1] == second[2]
    assert second[3] == first[3]
    # All of process 0's are 7.
    seeds = [seed for seed, _ in second[1][:-1]]
    assert len(set(seeds)) == len(seeds) > 1


@torch_only
def test_processes_that_do_not_agree_all_raise(runs):
    for i, (results, _) in enumerate(runs[1:]):
        refusals = results["refusals"]
        assert re.search(f"num_processes=3 .*Received: a group with 2 processes, here process {i}", refusals["group"])
        assert re.search("same variables in each process", refusals["model"])


@torch_only
def test_a_model_must_be_compiled_and_built():
    with pytest.raises(ValueError, match="`model` to be compiled and built. Received: .*compiled=False, built=True"):
        torch_processes.synchronize(build())
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    with pytest.raises(ValueError, match="`model` to be compiled and built. Received: .*compiled=True, built=False"):
        torch_processes.synchronize(model)
    model = build()
    model.compile("sgd", "mse", jit_compile=True)
    with pytest.raises(ValueError, match="jit_compile=False. Received: .*with True"):
        torch_processes.synchronize(model)


@pytest.mark.backends("tensorflow", "jax")
def test_other_backends_have_no_processes():
    with pytest.raises(RuntimeError, match="Expected the PyTorch backend. Received: KERAS_BACKEND="):
        torch_processes.synchronize(None)


def _assert_close(found, expected, tolerance):
    if isinstance(expected, dict):
        assert list(found) == list(expected)
        found, expected = list(found.values()), list(expected.values())
    if isinstance(expected, list):
        for a, b in zip(found, expected, strict=True):
            _assert_close(a, b, tolerance)
    else:
        assert found == pytest.approx(expected, rel=tolerance, nan_ok=True)
