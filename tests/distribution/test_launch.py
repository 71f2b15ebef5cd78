import json
import sys
import time

import pytest

from keras_vit.distribution import join, launch
from keras_vit.distribution.launch import from_environment
from tests.distribution import killed

OF_KERAS = [f"KERAS_DISTRIBUTION_{name}" for name in ("JOB_ADDRESSES", "NUM_PROCESSES", "PROCESS_ID")]
WORKERS = {"cluster": {"worker": ["a:1", "b:2"]}, "task": {"type": "worker", "index": 1}}


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, (None, None, None)),
        ({"MASTER_ADDR": "a", "MASTER_PORT": "7", "WORLD_SIZE": "4", "RANK": "3"}, ("a:7", 4, 3)),
        (dict(zip(OF_KERAS, ("a:1,b:2", "2", "0"), strict=True)), ("a:1", 2, 0)),
        ({"TF_CONFIG": json.dumps(WORKERS)}, ("a:1", 2, 1)),
        ({"SLURM_NTASKS": "8", "SLURM_PROCID": "5"}, (None, 8, 5)),
        ({"SLURM_NTASKS": "8", "SLURM_PROCID": "5", "MASTER_ADDR": "a", "MASTER_PORT": "7"}, ("a:7", 8, 5)),
    ],
)
def test_from_environment_reads_all_launchers(environment, expected):
    assert from_environment(environment) == expected


def test_join_incomplete_environment_is_refused(monkeypatch):
    for name in ("WORLD_SIZE", "TF_CONFIG", "KERAS_DISTRIBUTION_NUM_PROCESSES", "MASTER_ADDR", "SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SLURM_NTASKS", "8")
    with pytest.raises(ValueError, match="Expected coordinator, num_processes, process_id.*Received: num_processes=8"):
        join()
    monkeypatch.delenv("SLURM_NTASKS")
    join()


def test_launch_names_a_failed_process_and_stops_the_others(tmp_path, monkeypatch):
    program = tmp_path / "python"
    program.write_text(f'#!/bin/sh\necho "$*" >> {tmp_path}/log\n[ "$LOCAL_RANK" = 1 ] && exit 2\nexec sleep 60\n')
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    began = time.monotonic()
    with pytest.raises(RuntimeError, match="Process 1 of 2 ended with status 2; the others were stopped"):
        launch(["train", "--seed", "3"], 2)
    assert time.monotonic() - began < 30
    commands = sorted((tmp_path / "log").read_text().splitlines())
    for i, command in enumerate(commands):
        assert command.startswith(f"-m keras_vit.cli train --seed 3 --process-id {i} --coordinator 127.0.0.1:")
    assert len(commands) == 2


@pytest.mark.long
@pytest.mark.backends("jax")
def test_run_with_a_killed_process_can_be_resumed(tmp_path):
    assert killed.compare(tmp_path, step=6) < 60
