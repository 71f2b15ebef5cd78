"""ViTs on one GPU in bfloat16, compared with peers: forward pass, training step and share of the matrix peak.

Each side is a model in a process. For each model and task, all processes of both frameworks start and compile at the
same time. They then take turns, so that a GPU that is lent for minutes is enough. In a turn, Keras models run `fit` or
`predict`, and other models run a loop. Results are read after the last step. Figures are medians over the turns. Peers
are keras-hub and big_vision's Flax model (--big-vision) on JAX; timm, transformers (eager and compiled) and keras-hub
on PyTorch. Inputs are on the GPU. Training uses AdamW and mixed precision with float32 weights, without dropout. In a
forward pass, all weights are in bfloat16, except the weights of big_vision. A multiply-add of the forward pass counts
as 2 FLOPs. A training step counts as 3 forward passes. Shares are relative to --peak.

    python benchmarks/gpu.py --models B/16 L/16 --budget 480
    python benchmarks/gpu.py --models Ti/16 --num-layers 1 --batch 2 --device cpu --tasks forward
"""

import argparse
import contextlib
import dataclasses
import importlib.metadata
import json
import os
import pathlib
import select
import statistics
import subprocess
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
from children import make_data
from peers import IMPORTS, OURS, PEERS, make, why_not
from sides import Case, Entrant

import keras_vit
from keras_vit.files import replacing

# Images per training step and per forward pass.
BATCHES = {"Ti/16": (512, 2048), "S/16": (256, 1024), "B/16": (128, 512), "L/16": (64, 256), "H/14": (32, 128)}
PACKAGES = ("keras", "keras-hub", "timm", "transformers", "flax", "jax", "torch", "triton")


def entrants_of(backend, task, names=None):
    """Returns {label: entrant} of a backend, ours first; `names` selects some."""
    dtype = "bfloat16" if task == "forward" else "mixed_bfloat16"
    ours = [OURS, f"{OURS} compiled"] if backend == "torch" else [OURS]
    entrants = {}
    for name in (*ours, *PEERS[backend]):
        peer, _, compiled = name.partition(" ")
        if not names or name in names:
            # big_vision's weights are float32.
            own = "mixed_bfloat16" if peer == "big_vision" else dtype
            entrants[name] = Entrant(peer, own, compiled=bool(compiled))
    return entrants


class Side:
    """A model in a process, which runs as many steps as it reads from its standard input."""

    def __init__(self, backend, entrant, case, task, batch):
        spec = {"entrant": dataclasses.asdict(entrant), "case": dataclasses.asdict(case), "task": task, "batch": batch}
        # By default, JAX would reserve most of the memory of the GPU for one process.
        environment = {**os.environ, "KERAS_BACKEND": backend, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
        command = [sys.executable, __file__, "--side", json.dumps(spec)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.process = subprocess.Popen(command, env=environment, **pipes)

    def read(self, deadline):
        """Returns the next JSON of the process; raises RuntimeError if it ends or the deadline passes."""
        if not select.select([self.process.stdout], [], [], max(0, deadline - time.monotonic()))[0]:
            raise RuntimeError("Expected an answer within --budget and --compile-seconds. Received: none")
        if not (line := self.process.stdout.readline()):
            raise RuntimeError(f"Expected a running process. Received: exit status {self.process.wait()}")
        return json.loads(line)

    def run(self, steps, deadline):
        """Returns the mean time of a step in seconds."""
        print(steps, file=self.process.stdin, flush=True)
        return self.read(deadline)["seconds"] / steps

    def stop(self):
        self.process.kill()
        self.process.communicate()


def run_side(spec):
    """Builds a side, runs it once, then runs the steps that are requested; prints JSON lines."""
    # Libraries also print to the standard output, which must only contain JSON lines.
    answers, sys.stdout = sys.stdout, sys.stderr
    entrant, case = Entrant(**{**spec["entrant"], "options": ()}), Case(**spec["case"])
    IMPORTS[entrant.peer]()
    start = time.perf_counter()
    side = make(entrant, case, spec["task"])
    inputs, step = side.prepare(*make_data(case, spec["batch"])), getattr(side, spec["task"])
    built = time.perf_counter()
    # With two steps, a side runs `fit` or `predict`, as in each turn. Then nothing is compiled in the turns.
    result = step(*inputs, steps=2)
    answer = {"build_seconds": built - start, "first_call_seconds": time.perf_counter() - built}
    if not np.isfinite(result).all():
        raise RuntimeError(f"Expected finite results. Received: {result}")
    print(json.dumps({**answer, "device": device_name(case.device)}), file=answers, flush=True)
    for line in sys.stdin:
        start = time.perf_counter()
        step(*inputs, steps=int(line))
        print(json.dumps({"seconds": time.perf_counter() - start}), file=answers, flush=True)


def measure(args, case, task, batch, deadline):
    """Yields a list with a row for each side of one model and task, after each turn."""
    rows, sides = {}, {}
    profiled = keras_vit.ViT(case.variant, image_size=case.image_size, num_layers=case.num_layers)
    flops = 2 * keras_vit.profile(profiled).multiply_adds * (3 if task == "train" else 1)
    for backend in args.backends:
        for name, entrant in entrants_of(backend, task, args.sides).items():
            row = rows[backend, name] = {"backend": backend, "model": case.model, "task": task, "name": name}
            row |= {"dtype": entrant.dtype, "batch": batch}
            if reason := why_not(entrant, case):
                row["error"] = reason
            else:
                sides[backend, name] = Side(backend, entrant, case, task, batch)
    running, samples = dict(sides), {key: [] for key in sides}
    compiled_by = min(deadline, time.monotonic() + args.compile_seconds)
    try:
        for turn in range(args.turns + 1):
            for key in list(running):
                # Peers that are not installed, and sides that take too long, are recorded in the results.
                try:
                    if turn:
                        samples[key].append(batch / running[key].run(args.steps, deadline))
                        rate = statistics.median(samples[key])
                        rows[key] |= {"images_per_second": rate, "samples": samples[key], "tflops": rate * flops / 1e12}
                        if args.peak:
                            rows[key]["share_of_peak"] = rate * flops / 1e12 / args.peak
                    else:
                        rows[key] |= running[key].read(compiled_by)
                except (RuntimeError, OSError) as error:
                    rows[key]["error"] = str(error)
                    running.pop(key).stop()
            yield list(rows.values())
    finally:
        for side in running.values():
            side.stop()


def device_name(device):
    import keras

    if device == "cpu":
        return "cpu"
    if keras.backend.backend() == "jax":
        import jax

        return jax.devices()[0].device_kind
    import torch

    return torch.cuda.get_device_name()


def main():
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n\n    ")[0], formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", default=["B/16", "L/16"], help="VARIANT or VARIANT@SIZE")
    parser.add_argument("--backends", nargs="+", default=["torch", "jax"], choices=["torch", "jax"])
    parser.add_argument("--tasks", nargs="+", default=["forward", "train"], choices=["forward", "train"])
    parser.add_argument("--sides", nargs="+", help="run only these sides (default: all)")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--steps", type=int, default=16, help="steps of a side in each turn")
    parser.add_argument("--batch", type=int, help="images per step (default: by model)")
    parser.add_argument("--num-layers", type=int, help="blocks (default: the variant's)")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--budget", type=float, default=480, help="seconds for everything")
    parser.add_argument("--compile-seconds", type=float, default=120, help="seconds for the first calls of one task")
    parser.add_argument("--peak", type=float, help="bfloat16 TFLOP/s of the GPU's matrix products, for shares")
    parser.add_argument("--big-vision", help="models/vit.py of big_vision, for its model")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path(__file__).parent / "results" / "gpu.json")
    parser.add_argument("--side", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.side:
        return run_side(json.loads(args.side))
    deadline, versions = time.monotonic() + args.budget, {OURS: keras_vit.__version__}
    for package in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    content = {"cpu_count": os.cpu_count(), "versions": versions, "rows": []}
    for model in args.models:
        case = Case(model, args.num_layers, optimizer="adamw", big_vision=args.big_vision, device=args.device)
        sizes = [max(1, round(size * (224 / case.image_size) ** 2)) for size in BATCHES[case.variant]]
        batches = dict(zip(("train", "forward"), sizes, strict=True))
        for task in args.tasks:
            done = content["rows"]
            for rows in measure(args, case, task, args.batch or batches[task], deadline):
                # If the run is ended from outside, the turns until then are not lost.
                content["rows"] = done + rows
                with replacing(args.out) as draft:
                    draft.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
            for row in rows:
                figure = f"{row['images_per_second']:9.1f} images/s" if "images_per_second" in row else row["error"]
                line = f"{row['model']:9} {task:8}{row['batch']:5} {row['backend']:6}{row['name']:22}{figure}"
                print(line, flush=True)
    print(f"Wrote {args.out}")
    return None


if __name__ == "__main__":
    main()
