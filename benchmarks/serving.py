"""Requests per second and memory growth of an exported model under concurrent requests.

A ViT-Ti/16 for 96 x 96 pixels is exported with `postprocess="classify"` and loaded in a process without Keras. 16
threads call its three signatures in turn; each response must equal the first one. Memory growth is measured over
10,000 requests. The 1,000 requests before them fill the memory pools. Results go to results/serving_<backend>.json.

    KERAS_BACKEND=torch python benchmarks/serving.py
"""

import argparse
import ctypes
import gc
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import threading
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np

SIZE = 96
WARM_UP = 1000


def resident():
    """Returns the resident memory of this process in bytes, after freeing unused heap."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def inputs(tf):
    """Returns a few inputs per signature."""
    rng = np.random.default_rng(0)
    pictures = [np.kron(rng.integers(0, 255, (6, 8, 3)), np.ones((40, 40, 1))).astype("uint8") for _ in range(4)]
    jpegs = [tf.io.encode_jpeg(picture).numpy() for picture in pictures]
    requests = [("serving_bytes", {"image_bytes": tf.constant([jpeg])}) for jpeg in jpegs]
    requests.append(("serving_bytes", {"image_bytes": tf.constant([jpegs[0], b"none", jpegs[1]])}))
    for count in (1, 4):
        images = rng.uniform(-1, 1, (count, SIZE, SIZE, 3)).astype("float32")
        requests.append(("serving_default", {"images": tf.constant(images)}))
        requests.append(("serving_uint8", {"images": tf.constant((images * 100 + 127).astype("uint8"))}))
    return requests


def serve(folder, count, threads):
    """Runs the requests in a process without Keras; returns the results."""
    import tensorflow as tf

    loaded = tf.saved_model.load(folder)
    requests = inputs(tf)
    expected = [loaded.signatures[name](**tensors)["outputs"].numpy() for name, tensors in requests]
    seconds, errors, lock = [], [], threading.Lock()

    def ask(numbers):
        for i in numbers:
            name, tensors = requests[i % len(requests)]
            start = time.perf_counter()
            try:
                answer = loaded.signatures[name](**tensors)["outputs"].numpy()
                difference = np.abs(answer - expected[i % len(requests)]).max()
                problem = f"differs by {difference}" if difference > 1e-4 else None
            except Exception as error:
                problem = repr(error)
            with lock:
                seconds.append(time.perf_counter() - start)
                if problem:
                    errors.append(problem)

    def ask_all(count):
        workers = [threading.Thread(target=ask, args=(range(i, count, threads),)) for i in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()

    ask_all(min(WARM_UP, count))
    before = resident()
    seconds.clear()
    start = time.perf_counter()
    ask_all(count)
    elapsed = time.perf_counter() - start
    after = resident()
    return {
        "requests": len(seconds),
        "threads": threads,
        "errors": len(errors),
        "first_errors": errors[:3],
        "requests_per_second": len(seconds) / elapsed,
        "median_milliseconds": 1000 * statistics.median(seconds),
        "p99_milliseconds": 1000 * sorted(seconds)[int(0.99 * len(seconds))],
        "megabytes_before": before / 1e6,
        "megabytes_after": after / 1e6,
        "growth": after / before - 1,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--threads", type=int, default=16)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path(__file__).parent / "results")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        sys.modules.update(keras=None, keras_vit=None)
        print(json.dumps(serve(args.serve, args.requests, args.threads)))
        return

    from measure import environment, write

    import keras_vit
    from keras_vit import export

    with tempfile.TemporaryDirectory() as folder:
        model = keras_vit.ViTTi16(image_size=SIZE, head_init="glorot_uniform")
        start = time.perf_counter()
        path = export.saved_model(model, pathlib.Path(folder, "vit", "1"), postprocess="classify").path
        export_seconds = time.perf_counter() - start
        command = [sys.executable, __file__, "--serve", path, "--requests", str(args.requests)]
        done = subprocess.run([*command, "--threads", str(args.threads)], stdout=subprocess.PIPE, text=True, check=True)
        stored = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    result = {**environment(), "export_seconds": export_seconds, "size_of_weights": stored / (4 * model.count_params())}
    result |= json.loads(done.stdout.splitlines()[-1])
    write(args.out / f"serving_{result['backend']}.json", result)
    for key, value in result.items():
        print(f"{key:22}{value:.4g}" if isinstance(value, float) else f"{key:22}{value}")


if __name__ == "__main__":
    main()
