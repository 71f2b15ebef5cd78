"""A small training run to be killed, and what starts, kills and starts it again.

`python -m tests.training.killed KILLS` tries it on the backend of KERAS_BACKEND and prints what came of it.
"""

import json
import os
import random
import re
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from keras_vit.training import Resume, fit
from tests.tiny import build

EPOCHS = 5
STEPS = 40


def make_model():
    """A ViT with dropout, stochastic depth, momentum, a schedule, accumulated gradients and a moving average."""
    keras.utils.set_random_seed(1)
    model = build(num_layers=1, dropout_rate=0.2, drop_path_rate=0.2)
    rate = keras.optimizers.schedules.CosineDecay(0.1, 30, warmup_target=0.2, warmup_steps=5)
    optimizer = keras.optimizers.SGD(rate, momentum=0.9, gradient_accumulation_steps=3, use_ema=True)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    # TensorFlow would take longer to compile than to train.
    model.compile(optimizer, loss, metrics=["accuracy"], jit_compile=keras.backend.backend() == "jax")
    return model


def make_dataset(epoch):
    """Shuffled and augmented anew in each epoch by whatever the global seed gives."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(4 * STEPS, 16, 16, 3)).astype("float32")
    y = rng.integers(5, size=4 * STEPS)
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(4 * STEPS).batch(4)
    return dataset.map(lambda x, y: (x + tf.random.normal(tf.shape(x), stddev=0.1), y)).prefetch(2)


def train(folder):
    """Trains to the end, and writes the weights and the history there."""

    resume = Resume(Path(folder) / "run", every=1)

    class Steps(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            # Said before the checkpoint of this step is written; the same number for each batch that is skipped.
            print("done", resume.step, flush=True)

    model = make_model()
    history = fit(model, make_dataset, EPOCHS, resume=resume, callbacks=[Steps()], verbose=0)
    np.savez(Path(folder) / "end.npz", *model.get_weights(), *(history.history[k] for k in ("loss", "accuracy")))


def start(folder):
    """Forks a process that trains. What is imported here need not be imported there: most lives are short."""
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        for stream in (1, 2):
            os.dup2(writing, stream)
        try:
            train(folder)
            code = 0
        except BaseException:
            traceback.print_exc()
            code = 1
        sys.stdout.flush()
        os._exit(code)
    os.close(writing)
    return pid, os.fdopen(reading)


def finish(process):
    pid, stream = process
    with stream:
        output = stream.read()
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return output, status


def train_to_the_end(folder):
    output, status = finish(start(folder))
    assert status == 0, output
    return output


def end(folder):
    with np.load(Path(folder) / "end.npz") as archive:
        return [archive[name] for name in archive.files]


def try_kills(kills, folder, seed=0):
    """Kills a run again and again, a random time after a random step.

    Returns:
        Dict of counts, and of whether the end is that of a run left alone.
    """
    folder = Path(folder)
    rng = random.Random(seed)
    counts = {"kills": 0, "resumed": 0, "damaged": 0, "while saving": 0}
    (folder / "alone").mkdir()
    (folder / "killed").mkdir()
    train_to_the_end(folder / "alone")
    expected = 0
    while counts["kills"] < kills:
        process = start(folder / "killed")
        # Such that the run does not end before the last kill.
        most = 2 * (EPOCHS * STEPS - expected) // (kills - counts["kills"] + 1) - 3
        steps, first, output = rng.randint(1, max(1, most)), None, ""
        for line in process[1]:
            output += line
            done = int(line.split()[1]) if line.startswith("done ") else None
            first = done if first is None else first
            if done is not None and done - first == steps:
                # A step with its checkpoint takes some milliseconds.
                time.sleep(rng.uniform(0, 0.02))
                break
        os.kill(process[0], signal.SIGKILL)
        rest, status = finish(process)
        output += rest
        assert status == -signal.SIGKILL, output
        counts["while saving"] += len(list((folder / "killed" / "run").glob(".step_*.npz.*.draft"))) > 0
        counts["kills"] += 1
        counts["damaged"] += "damaged" in output
        found = re.search(r"Resuming from .* step (\d+)\.", output)
        counts["resumed"] += counts["kills"] > 1 and found is not None and int(found[1]) >= expected
        slots = sorted((folder / "killed" / "run").glob("step_*.npz"))
        expected = int(slots[-1].stem.split("_")[1]) if slots else 0
    output = train_to_the_end(folder / "killed")
    counts["resumed"] += "Resuming from" in output or "nothing is left" in output
    pairs = list(zip(end(folder / "alone"), end(folder / "killed"), strict=True))
    return {**counts, "last step": expected, "equal": all(np.array_equal(a, b) for a, b in pairs)}


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps({"backend": keras.backend.backend(), **try_kills(int(sys.argv[1]), folder)}))
