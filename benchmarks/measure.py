"""Helpers to compare sides: turns, ratios with intervals, matrix products, memory, and a results file."""

import functools
import json
import math
import os
import pathlib
import platform
import statistics
import time

import keras
import numpy as np

import keras_vit
from keras_vit.files import replacing

CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
# Rows with the same key are replaced.
KEY = ("task", "model", "dtype", "batch", "options", "activation")
# Repeat products for this time, because the first products after another side has run are slower.
PRODUCT_SECONDS = 0.05


def take_turns(runs, work, rounds, warm_up=0, turn_seconds=0.0, rulers=()):
    """Runs the sides in turns, each once or for `turn_seconds` per round, with a rotating start.

    `work` is the number of images per call; `rulers` return a rate themselves and run once per round. Returns {clock:
    {side: work per second of each round}} and {ruler: rate of each round}. Raises RuntimeError if a side returns NaN or
    infinity.
    """
    samples = {clock: {name: [] for name in runs} for clock in CLOCKS}
    rates = {name: [] for name in rulers}
    names = list(runs)
    for i in range(warm_up + rounds):
        for name in names[i % len(names) :] + names[: i % len(names)]:
            starts, calls = [clock() for clock in CLOCKS.values()], 0
            while not calls or time.perf_counter() - starts[0] < turn_seconds:
                result = runs[name]()
                calls += 1
            seconds = [clock() - start for clock, start in zip(CLOCKS.values(), starts, strict=True)]
            if not np.isfinite(result).all():
                raise RuntimeError(f"Expected finite results of {name}. Received: NaN or infinity")
            if i >= warm_up:
                for clock, spent in zip(CLOCKS, seconds, strict=True):
                    samples[clock][name].append(calls * work / spent)
        for name in rulers if i >= warm_up else ():
            rates[name].append(rulers[name]())
    return samples, rates


def spread(values):
    """Returns the median, quartiles, and a distribution-free 95% interval of the median with its `coverage`."""
    values = sorted(values)
    n = len(values)
    below = 0.5**n
    skip, coverage = 0, 1 - 2 * below
    while skip + 1 < n / 2:
        below += math.comb(n, skip + 1) * 0.5**n
        if 1 - 2 * below < 0.95:
            break
        skip, coverage = skip + 1, 1 - 2 * below
    low, median, high = np.quantile(values, (0.25, 0.5, 0.75)).tolist()
    return {
        "median": median,
        "q1": low,
        "q3": high,
        "low": values[skip],
        "high": values[n - 1 - skip],
        "coverage": max(coverage, 0.0),
        "rounds": n,
    }


def compare(samples, subject):
    """Returns {side: spread of subject / side per round} for every other side."""
    return {
        name: spread([ours / theirs for ours, theirs in zip(samples[subject], values, strict=True)])
        for name, values in samples.items()
        if name != subject
    }


def medians(samples):
    return {name: statistics.median(values) for name, values in samples.items()}


class MatrixProducts:
    """The matrix products of a transformer block; `sizes` has `hidden_dim` and `mlp_dim`, `tokens` is per batch."""

    def __init__(self, sizes, tokens, dtype):
        width, mlp = sizes["hidden_dim"], sizes["mlp_dim"]
        shapes = {"qkv": (width, 3 * width), "out": (width, width), "mlp_1": (width, mlp), "mlp_2": (mlp, width)}
        self.flops = {name: 2 * tokens * math.prod(shape) for name, shape in shapes.items()}
        rng = np.random.default_rng(0)

        def tensor(*shape):
            return keras.ops.cast(keras.ops.convert_to_tensor(rng.normal(size=shape).astype("float32")), dtype)

        ways = WAYS[keras.backend.backend()]()
        lefts = {inner: tensor(tokens, inner) for inner in (width, mlp)}
        self.products = {name: [way(lefts[shape[0]], tensor(*shape)) for way in ways] for name, shape in shapes.items()}

    def rate(self):
        """Returns the FLOPs per second of the four products together. Each product counts with its shortest time."""
        return sum(self.flops.values()) / sum(
            min(self._seconds(product) for product in products) for products in self.products.values()
        )

    @staticmethod
    def _seconds(product):
        best, until = math.inf, time.perf_counter() + PRODUCT_SECONDS
        while best == math.inf or time.perf_counter() < until:
            start = time.perf_counter()
            product()
            best = min(best, time.perf_counter() - start)
        return best


def _tensorflow_ways():
    import tensorflow as tf

    # Hide TensorFlow's warnings about a new trace for each shape.
    tf.get_logger().setLevel("ERROR")

    def way(jit_compile):
        def make(a, b):
            product = tf.function(tf.linalg.matmul, jit_compile=jit_compile)
            product(a, b)
            return lambda: product(a, b)

        return make

    return [way(False), way(True)]


def _jax_ways():
    import jax

    def way(dtype):
        def make(a, b):
            product = jax.jit(functools.partial(jax.numpy.matmul, preferred_element_type=dtype))
            product(a, b).block_until_ready()
            return lambda: product(a, b).block_until_ready()

        return make

    # For bfloat16 inputs, compute the product in bfloat16 or in float32.
    return [way(None), way("float32")]


def _torch_ways():
    import torch

    def wait():
        if torch.cuda.is_available():
            torch.cuda.synchronize()

    def plain(a, b):
        def product():
            with torch.inference_mode():
                torch.matmul(a, b)
            wait()

        return product

    def linear(a, b):
        # The layout of torch.nn.Linear.
        transposed = b.T.contiguous()

        def product():
            with torch.inference_mode():
                torch.nn.functional.linear(a, transposed)
            wait()

        return product

    return [plain, linear]


WAYS = {"tensorflow": _tensorflow_ways, "jax": _jax_ways, "torch": _torch_ways}


def reset_peak():
    """Resets the peak memory that `memory` returns."""
    pathlib.Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def memory():
    """Returns the current and peak megabytes of this process; ru_maxrss would start with the parent's peak."""
    lines = pathlib.Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    fields = dict(line.split(":", 1) for line in lines)
    return tuple(int(fields[name].split()[0]) * 1024 / 1e6 for name in ("VmRSS", "VmHWM"))


def processor():
    """Returns the processor's name, family and model."""
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor()
    told = dict(map(str.strip, line.split(":", 1)) for line in lines if ":" in line)
    return ", ".join(f"{key} {told[key]}" for key in ("model name", "cpu family", "model") if key in told)


def environment():
    """Returns where a benchmark runs: backend, versions of Keras and of this package, processor and cores."""
    return {
        "backend": keras.backend.backend(),
        "keras": keras.__version__,
        "keras_vit": keras_vit.__version__,
        "processor": processor(),
        "cores": len(os.sched_getaffinity(0)),
    }


def resumed(path, facts):
    """Returns the content of a results file, or `facts` with no rows; exits if the file has other facts."""
    facts = {**facts, **environment()}
    if path is None or not path.exists():
        return {**facts, "rows": []}
    found = json.loads(path.read_text(encoding="utf-8"))
    if different := {name for name, value in facts.items() if found.get(name) != value}:
        raise SystemExit(f"Expected the settings of {path}. Received others: {', '.join(sorted(different))}")
    return found


def write(path, content):
    """Writes a results file at once; does nothing without a path."""
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as draft:
            draft.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def read_rows(path):
    """Returns the rows of a results file; none if it does not exist."""
    path = pathlib.Path(path)
    return json.loads(path.read_text(encoding="utf-8"))["rows"] if path.exists() else []


def add_rows(path, rows):
    """Adds rows to a results file, replacing those with the same key, in one atomic write."""
    path = pathlib.Path(path)

    def key(row):
        return tuple(row[name] for name in KEY)

    merged = {key(row): row for row in (*read_rows(path), *rows)}
    write(path, {"rows": [merged[k] for k in sorted(merged)]})
