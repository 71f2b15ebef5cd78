"""Time and peak memory of loading a checkpoint, compared with reading the same arrays with `np.load`.

Both ways take turns, and each round gives one ratio of their times. The peak memory of the process includes the weights
of the model. It is divided by the size of these weights, so 1 is the minimum.

    KERAS_BACKEND=torch python benchmarks/loading.py ViT-B_16-224.npz
"""

import argparse
import ctypes
import gc
import os
import pathlib
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
from measure import environment, memory, reset_peak, write

import keras_vit


def trim():
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)


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

    # Run a small model first, so that the measured memory excludes the start of the backend.
    keras_vit.ViTTi16(num_layers=1)(np.zeros((1, 224, 224, 3), "float32"))
    trim()
    model = keras_vit.ViTB16()
    size = 4 * model.count_params()
    trim()
    # Counts the model's weights, but not other memory from building it.
    before = 1e6 * memory()[0] - size

    def load():
        keras_vit.load_weights(model, args.weights)

    reset_peak()
    load()
    peak = (1e6 * memory()[1] - before) / size
    ratios = sorted(seconds(load) / seconds(lambda: read_with_numpy(args.weights)) for _ in range(args.rounds))
    low, median, high = np.quantile(ratios, (0.25, 0.5, 0.75)).tolist()
    content = {
        "model": "ViT-B/16",
        "bytes": size,
        **environment(),
        "rounds": args.rounds,
        "peak_memory_to_model": peak,
        "time_to_numpy": {"min": ratios[0], "q1": low, "median": median, "q3": high, "max": ratios[-1]},
    }
    print(f"{backend}: peak memory {peak:.2f} x the model, time {median:.2f} [{low:.2f}, {high:.2f}] x NumPy's read")
    write(out, content)


if __name__ == "__main__":
    main()
