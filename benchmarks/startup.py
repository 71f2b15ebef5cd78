"""Seconds and peak memory until a model answers: import, build, load a checkpoint, first forward pass.

Each sample is measured in a new child process. `import` imports Keras with its backend, and then keras_vit. `build`
makes a model with random weights. `npz` and `safetensors` read a file by `from_pretrained`. `forward` is the first
`predict_on_batch` of one image after `build`. Memory is the peak memory minus the peak memory of a process in which a
tiny model has run. It is divided by the size of the float32 weights, so a built or loaded model needs at least 1. The
files were just written, so they are read from the page cache. First training steps are in throughput.py.

Rows are added to results/startup_<backend>.json; an interrupted run continues with the missing steps. H/14 has
2.5 GB of weights, and G/14 has 7.4 GB:

    KERAS_BACKEND=torch python benchmarks/startup.py --models B/16 H/14 G/14
"""

import argparse
import contextlib
import ctypes
import gc
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

RESULTS = pathlib.Path(__file__).parent / "results"
# timm's models compute the exact GELU, even if the file names another one.
FORMATS = {"npz": {}, "safetensors": {"format": "timm", "allow": ("activation",)}}
STEPS = ("import", "build", *FORMATS, "forward")


def in_child(spec):
    """Runs this file as a script with a JSON spec; returns its JSON."""
    command = [sys.executable, __file__, json.dumps(spec)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"Expected a result of {spec}. Received: {done.stderr.strip()[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def child(spec):
    """In a child process: returns the seconds of a step, and its peak memory in multiples of the weights."""
    start = time.perf_counter()
    import keras

    keras_imported = time.perf_counter()
    import keras_vit

    imported = time.perf_counter()
    if spec["step"] == "import":
        return {"seconds": imported - start, "seconds of keras_vit": imported - keras_imported}
    import numpy as np
    from measure import memory, reset_peak

    options = {"num_layers": spec["num_layers"]}
    if spec["step"] == "save":
        model = keras_vit.ViT(spec["model"], **options)
        for suffix, of_format in FORMATS.items():
            keras_vit.save_weights(model, f"{spec['file']}.{suffix}", **of_format)
        return {}
    tiny = keras_vit.ViTTi16(num_layers=1)
    tiny.predict_on_batch(np.zeros((1, 224, 224, 3), "float32"))
    del tiny
    keras.utils.clear_session(free_memory=True)
    gc.collect()
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
    reset_peak()
    before, _ = memory()
    start = time.perf_counter()
    if spec["step"] in FORMATS:
        model = keras_vit.from_pretrained(f"{spec['file']}.{spec['step']}")
    else:
        model = keras_vit.ViT(spec["model"], **options)
    if spec["step"] == "forward":
        image = np.zeros((1, *model.input_shape[1:]), "float32")
        reset_peak()
        start = time.perf_counter()
        model.predict_on_batch(image)
    seconds = time.perf_counter() - start
    size = 4 * model.count_params()
    return {"seconds": seconds, "peak": (memory()[1] - before) * 1e6 / size, "bytes": size}


def measure(model, num_layers, step, rounds, folder):
    """Returns the row of a step."""
    spec = {"model": model, "num_layers": num_layers, "step": step}
    if step in FORMATS:
        spec["file"] = str(folder / model.replace("/", ""))
        if not pathlib.Path(f"{spec['file']}.{step}").exists():
            in_child({**spec, "step": "save"})
    load = os.getloadavg()[0]
    return {"model": model, "step": step, "samples": [in_child(spec) for _ in range(rounds)], "load average": load}


def print_table(rows):
    from keras_vit.console import text_table

    lines = []
    for row in rows:
        samples = row["samples"]
        middle = {name: statistics.median(sample[name] for sample in samples) for name in samples[0]}
        lines.append([row["model"], row["step"], middle["seconds"], middle.get("peak"), len(samples)])
    print(text_table(["model", "step", "seconds", "peak / weights", "rounds"], lines, decimals=2))


def main():
    import keras
    from measure import resumed, write

    backend = keras.backend.backend()
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n\n    ")[0], formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", default=["B/16", "H/14"], help="variants (default: B/16 H/14)")
    parser.add_argument("--steps", nargs="+", choices=STEPS, default=list(STEPS), help="(default: all)")
    parser.add_argument("--rounds", type=int, default=3, help="child processes a step (default: 3)")
    parser.add_argument("--folder", type=pathlib.Path, help="keeps the checkpoints there (default: a temporary one)")
    parser.add_argument("--quick", action="store_true", help="2 blocks of Ti/16, once, no file: to see that it runs")
    parser.add_argument("--out", type=pathlib.Path, help="the JSON (default: results/startup_<backend>.json)")
    args = parser.parse_args()
    out = args.out or RESULTS / f"startup_{backend}.json"
    if args.quick:
        args.models, args.rounds, out = ["Ti/16"], 1, None
    found = resumed(out, {})
    with contextlib.ExitStack() as stack:
        folder = args.folder or pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="keras_vit_")))
        for model in args.models:
            for step in args.steps:
                if any((row["model"], row["step"]) == (model, step) for row in found["rows"]):
                    continue
                found["rows"].append(measure(model, 2 if args.quick else None, step, args.rounds, folder))
                write(out, found)
    print_table(found["rows"])


if __name__ == "__main__":
    if len(sys.argv) == 2 and sys.argv[1].startswith("{"):
        print(json.dumps(child(json.loads(sys.argv[1]))))
    else:
        main()
