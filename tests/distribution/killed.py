"""Kills one of two processes of a run: the other must end, and the same command must resume the run."""

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import keras
import numpy as np

from tests.distribution.children import write_images

SETTINGS = {"variant": "Ti/8", "image_size": 32, "steps": 12, "batch_size": 16, "model.num_layers": 1}
SETTINGS |= {"optimizer": "adamw", "learning_rate": 0.001}
# A resumed run must draw the same masks.
SETTINGS |= {"model.dropout_rate": 0.1, "model.drop_path_rate": 0.1}
# JAX notices a lost process by its heartbeat, by default after up to 100 s.
PROGRAM = """
import functools, jax, keras_vit.cli
jax.distributed.initialize = functools.partial(jax.distributed.initialize, heartbeat_timeout_seconds=20)
raise SystemExit(keras_vit.cli.main())
"""


def start(images, out, log):
    """Starts or resumes the run; returns its processes: of PyTorch the one of `keras-vit`, of JAX both."""
    settings = [part for item in SETTINGS.items() for part in ("--set", "{}={}".format(*item))]
    options = ["--data", images, "--out", out, "--weights", "none", "--distribution", "data", "--save-every", "3"]
    backend = keras.backend.backend()
    program = ["-c", PROGRAM] if backend == "jax" else ["-m", "keras_vit.cli"]
    command = [sys.executable, *program, "train", *options, "--processes", "2", *settings]
    ends = [[]]
    if backend == "jax":
        with socket.create_server(("localhost", 0)) as server:
            address = f"localhost:{server.getsockname()[1]}"
        ends = [["--coordinator", address, "--process-id", i] for i in range(2)]
    environment = {**os.environ, "KERAS_BACKEND": backend, "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "2"}
    with log.open("w") as output:
        return [
            subprocess.Popen(list(map(str, [*command, *end])), stdout=output, stderr=subprocess.STDOUT, env=environment)
            for end in ends
        ]


def children(process):
    """Returns the process ids of a process's children."""
    return [int(number) for number in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


def kill(images, out, step, log):
    """Kills one process a little after the checkpoint of a step; returns the seconds until all processes ended."""
    rng = random.Random(0)
    started = start(images, out, log)
    while not any(int(path.stem[5:]) >= step for path in (out / "checkpoints").glob("step_*.npz")):
        assert all(process.poll() is None for process in started), log.read_text()[-3000:]
        time.sleep(0.02)
    time.sleep(rng.uniform(0, 0.3))
    if keras.backend.backend() == "torch":
        (torchrun,) = children(started[0].pid)
        os.kill(rng.choice(children(torchrun)), signal.SIGKILL)
    else:
        started[1].kill()
    began = time.monotonic()
    codes = [process.wait(150) for process in started]
    assert all(codes), log.read_text()[-3000:]
    return time.monotonic() - began


def finish(images, out, log):
    """Runs to the end; returns the history and the scores."""
    codes = [process.wait(600) for process in start(images, out, log)]
    assert not any(codes), log.read_text()[-3000:]
    results = json.loads((out / "results.json").read_text())
    return {**results["history"], **results["test"]}


def compare(folder, step):
    """Kills a run near `step` and resumes it; returns the seconds until the killed run ended."""
    images, log = folder / "images", folder / "log.txt"
    write_images(folder, "012", 20, (40, 40))
    expected = finish(images, folder / "whole", log)
    seconds = kill(images, folder / "run", step, log)
    found = finish(images, folder / "run", log)
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, rtol=1e-6, err_msg=name)
    return seconds
