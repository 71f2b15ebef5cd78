"""Kills one of two processes of a run: the launcher must stop, and the same command must resume the run."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from PIL import Image

SETTINGS = {
    "variant": "Ti/8",
    "image_size": 32,
    "steps": 12,
    "batch_size": 16,
    "model.num_layers": 1,
    "optimizer": "adamw",
    "learning_rate": 0.001,
    # A resumed run must draw the same masks.
    "model.dropout_rate": 0.1,
    "model.drop_path_rate": 0.1,
}


def write_images(folder):
    """Writes 60 images of three colors."""
    rng = np.random.default_rng(0)
    for i in range(60):
        image = rng.integers(0, 160, (40, 40, 3), "uint8")
        image[..., i % 3] += 60
        path = folder / str(i % 3) / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(path)


def start(images, out):
    """Starts or resumes the run; returns the launcher."""
    settings = [part for item in SETTINGS.items() for part in ("--set", "{}={}".format(*item))]
    options = ["--data", images, "--out", out, "--weights", "none", "--distribution", "data", "--processes", "2"]
    command = [sys.executable, "-m", "keras_vit.cli", "train", *options, "--save-every", "3", *settings]
    return subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def children(launcher):
    """Returns the process ids of the launcher's processes, in the order of their start."""
    return [int(number) for number in Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text().split()]


def kill(images, out, step):
    """Kills one process a little after the checkpoint of a step; returns the seconds until the launcher ended."""
    rng = random.Random(0)
    launcher = start(images, out)
    while not any(int(path.stem[5:]) >= step for path in (out / "checkpoints").glob("step_*.npz")):
        if launcher.poll() is not None:
            raise AssertionError(launcher.communicate()[0])
        time.sleep(0.02)
    time.sleep(rng.uniform(0, 0.3))
    os.kill(rng.choice(children(launcher)), signal.SIGKILL)
    began = time.monotonic()
    output = launcher.communicate(timeout=120)[0]
    assert launcher.returncode == 1, output
    assert "ended with status -9; the others were stopped" in output, output
    return time.monotonic() - began


def finish(images, out):
    """Runs to the end; returns the history and the scores."""
    launcher = start(images, out)
    output = launcher.communicate(timeout=900)[0]
    assert launcher.returncode == 0, output
    results = json.loads((out / "results.json").read_text())
    return {**results["history"], **results["test"]}


def compare(folder, step):
    """Kills a run near `step` and resumes it; returns the seconds that the launcher took to end."""
    images = folder / "images"
    write_images(images)
    expected = finish(images, folder / "whole")
    seconds = kill(images, folder / "run", step)
    found = finish(images, folder / "run")
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, rtol=1e-6, err_msg=name)
    return seconds
