"""ViTs on one GPU in bfloat16, compared with peers: forward pass, training step and share of the matrix peak.

Peers are keras-hub and big_vision's Flax model (--big-vision) on JAX; timm, transformers (eager and compiled) and
keras-hub on PyTorch. Inputs are on the GPU. Training uses AdamW and mixed precision with float32 weights, without
dropout; the weights of a forward pass are in bfloat16, but big_vision's. Figures are medians over rounds in which the
sides take turns. FLOPs are 2 per multiply-add of the forward pass, 3 times that for a training step; shares are
relative to the fastest bfloat16 matrix product in the same process.

    KERAS_BACKEND=jax python benchmarks/gpu.py --models B/16 L/16
    KERAS_BACKEND=torch python benchmarks/gpu.py --models B/16 L/16
"""

import argparse
import contextlib
import functools
import importlib.metadata
import json
import os
import pathlib
import platform
import statistics
import time

import keras
import numpy as np
from children import make_data
from peers import OURS, PEERS, make, why_not
from sides import Case, Entrant

import keras_vit
from keras_vit.files import replacing

# Images per training step and per forward pass.
BATCHES = {"Ti/16": (1024, 2048), "S/16": (512, 1024), "B/16": (256, 512), "L/16": (128, 256), "H/14": (64, 128)}


def entrants_of(args, task):
    """Returns {label: entrant}, ours first."""
    dtype = "bfloat16" if task == "forward" else "mixed_bfloat16"
    names = [f"{OURS} compiled", OURS] if keras.backend.backend() == "torch" else [OURS]
    entrants = {}
    for name in (*names, *PEERS[keras.backend.backend()]):
        peer, _, compiled = name.partition(" ")
        if not args.sides or name in args.sides:
            # big_vision's weights are float32.
            own = "mixed_bfloat16" if peer == "big_vision" else dtype
            entrants[name] = Entrant(peer, own, compiled=bool(compiled))
    return entrants


def matrix_peak():
    """Returns the multiply-adds per second of some bfloat16 matrix products, large square ones and those of MLPs."""
    best = {}
    for rows, inner, columns in ((8192, 8192, 8192), (50176, 768, 3072), (25088, 1024, 4096)):
        if keras.backend.backend() == "jax":
            import jax
            import jax.numpy as jnp

            a = jax.random.normal(jax.random.PRNGKey(0), (rows, inner), dtype=jnp.bfloat16)
            b = jax.random.normal(jax.random.PRNGKey(1), (inner, columns), dtype=jnp.bfloat16)
            product = jax.jit(jnp.matmul)

            def run(product=product, a=a, b=b):
                for _ in range(20):
                    out = product(a, b)
                out.block_until_ready()
        else:
            import torch

            a = torch.randn(rows, inner, dtype=torch.bfloat16, device="cuda")
            b = torch.randn(inner, columns, dtype=torch.bfloat16, device="cuda")

            def run(a=a, b=b):
                for _ in range(20):
                    a @ b
                torch.cuda.synchronize()

        run()
        seconds = []
        for _ in range(5):
            start = time.perf_counter()
            run()
            seconds.append((time.perf_counter() - start) / 20)
        best[f"{rows}x{inner}x{columns}"] = rows * inner * columns / statistics.median(seconds)
    return best


def time_side(run, repeats):
    """Returns the seconds of each run after two warm-up runs, and of the first."""
    start = time.perf_counter()
    result = run()
    first = time.perf_counter() - start
    if not np.isfinite(result).all():
        raise RuntimeError(f"Expected finite results. Received: {result}")
    run()
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    return seconds, first


def measure(args, case, peak):
    """Measures the rates of all sides for one model; each task builds its own sides."""
    batches = [max(1, round(size * (224 / case.image_size) ** 2)) for size in BATCHES[case.variant]]
    batches = dict(zip(("train", "forward"), batches, strict=True))
    forward = keras_vit.profile(keras_vit.ViT(case.variant, image_size=case.image_size)).multiply_adds
    multiply_adds = {"forward": forward, "train": 3 * forward}
    failures, results = {}, {}
    for task in ("forward", "train"):
        batch, data = batches[task], make_data(case, batches[task])
        runs, built = {}, {}
        for name, entrant in entrants_of(args, task).items():
            why = why_not(entrant, case)
            if why:
                failures[name] = why
                continue
            start = time.perf_counter()
            # Failures of peers are recorded in the results.
            try:
                side = make(entrant, case, task)
                built[name] = time.perf_counter() - start
                runs[name] = functools.partial(getattr(side, task), *side.prepare(*data))
            except Exception as error:
                failures[name] = f"{task}: {type(error).__name__}: {error}"[:300]
        samples, firsts = {}, {}
        for _ in range(args.rounds):
            for name, run in list(runs.items()):
                try:
                    seconds, first = time_side(run, args.repeats)
                except Exception as error:
                    failures[name] = f"{task}: {type(error).__name__}: {error}"[:300]
                    del runs[name]
                    continue
                samples.setdefault(name, []).append(batch / statistics.median(seconds))
                firsts.setdefault(name, first)
        ours = max((np.median(v) for k, v in samples.items() if k.startswith(OURS)), default=float("nan"))
        for name, rates in samples.items():
            rate = statistics.median(rates)
            share = rate * multiply_adds[task] / peak
            results[f"{task}/{name}"] = {
                "images_per_second": rate,
                "samples": rates,
                "share_of_matrix_peak": share,
                "ratio_ours_to_side": float(ours / rate),
                "first_call_seconds": firsts[name],
                "build_seconds": built[name],
            }
            print(
                f"{case.model:9} {task:8}{batch:5} {name:22}{rate:9.1f} images/s {share:6.1%} of peak, "
                f"ours/side {ours / rate:.3f}, first call {firsts[name]:.1f} s",
                flush=True,
            )
    for name, failure in failures.items():
        print(f"{case.model} {name}: {failure}", flush=True)
    return {
        "train_batch": batches["train"],
        "forward_batch": batches["forward"],
        "results": results,
        "failures": failures,
    }


def main():
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n\n    ")[0], formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--models", nargs="+", default=["Ti/16", "B/16", "L/16", "B/16@384"], help="VARIANT or VARIANT@SIZE"
    )
    parser.add_argument("--sides", nargs="+", help="these alone (default: all)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=10, help="steps a side in each round")
    parser.add_argument("--big-vision", help="models/vit.py of big_vision, for its model")
    parser.add_argument("--out", type=pathlib.Path, help="the JSON (default: results/gpu_<backend>.json)")
    args = parser.parse_args()
    backend = keras.backend.backend()
    args.out = args.out or pathlib.Path(__file__).parent / "results" / f"gpu_{backend}.json"
    keras.utils.set_random_seed(0)
    peaks = matrix_peak()
    peak = max(peaks.values())
    print({shape: f"{2 * rate / 1e12:.0f} TFLOP/s" for shape, rate in peaks.items()})
    versions = {}
    for package in ("keras", "keras-hub", "timm", "transformers", "flax", "jax", "torch", "triton"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    content = {
        "backend": backend,
        "device": gpu_name(),
        "python": platform.python_version(),
        "cpu_count": os.cpu_count(),
        "versions": {OURS: keras_vit.__version__, **versions},
        "matrix_tflops": {shape: 2 * rate / 1e12 for shape, rate in peaks.items()},
        "models": {},
    }
    for model in args.models:
        case = Case(model, optimizer="adamw", big_vision=args.big_vision, device="cuda")
        content["models"][model] = measure(args, case, peak)
        with replacing(args.out) as draft:
            draft.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    print(f"Wrote {args.out}")


def gpu_name():
    if keras.backend.backend() == "jax":
        import jax

        return jax.devices()[0].device_kind
    import torch

    return torch.cuda.get_device_name()


if __name__ == "__main__":
    main()
