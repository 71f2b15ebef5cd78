"""Starts, kills and restarts small training runs.

`python -m tests.training.killed KILLS [MODE ...]` kills each mode KILLS times on the backend of KERAS_BACKEND and
prints the counts. Each process is killed a random time after a random step. The last run must end as an
uninterrupted run.
"""

import concurrent.futures
import functools
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from keras_vit.distillation import Distiller
from keras_vit.pretraining import MAE, MaskedPatchPrediction, SimMIM
from keras_vit.training import SAM, fit
from keras_vit.training.fitting import train
from tests.tiny import build

# EarlyStopping ends the run before the last epoch.
EPOCHS = 30
STEPS = 10
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
FEW = {"epochs": 3, "steps": 6}


def make_model():
    """A ViT with dropout, stochastic depth, momentum, accumulated gradients and a moving average."""
    keras.utils.set_random_seed(1)
    model = build(num_layers=1, dropout_rate=0.2, drop_path_rate=0.2)
    optimizer = keras.optimizers.SGD(0.05, momentum=0.9, gradient_accumulation_steps=3, use_ema=True, ema_momentum=0.9)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    # TensorFlow would take longer to compile than to train.
    model.compile(optimizer, loss, metrics=["accuracy"], jit_compile=keras.backend.backend() == "jax")
    return model


def arrays(count):
    rng = np.random.default_rng(0)
    return rng.normal(size=(count, 16, 16, 3)).astype("float32"), rng.integers(5, size=count)


def make_dataset(epoch):
    """Returns data that the global seed shuffles and augments."""
    dataset = tf.data.Dataset.from_tensor_slices(arrays(4 * STEPS)).shuffle(4 * STEPS).batch(4)
    return dataset.map(lambda x, y: (x + tf.random.normal(tf.shape(x), stddev=0.1), y)).prefetch(2)


class Counter(keras.callbacks.Callback):
    """A custom callback with a state: the epochs, the number of batches, and a running mean of the last kernel."""

    def __init__(self):
        super().__init__()
        self.epochs, self.batches, self.mean = [], 0, 0.0

    def on_epoch_begin(self, epoch, logs=None):
        self.epochs.append(epoch)

    def on_train_batch_end(self, batch, logs=None):
        self.batches += 1

    def on_epoch_end(self, epoch, logs=None):
        self.mean = 0.9 * self.mean + 0.1 * keras.ops.convert_to_numpy(self.model.layers[-1].kernel)

    def get_state(self):
        return {"epochs": self.epochs, "batches": self.batches, "mean": self.mean}

    def set_state(self, state):
        self.epochs, self.batches, self.mean = state["epochs"], state["batches"], state["mean"]


class Steps(keras.callbacks.Callback):
    """Prints that a step is done before its checkpoint is written, or interrupts there."""

    def __init__(self, last=None):
        super().__init__()
        self.step, self.last = 0, last

    def on_train_batch_end(self, batch, logs=None):
        self.step += 1
        if self.step == self.last:
            raise KeyboardInterrupt
        print("done", self.step, flush=True)

    def get_state(self):
        return {"step": self.step}

    def set_state(self, state):
        self.step = state["step"]


def stateful(folder):
    """Returns callbacks that each have a state."""
    options = {"save_weights_only": True}
    return [
        keras.callbacks.SwapEMAWeights(swap_on_epoch=True),
        keras.callbacks.ReduceLROnPlateau(factor=0.5, patience=1, cooldown=1, min_delta=0.05),
        keras.callbacks.LearningRateScheduler(lambda epoch, rate: 0.99 * rate),
        keras.callbacks.EarlyStopping(patience=2, min_delta=0.02, restore_best_weights=True),
        keras.callbacks.ModelCheckpoint(folder / "best.weights.h5", save_best_only=True, **options),
        keras.callbacks.ModelCheckpoint(folder / "last.weights.h5", **options),
        keras.callbacks.CSVLogger(folder / "log.csv"),
        Counter(),
    ]


def train_plain(folder):
    """Trains with many callbacks until EarlyStopping ends it."""
    folder = Path(folder)
    *callbacks, counter = stateful(folder)
    model = make_model()
    options = {"validation_data": make_dataset(0).take(5).cache(), "callbacks": [*callbacks, counter, Steps()]}
    run = train(model, make_dataset, EPOCHS, resume=folder / "run", save_every=1, verbose=0, **options)
    history = run.history
    last = model.get_weights()
    end = [*last, *(history.history[k] for k in sorted(history.history)), model.optimizer.learning_rate.numpy()]
    model.load_weights(folder / "best.weights.h5")
    end += [*model.get_weights(), counter.epochs, counter.batches, counter.mean, (folder / "log.csv").read_text()]
    np.savez(Path(folder) / "end.npz", *end, stopped=run.stopped or "", epochs=history.epoch)


def vit(**changes):
    return build(num_layers=1, dropout_rate=0.2, drop_path_rate=0.2, **changes)


TRAINERS = {
    "sam": lambda: SAM(vit(), rho=0.1),
    "distiller": lambda: Distiller(vit(distillation_token=True), vit()),
    "mae": lambda: MAE(vit(), decoder_num_layers=1, decoder_hidden_dim=12, decoder_num_heads=3),
    "simmim": lambda: SimMIM(vit(), mask_unit=4),
    "masked_patches": lambda: MaskedPatchPrediction(vit()),
    "float16": lambda: vit(dtype="mixed_float16"),
    "two_fits": vit,
}
WITHOUT_LABELS = ("mae", "simmim", "masked_patches")


def train_small(mode, folder, last=None):
    """Trains one of TRAINERS up to a step, with Adam at a falling rate, and writes all results to the folder."""
    Path(folder).mkdir(exist_ok=True)
    keras.utils.set_random_seed(1)
    model = TRAINERS[mode]()
    labelled = mode not in WITHOUT_LABELS
    options = {"jit_compile": keras.backend.backend() == "jax"}
    model.compile(keras.optimizers.Adam(0.01), LOSS if labelled else None, **options)
    falling = keras.callbacks.ReduceLROnPlateau("loss", factor=0.5, patience=1, min_delta=1.0)
    steps = Steps(last)

    def make_few(epoch):
        dataset = make_dataset(epoch).take(FEW["steps"])
        return dataset if labelled else dataset.map(lambda x, y: x)

    def go(epochs, name="run", steps=steps):
        given = {"resume": Path(folder) / name, "callbacks": [falling, steps], "save_every": 1}
        return fit(model, make_few, epochs, **given, verbose=0)

    if mode == "two_fits":
        go(1)
        go(2)
        model.compile(keras.optimizers.SGD(0.01, momentum=0.9), LOSS, **options)
        history = go(2, "run2", Steps())
    else:
        history = go(FEW["epochs"])
    variables = [keras.ops.convert_to_numpy(v) for v in (*model.variables, *model.optimizer.variables)]
    losses = [history.history[name] for name in sorted(history.history)]
    np.savez(
        Path(folder) / "end.npz", *variables, *losses, rate=float(model.optimizer.learning_rate), epochs=history.epoch
    )


MODES = {"plain": train_plain, **{mode: functools.partial(train_small, mode) for mode in TRAINERS}}


def start(mode, folder):
    """Forks a process that trains, which saves the time of the imports."""
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        for stream in (1, 2):
            os.dup2(writing, stream)
        try:
            MODES[mode](folder)
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
    return output, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def train_to_the_end(mode, folder):
    output, status = finish(start(mode, folder))
    assert status == 0, output
    return output


def end(folder):
    with np.load(Path(folder) / "end.npz") as archive:
        return dict(archive)


def last_steps(folder):
    """The step of the newest checkpoint of each run in a folder."""
    paths = sorted(Path(folder).glob("run*/step_*.npz"))
    return {path.parent.name: int(path.stem.split("_")[1]) for path in paths}


def try_kills(mode, kills, folder, seed=0):
    """Kills a run again and again, a random time after a random step.

    Returns:
        Dict of counts, and of whether the end is that of a run left alone ("identical").
    """
    folder = Path(folder)
    rng = random.Random(seed)
    counts = {"kills": 0, "resumed": 0, "damaged": 0, "while_saving": 0}
    alone, killed = folder / "alone", folder / "killed"
    alone.mkdir()
    killed.mkdir()
    total = train_to_the_end(mode, alone).count("done ")
    saved = {}
    while counts["kills"] < kills:
        process = start(mode, killed)
        # The run must not end before the last kill.
        steps = rng.randint(1, max(1, 2 * (total - sum(saved.values())) // (kills - counts["kills"] + 1) - 3))
        output = ""
        for line in process[1]:
            output += line
            if output.count("\ndone ") + output.startswith("done ") == steps:
                # A step with its checkpoint takes some milliseconds.
                time.sleep(rng.uniform(0, 0.02))
                break
        os.kill(process[0], signal.SIGKILL)
        rest, status = finish(process)
        output += rest
        assert status == -signal.SIGKILL, output
        counts["while_saving"] += any(killed.glob("run*/.step_*.npz.*.draft"))
        counts["kills"] += 1
        counts["damaged"] += "damaged" in output
        counts["resumed"] += counts["kills"] > 1 and resumed_at(output, saved)
        saved = last_steps(killed)
    output = train_to_the_end(mode, killed)
    counts["resumed"] += resumed_at(output, saved)
    if mode == "plain":
        output = train_to_the_end(mode, killed)
        counts["stopped"] = f"was stopped by {end(alone)['stopped']}" in output
    alone, killed = end(alone), end(killed)
    equal = alone.keys() == killed.keys() and all(np.array_equal(alone[name], killed[name]) for name in alone)
    return {**counts, "steps": total, "identical": equal}


def resumed_at(output, saved):
    """Returns whether a process resumed each run at its newest checkpoint, or found the run complete."""
    # Only the first line of each run counts, because a second fit resumes at the end of the first.
    found = dict(re.findall(r"Resuming from '.*/(run2?)/step_0*(\d+)\.npz'", output)[::-1])
    ended = re.findall(r"The run in '.*/(run2?)' (?:has done|was stopped)", output)
    return all(found.get(run) == str(step) or (run in ended and run not in found) for run, step in saved.items())


def kills(backend, kills_per_mode, modes=tuple(MODES), at_once=2):
    """Kills runs of each mode on a backend; returns their counts by mode, as `try_kills` does.

    Each mode has its own process, of which as many run at once as there are cores to use.
    """
    command = [sys.executable, "-W", "ignore", "-m", "tests.training.killed", str(kills_per_mode)]
    environment = {**os.environ, "KERAS_BACKEND": backend, "OMP_NUM_THREADS": "1"}

    def one(mode):
        options = {"cwd": Path(__file__).parents[2], "env": environment, "capture_output": True, "text": True}
        done = subprocess.run([*command, mode], check=False, **options)
        if done.returncode:
            raise RuntimeError(f"The kills of {mode} on {backend} ended with an error:\n{done.stderr}")
        return json.loads(done.stdout.splitlines()[-1])[mode]

    with tempfile.TemporaryDirectory() as cache, concurrent.futures.ThreadPoolExecutor(at_once) as pool:
        # XLA compiles a step once instead of in each process.
        environment |= {"JAX_COMPILATION_CACHE_DIR": cache, "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
        return dict(zip(modes, pool.map(one, modes), strict=True))


def main(kills_per_mode, *modes):
    counts = {}
    for mode in modes or MODES:
        with tempfile.TemporaryDirectory() as folder:
            counts[mode] = try_kills(mode, int(kills_per_mode), folder)
    print(json.dumps(counts))


if __name__ == "__main__":
    main(*sys.argv[1:])
