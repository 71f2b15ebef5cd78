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

# More than there will be: EarlyStopping ends the run.
EPOCHS = 30
STEPS = 10


def make_model():
    """A ViT with dropout, stochastic depth, momentum, accumulated gradients and a moving average."""
    keras.utils.set_random_seed(1)
    model = build(num_layers=1, dropout_rate=0.2, drop_path_rate=0.2)
    optimizer = keras.optimizers.SGD(0.05, momentum=0.9, gradient_accumulation_steps=3, use_ema=True, ema_momentum=0.9)
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


class Mean(keras.callbacks.Callback):
    """A user's own callback with a state: the running mean of the loss, also of each batch."""

    def __init__(self):
        super().__init__()
        self.steps, self.mean, self.kernel = 0, 0.0, np.zeros(1)

    def on_train_batch_end(self, batch, logs=None):
        self.steps += 1
        self.mean = 0.9 * self.mean + 0.1 * logs["loss"]

    def on_epoch_end(self, epoch, logs=None):
        self.kernel = self.kernel + keras.ops.convert_to_numpy(self.model.layers[-1].bias)

    def get_state(self):
        return {"steps": self.steps, "mean": self.mean, "kernel": self.kernel}

    def set_state(self, state):
        self.steps, self.mean, self.kernel = state["steps"], state["mean"], state["kernel"]


def train(folder):
    """Trains until EarlyStopping ends it, and writes there all that it leaves."""
    folder = Path(folder)
    resume = Resume(folder / "run", every=1)

    class Steps(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            # Said before the checkpoint of this step is written.
            print("done", resume.step, flush=True)

    mean, best = Mean(), folder / "best.weights.h5"
    callbacks = [
        keras.callbacks.SwapEMAWeights(swap_on_epoch=True),
        keras.callbacks.ReduceLROnPlateau(factor=0.5, patience=1, min_delta=0.05),
        keras.callbacks.EarlyStopping(patience=3, min_delta=0.02, restore_best_weights=True),
        keras.callbacks.ModelCheckpoint(best, save_best_only=True, save_weights_only=True),
        keras.callbacks.CSVLogger(folder / "log.csv"),
        mean,
        Steps(),
    ]
    model = make_model()
    validation = make_dataset(0).take(5).cache()
    history = fit(
        model, make_dataset, EPOCHS, resume=resume, callbacks=callbacks, validation_data=validation, verbose=0
    )
    last = model.get_weights()
    end = [*last, *(history.history[k] for k in sorted(history.history)), model.optimizer.learning_rate.numpy()]
    model.load_weights(best)
    end += [*model.get_weights(), mean.steps, mean.mean, mean.kernel, (folder / "log.csv").read_text()]
    np.savez(folder / "end.npz", *end, stopped=resume.stopped or "", epochs=history.epoch)


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
        return dict(archive)


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
    total = train_to_the_end(folder / "alone").count("done ")
    expected = 0
    while counts["kills"] < kills:
        process = start(folder / "killed")
        # Such that the run does not end before the last kill.
        most = 2 * (total - expected) // (kills - counts["kills"] + 1) - 3
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
    # Once more, when all is done.
    output = train_to_the_end(folder / "killed")
    alone, killed = end(folder / "alone"), end(folder / "killed")
    equal = alone.keys() == killed.keys() and all(np.array_equal(alone[name], killed[name]) for name in alone)
    counts["stopped"] = f"was stopped by {alone['stopped']}" in output
    return {**counts, "last step": expected, "steps": total, "equal": equal}


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps({"backend": keras.backend.backend(), **try_kills(int(sys.argv[1]), folder)}))
