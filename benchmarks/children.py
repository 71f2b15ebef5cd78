"""Measurements in fresh child processes: first calls, peak memory, and matrix products on other backends."""

import dataclasses
import json
import os
import subprocess
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
from measure import MatrixProducts, memory
from peers import IMPORTS, NUM_CLASSES, make
from sides import Case, Entrant


def make_data(case, batch):
    random = np.random.default_rng(0)
    images = random.uniform(-1, 1, (batch, case.image_size, case.image_size, 3)).astype("float32")
    return images, random.integers(0, NUM_CLASSES, batch)


def tokens_of(case, batch):
    return batch * ((case.image_size // case.sizes["patch_size"]) ** 2 + 1)


def run_child(spec, **environment):
    """Runs this file as a script with a JSON spec, and returns the JSON that the script prints.

    If the script fails, raises RuntimeError with the last line of its output.
    """
    # With Inductor's cache, the first call would take less time than for a new user.
    environment = {**os.environ, "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1", **environment}
    command = [sys.executable, __file__, json.dumps(spec)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError((done.stderr.strip() or f"exit status {done.returncode}").splitlines()[-1])
    return json.loads(done.stdout.splitlines()[-1])


GEMM_RATES = {}


def gemm_of(backend, case, batch, dtype):
    """Returns the best rate of a block's matrix products on another backend, cached per run."""
    spec = {"gemm": [case.sizes, tokens_of(case, batch), dtype]}
    key = (backend, json.dumps(spec))
    if key not in GEMM_RATES:
        GEMM_RATES[key] = run_child(spec, KERAS_BACKEND=backend)
    return GEMM_RATES[key]


def side_of(entrant, case, task, batch):
    """Measures seconds and megabytes of one side in a child process."""
    spec = {"entrant": dataclasses.asdict(entrant), "case": dataclasses.asdict(case)}
    return run_child({**spec, "task": task, "batch": batch})


def measure_gemm(sizes, tokens, dtype):
    """In a child process: returns the best rate of the matrix products."""
    products = MatrixProducts(sizes, tokens, dtype)
    return max(products.rate() for _ in range(8))


def measure_side(spec):
    """In a child process: returns seconds and megabytes of one side."""
    options = tuple(map(tuple, spec["entrant"].pop("options")))
    entrant, case = Entrant(**spec["entrant"], options=options), Case(**spec["case"])
    IMPORTS[entrant.peer]()
    data = make_data(case, spec["batch"])
    imported, _ = memory()
    times = [time.perf_counter()]
    side = make(entrant, case, spec["task"])
    times.append(time.perf_counter())
    built, _ = memory()
    inputs = side.prepare(*data)
    for _ in range(4):
        start = time.perf_counter()
        getattr(side, spec["task"])(*inputs)
        times.append(time.perf_counter() - start)
    build = times[1] - times[0]
    _, peak = memory()
    return {
        "build_and_first_call": build + times[2],
        "build": build,
        "first_call": times[2],
        "next_call": min(times[3:]),
        "peak": peak - imported,
        "peak_after_build": peak - built,
        "built": built - imported,
    }


if __name__ == "__main__":
    spec = json.loads(sys.argv[1])
    print(json.dumps(measure_gemm(*spec["gemm"]) if "gemm" in spec else measure_side(spec)))
