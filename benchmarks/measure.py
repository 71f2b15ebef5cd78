"""Measuring sides against each other: turns, ratios with intervals, matrix products, memory, and a file of rows."""

import json
import math
import pathlib
import platform
import statistics
import time

import keras
import numpy as np

from keras_vit.files import replacing

CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
# What tells rows apart: a run replaces those that it measured again and leaves the others.
KEY = ("task", "model", "dtype", "batch", "options")
# A product is repeated for so long, since the first ones after another side's turn are slower.
PRODUCT_SECONDS = 0.05


def take_turns(runs, work, rounds, warm_up=0, turn_seconds=0.0, rulers=()):
    """Runs each side once a round, or as often as fits into `turn_seconds`, the first to run another one each round.

    Args:
        runs: Dictionary of the sides' functions, which return numbers.
        work: Int, what one call does, as its images.
        rounds: Int, timed rounds.
        warm_up: Int, untimed rounds before them.
        turn_seconds: Float, the least seconds of a turn.
        rulers: Dictionary of functions that tell a rate themselves, called once a round.

    Returns:
        {clock: {side: work a second of each round}}, and {ruler: its rate of each round}.

    Raises:
        RuntimeError: If a side returns NaN or infinity.
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
        for name, ruler in rulers.items() if i >= warm_up else ():
            rates[name].append(ruler())
    return samples, rates


def spread(values):
    """The median of a sample with its quartiles and an interval that covers the true median.

    The interval lies between two of the sorted values, of which the binomial distribution says how likely the median
    is between them, whatever the values' own distribution: the narrowest that is symmetric and covers 95%, or all
    values where there are too few for that. `coverage` tells what it covers.
    """
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
    """{side: the spread of subject / side in each round} of every other side."""
    return {
        name: spread([ours / theirs for ours, theirs in zip(samples[subject], values, strict=True)])
        for name, values in samples.items()
        if name != subject
    }


def medians(samples):
    return {name: statistics.median(values) for name, values in samples.items()}


class MatrixProducts:
    """The four matrix products of a transformer block, and how fast the backend computes them.

    Args:
        sizes: Dictionary with `hidden_dim` and `mlp_dim`.
        tokens: Int, rows of the left matrix: those of all images of the batch.
        dtype: "float32" or "bfloat16".
    """

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
        """FLOPs a second of the four together, each in the backend's fastest way and at its best."""
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

    # It would warn that one function is traced for each shape.
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

    def make(a, b):
        product = jax.jit(jax.numpy.matmul)
        product(a, b).block_until_ready()
        return lambda: product(a, b).block_until_ready()

    return [make]


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


def memory():
    """The megabytes of this process: now, and at most so far.

    Not `resource`'s ru_maxrss: a child process starts with its parent's there, even after exec.
    """
    lines = pathlib.Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    fields = dict(line.split(":", 1) for line in lines)
    return tuple(int(fields[name].split()[0]) * 1024 / 1e6 for name in ("VmRSS", "VmHWM"))


def processor():
    """The processor's name, family and model, for products run at other rates on others of the same name."""
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor()
    told = dict(map(str.strip, line.split(":", 1)) for line in lines if ":" in line)
    return ", ".join(f"{key} {told[key]}" for key in ("model name", "cpu family", "model") if key in told)


def read_rows(path):
    """The rows of a results file; none where there is no file."""
    path = pathlib.Path(path)
    return json.loads(path.read_text(encoding="utf-8"))["rows"] if path.exists() else []


def add_rows(path, rows):
    """Adds rows to a results file, in the place of those with the same key, and writes it whole or not at all."""
    path = pathlib.Path(path)

    def key(row):
        return tuple(row[name] for name in KEY)

    merged = {key(row): row for row in (*read_rows(path), *rows)}
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as draft:
        draft.write_text(json.dumps({"rows": [merged[k] for k in sorted(merged)]}, indent=1) + "\n", encoding="utf-8")
