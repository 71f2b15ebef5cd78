import json

import pytest

from keras_vit.distribution import join, launch
from keras_vit.distribution.launch import from_environment
from tests.distribution import killed

WORKERS = {"cluster": {"worker": ["a:1", "b:2"]}, "task": {"type": "worker", "index": 1}}


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, (None, None, None)),
        ({"MASTER_ADDR": "a", "MASTER_PORT": "7", "WORLD_SIZE": "4", "RANK": "3"}, ("a:7", 4, 3)),
        (
            {
                "KERAS_DISTRIBUTION_JOB_ADDRESSES": "a:1,b:2",
                "KERAS_DISTRIBUTION_NUM_PROCESSES": "2",
                "KERAS_DISTRIBUTION_PROCESS_ID": "0",
            },
            ("a:1", 2, 0),
        ),
        ({"TF_CONFIG": json.dumps(WORKERS)}, ("a:1", 2, 1)),
        ({"SLURM_NTASKS": "8", "SLURM_PROCID": "5"}, (None, 8, 5)),
        ({"SLURM_NTASKS": "8", "SLURM_PROCID": "5", "MASTER_ADDR": "a", "MASTER_PORT": "7"}, ("a:7", 8, 5)),
    ],
)
def test_launchers_are_understood(environment, expected):
    assert from_environment(environment) == expected


def test_half_of_what_is_needed_is_refused(monkeypatch):
    for name in ("WORLD_SIZE", "TF_CONFIG", "KERAS_DISTRIBUTION_NUM_PROCESSES", "MASTER_ADDR", "SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SLURM_NTASKS", "8")
    with pytest.raises(ValueError, match="Expected coordinator, num_processes, process_id.*Received: num_processes=8"):
        join()
    monkeypatch.delenv("SLURM_NTASKS")
    join()


def test_a_process_that_fails_is_named(capfd):
    with pytest.raises(RuntimeError, match="Process 0 of 1 ended with status 2"):
        launch(["no-such-command"], 1)
    assert "no-such-command" in capfd.readouterr().err


@pytest.mark.backends("jax")
def test_a_run_goes_on_after_one_of_its_processes_was_killed(tmp_path):
    (seconds,) = killed.compare(tmp_path, [6])
    assert seconds < 60
