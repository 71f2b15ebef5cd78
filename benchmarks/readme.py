"""Trains the model of README's section "Train from nothing" and records its accuracy and the seconds that it takes.

The code is read from README.md. Each backend writes its own row of results/readme.json.

    KERAS_BACKEND=torch PYTHONPATH=. python benchmarks/readme.py
"""

import os
import re
import tempfile
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
from measure import environment, read_rows, write

import keras_vit

README = Path(__file__).resolve().parents[1] / "README.md"
RESULTS = Path(__file__).resolve().parent / "results" / "readme.json"


def read_blocks(text):
    """Returns the blocks of Python in README, in order."""
    return re.findall(r"^```python\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)


def main():
    """Runs README's last block of Python in an empty folder."""
    names = {"keras": keras, "keras_vit": keras_vit}
    names["loss"] = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    code = read_blocks(README.read_text(encoding="utf-8"))[-1]
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        started = time.perf_counter(), time.process_time()
        exec(compile(code, README.name, "exec"), names)
        seconds, cpu_seconds = time.perf_counter() - started[0], time.process_time() - started[1]
    accuracy = names["model"].history.history["val_accuracy"][-1]
    row = {**environment(), "seconds": seconds, "cpu_seconds": cpu_seconds, "accuracy": accuracy}
    others = [other for other in read_rows(RESULTS) if other["backend"] != row["backend"]]
    write(RESULTS, {"rows": sorted([*others, row], key=lambda row: row["backend"])})
    print(row)


if __name__ == "__main__":
    main()
