"""Time and peak memory of loading a checkpoint, compared with reading the same arrays with `np.load`.

The two take turns; each round gives one ratio. Peak memory of the process includes the model's own weights and is in
multiples of them; 1 is the minimum.

    KERAS_BACKEND=torch python benchmarks/loading.py ViT-B_16-224.npz
"""

import argparse
import ctypes
import gc
import json
import os
import pathlib
import platform
import threading
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np

import keras_vit
from keras_vit.files import replacing


def resident():
    """Returns the resident memory of this process in bytes."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def trim():
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)


def peak_of(run):
    """Returns the peak memory while a function runs, sampled every 2 ms."""
    peak, done = [resident()], threading.Event()

    def sample():
        while not done.wait(0.002):
            peak[0] = max(peak[0], resident())

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        run()
    finally:
        done.set()
        thread.join()
    return max(peak[0], resident())


def seconds(run):
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def read_with_numpy(path):
    with np.load(path, allow_pickle=False) as file:
        for key in file.files:
            file[key]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("weights", help="an .npz of a ViT-B/16 of 1000 classes")
    parser.add_argument("--rounds", type=int, default=9, help="timed rounds (default: 9)")
    parser.add_argument(
        "--out", type=pathlib.Path, help="where the JSON goes (default: results/loading_<backend>.json)"
    )
    args = parser.parse_args()
    backend = keras.backend.backend()
    out = args.out or pathlib.Path(__file__).parent / "results" / f"loading_{backend}.json"

    # Excludes the backend's startup.
    keras_vit.ViTTi16(num_layers=1)(np.zeros((1, 224, 224, 3), "float32"))
    trim()
    model = keras_vit.ViTB16()
    size = 4 * model.count_params()
    trim()
    # Counts the model's weights, but not other memory from building it.
    before = resident() - size

    def load():
        keras_vit.load_weights(model, args.weights)

    peak = (peak_of(load) - before) / size
    ratios = sorted(seconds(load) / seconds(lambda: read_with_numpy(args.weights)) for _ in range(args.rounds))
    low, median, high = np.quantile(ratios, (0.25, 0.5, 0.75)).tolist()
    content = {
        "model": "ViT-B/16",
        "bytes": size,
        "backend": backend,
        "rounds": args.rounds,
        "cpu_count": os.cpu_count(),
        "machine": platform.machine(),
        "peak_memory_to_model": peak,
        "time_to_numpy": {"min": ratios[0], "q1": low, "median": median, "q3": high, "max": ratios[-1]},
    }
    print(f"{backend}: peak memory {peak:.2f} x the model, time {median:.2f} [{low:.2f}, {high:.2f}] x NumPy's read")
    with replacing(out) as draft:
        draft.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
