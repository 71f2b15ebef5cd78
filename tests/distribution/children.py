"""Helpers of the tests whose cases run in child processes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest


def write_images(folder, classes, count, shape):
    """Writes `count` images for each class; their brightness depends on the class. Returns their folder."""
    rng = np.random.default_rng(0)
    for label, name in enumerate(classes):
        (folder / "images" / name).mkdir(parents=True)
        for i in range(count):
            pixels = rng.integers(0, 128, (*shape, 3)) + 128 * label // (len(classes) - 1)
            keras.utils.save_img(folder / "images" / name / f"{i}.png", pixels, scale=False)
    return folder / "images"


def chosen(config, cases, long):
    """Returns the names of the cases that this run of the tests needs."""
    parts = {"long": long, "not long": [name for name in cases if name not in long]}
    return parts.get(config.option.markexpr, list(cases))


def marked(cases, long, mark):
    """Returns the parameters of a test of cases, of which `mark` marks the long ones."""
    return [pytest.param(name, marks=mark) if name in long else name for name in cases]


def results(name, folder, cases, **environment):
    """Returns the results of cases, which one process of a module of this folder computes."""
    log = folder / "log.txt"
    finish([start(name, folder, *cases, log=log, **environment)], [log], timeout=900)
    return json.loads((folder / "results.json").read_text())


def start(name, *arguments, log, **environment):
    """Starts a module of this folder as a program that logs to a file."""
    return _popen([f"tests.distribution.{name}", *arguments], log, **environment)


def _popen(module, log, **environment):
    with log.open("w") as output:
        return subprocess.Popen(
            [sys.executable, "-m", *map(str, module)],
            cwd=Path(__file__).parents[2],
            env={**os.environ, "CUDA_VISIBLE_DEVICES": "", **environment},
            stdout=output,
            stderr=subprocess.STDOUT,
        )


def torchrun(module, *arguments, log, **environment):
    """Starts a module as a program in two processes of PyTorch."""
    return _popen(
        ["torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", module, *arguments],
        log,
        KERAS_BACKEND="torch",
        OMP_NUM_THREADS="1",
        **environment,
    )


def finish(processes, logs, timeout):
    """Waits for programs, which must end without an error."""
    try:
        codes = [process.wait(timeout) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert not any(codes), "\n".join(log.read_text()[-3000:] for log in logs)


def message(call):
    """Returns the error that a call raises, as text."""
    try:
        call()
    except (ValueError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"
    return None
