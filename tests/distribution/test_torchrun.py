import subprocess
import sys

import pytest

from keras_vit.distribution import launch
from tests.distribution import killed
from tests.errors import refuses


def test_launch_runs_the_command_by_torchrun(monkeypatch, tmp_path):
    program = tmp_path / "python"
    program.write_text(f'#!/bin/sh\necho "$*" > {tmp_path}/log\nexit 3\n')
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    refuses("torchrun ended with status 3", launch, ["train", "--seed", "3"], 2, error=RuntimeError)
    assert (tmp_path / "log").read_text().split() == [
        *("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"),
        *("-m", "keras_vit.cli", "train", "--seed", "3"),
    ]


@pytest.mark.backends("tensorflow", "jax")
def test_launch_on_other_backends_is_refused(monkeypatch):
    monkeypatch.setattr(subprocess, "run", None)
    refuses("Expected the PyTorch backend.*Start one process", launch, ["train"], 2, error=RuntimeError)


@pytest.mark.long
@pytest.mark.backends("torch", "jax")
def test_run_with_a_killed_process_can_be_resumed(tmp_path):
    assert killed.compare(tmp_path, step=6) < 60
