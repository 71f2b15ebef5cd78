"""Compares the loss curves of a ViT-Ti/8 trained on several devices with those of one device.

30 steps of AdamW on 32 x 32 pictures, cropped and flipped at random, all by `keras_vit.training.run`; the devices are
simulated on the CPU. Each run uses one or several new processes. Results of finished runs are kept. A row contains the
largest relative difference between the loss of a step and the same loss on one device. The loss falls over all 30
steps, from 4.3 to 0.001. At ten times the learning rate, the loss is 1e-5 after 5 steps, so a relative difference would
only show rounding. With dropout, several devices draw other masks than one device on TensorFlow and PyTorch. In these
cases, the mean losses of 5 seeds are compared with those on one device, relative to the spread over seeds.

    PYTHONPATH=. python benchmarks/distributed_curves.py                          all backends
    PYTHONPATH=. python benchmarks/distributed_curves.py --backends jax torch
"""

import argparse
import functools
import itertools
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from tests.distribution.killed import write_images

RESULTS = Path(__file__).parent / "results" / "distributed_curves.json"
RANDOM = {"dropout_rate": 0.1, "attention_dropout_rate": 0.1, "drop_path_rate": 0.1}
SEEDS = range(5)
# The splits of each backend: (name, distribution, model_devices, devices of a process, processes).
SPLITS = {
    "jax": [
        ("data 2", "data", None, 2, 1),
        ("data 4", "data", None, 4, 1),
        ("data 8", "data", None, 8, 1),
        ("fsdp 4", "fsdp", None, 4, 1),
        ("tensor 2 x 2", "tensor", 2, 4, 1),
        ("fsdp+tensor 2 x 2", "fsdp+tensor", 2, 4, 1),
        ("data, 2 processes x 2", "data", None, 2, 2),
        ("fsdp, 2 processes x 2", "fsdp", None, 2, 2),
    ],
    "tensorflow": [("data 2", "data", None, 2, 1)],
    "torch": [("data, 2 processes", "data", None, 1, 2)],
}


def child(spec):
    """Trains as one of the processes of a run, and writes its losses."""
    import keras

    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        device = tf.config.list_physical_devices("CPU")[0]
        logical = [tf.config.LogicalDeviceConfiguration()] * spec["devices"]
        tf.config.set_logical_device_configuration(device, logical)
    from keras_vit import data, training
    from keras_vit.distribution import initialize, process_id
    from tests.tiny import Losses

    # torchrun's variables describe the processes of PyTorch.
    initialize(*spec.get("joined", ()))

    changes = {
        "variant": "Ti/8",
        "image_size": 32,
        "batch_size": 16,
        "epochs": None,
        "min_steps": 0,
        "steps": 30,
        "warmup_percent": 10.0,
        "crop": "pretrain",
        "optimizer": "adamw",
        "learning_rate": 2e-5,
        "weight_decay": 0.1,
        "dtype": spec["dtype"],
        **{f"model.{name}": value for name, value in spec["model"].items()},
        "model.head_init": "glorot_uniform",
    }
    recipe = training.RECIPES["finetune"].replace(changes)
    split = {"distribution": spec["distribution"], "model_devices": spec["model_devices"]}
    images = functools.partial(data.from_directory, spec["images"])

    def make(subset, **options):
        return images(**options)

    kept = Losses()
    options = {"weights": "none", "seed": spec["seed"], "callbacks": [kept], "verbose": 0}
    training.run(recipe, make, spec["out"], save_every=1000, **options, **split)
    Path(spec["losses"], f"{process_id()}.json").write_text(json.dumps(kept.losses), encoding="utf-8")


def losses_of(backend, spec, processes, folder):
    """Returns the losses of a run."""
    folder = Path(tempfile.mkdtemp(dir=folder))
    spec = {**spec, "out": str(folder / "run"), "losses": str(folder)}
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {**os.environ, "KERAS_BACKEND": backend, "JAX_NUM_CPU_DEVICES": str(spec["devices"])}
    environment |= {"JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "3", "OMP_NUM_THREADS": "1"}
    joined = [{} for _ in range(processes)]
    if processes > 1 and backend == "torch":
        environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(processes)}
    elif processes > 1:
        joined = [{"joined": (f"127.0.0.1:{port}", processes, i)} for i in range(processes)]
    started = [
        subprocess.Popen(
            [sys.executable, __file__, "--child", json.dumps(spec | joined[i])],
            env={**environment, "RANK": str(i)},
            stdout=subprocess.DEVNULL,
            stderr=(folder / f"{i}.log").open("w"),
        )
        for i in range(processes)
    ]
    codes = [process.wait() for process in started]
    if any(codes):
        raise RuntimeError((folder / f"{codes.index(next(filter(None, codes)))}.log").read_text()[-2000:])
    # On PyTorch, each process only writes the losses of its part of each batch.
    return np.mean([json.loads(Path(folder, f"{i}.json").read_text()) for i in range(processes)], axis=0).tolist()


def difference(losses, expected):
    return float(np.max(np.abs(np.subtract(losses, expected)) / np.abs(expected)))


def row_of(backend, kind, name, runs, ones):
    """Returns the row of a split. The arguments are its losses for each seed, and the losses on one device."""
    row = {"backend": backend, "kind": kind, "split": name, "difference": difference(runs[0], ones[0])}
    if len(runs) > 1:
        # The distance between the mean losses at each step, in standard deviations over the seeds.
        away = np.abs(np.mean(runs, 0) - np.mean(ones, 0)) / np.std(ones, 0, ddof=1)
        row |= {"seeds": len(runs), "largest deviation": float(away.max()), "mean deviation": float(away.mean())}
    return row


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backends", nargs="+", choices=SPLITS, default=list(SPLITS))
    parser.add_argument("--kinds", nargs="+", default=["float32", "bfloat16", "dropout"])
    parser.add_argument("--blocks", type=int, default=12)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        child(json.loads(args.child))
        return
    found = json.loads(RESULTS.read_text()) if RESULTS.exists() else []
    with tempfile.TemporaryDirectory() as folder:
        write_images(Path(folder, "images"))
        for backend, kind in itertools.product(args.backends, args.kinds):
            spec = {"images": str(Path(folder, "images")), "dtype": "float32", "model": {"num_layers": args.blocks}}
            if kind == "bfloat16":
                spec["dtype"] = "mixed_bfloat16"
            if kind == "dropout":
                spec["model"] |= RANDOM
            seeds = SEEDS if kind == "dropout" and backend != "jax" else range(1)

            def curves(*how, spec=spec, seeds=seeds, backend=backend):
                *values, processes = how
                spec = {**spec, **dict(zip(("distribution", "model_devices", "devices"), values, strict=True))}
                return [losses_of(backend, {**spec, "seed": seed}, processes, folder) for seed in seeds]

            ones = None
            for name, *how in SPLITS[backend]:
                key = {"backend": backend, "kind": kind, "split": name, "blocks": args.blocks}
                if any(row.items() >= key.items() for row in found):
                    continue
                start = time.time()
                ones = ones or curves(None, None, 1, 1)
                row = {**row_of(backend, kind, name, curves(*how), ones), "blocks": args.blocks}
                print({**row, "seconds": round(time.time() - start)}, flush=True)
                from keras_vit.version import __version__

                found.append({**row, "keras_vit": __version__})
                RESULTS.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
