import functools
import math
import re

import keras
import numpy as np
from keras import ops

from keras_vit.training.callback_states import storable
from keras_vit.training.checkpoint_slots import CheckpointSlots
from keras_vit.training.kept_callbacks import KeptCallbacks
from keras_vit.training.processes import check_one_process
from keras_vit.training.torch_generators import generator_states, set_generator_states

# What stopped a run where it was none of the callbacks that Resume calls.
BESIDE = "a callback that was not given to Resume"


class Resume(keras.callbacks.Callback):
    """Saves a run every few steps, and lets the same script, started again, go on at the step where it was.

    A checkpoint holds the model's variables, also the states of its random generators, the optimizer's (moments,
    moving averages, accumulated gradients, iterations and with them the schedule's place), the metrics of the running
    epoch, the history of the earlier epochs, and the place in the data. The resumed run computes what the uninterrupted
    one would have, bit for bit on one machine where the backend is deterministic itself. The files are described in
    `CheckpointSlots`; a damaged one is named in a notice, and the one before it is taken.

    To find its place the run draws the epoch's first batches again and drops them, so the batches of an epoch must
    follow from the epoch's number. That is so for data that is not shuffled, or shuffled once, and for NumPy arrays, a
    `keras.utils.PyDataset` or a `torch.utils.data.DataLoader` shuffled by the global random seeds, which this callback
    sets at the start of each epoch. (On TensorFlow, arrays are shuffled by the seed of the time when `model.fit` is
    called: set it by `keras.utils.set_random_seed` there.) A `tf.data.Dataset` that is shuffled anew in each epoch
    counts its epochs itself, from 0 in each process: train on it with `keras_vit.training.fit`.

    Other callbacks are given to this one, not to `model.fit`, since a callback of Keras knows nothing of those beside
    it: `callbacks=[Resume(folder, callbacks=[EarlyStopping(), ModelCheckpoint(...)])]`. They are called as in a list,
    but not for the batches that are dropped, and their states are saved and restored: those of Keras' own, which
    `CSVLogger` keeps in its file, and of any with `get_state()`, which returns a dict of what JSON can hold and of
    NumPy arrays, and `set_state(state)`. A notice names others that change. A callback beside this one begins anew in
    each process, and without `callbacks` a notice says so; `callbacks=[]` says that there is none to keep.
    (`keras_vit.training.fit` gives them all to its Resume by itself.)

    A run that a callback stopped, as EarlyStopping does, is finished: started again it trains no more, and the model
    gets the weights that it had in the end. Without the callback that stopped it, it goes on. What ends a process for
    now alone, such as a limit of time, raises KeyboardInterrupt instead.

    A loss or a weight that is not finite stops the run. No checkpoint is written from there, and the model is given the
    last one back. A finished run that is started again loads its last checkpoint and trains no more, unless `epochs`
    has grown.

    Args:
        folder: Path of the folder of checkpoints, of one run alone.
        every: Number of steps between checkpoints. One is also written after each epoch.
        slots: Number of checkpoints to keep, at least 1; with 2 or more a damaged one is no loss.
        seed: Int by which each epoch's global random seeds (Python, NumPy, backend) are set, or None to leave them.
        callbacks: List of the other callbacks, which this one then calls.

    Attributes: `epoch`, `batch` and `step`, the place of the run; `first_step`, where this process began; `diverged`,
    whether it was stopped since a number was not finite; `stopped`, the name of the callback that stopped it, or None.

    Raises:
        ValueError: If an argument is wrong, or, at the start of training, if the model is not built or the checkpoint
            is of another model, optimizer, or seed.
        RuntimeError: At the start of training, in one of several processes of PyTorch.

    Example:

    >>> import tempfile
    >>> folder = tempfile.mkdtemp()
    >>> x, y = np.zeros((12, 3)), np.zeros(12)
    >>> model = keras.Sequential([keras.Input((3,)), keras.layers.Dropout(0.5), keras.layers.Dense(1)])
    >>> model.compile("adam", "mse")
    >>> resume = Resume(folder, every=2, callbacks=[keras.callbacks.ReduceLROnPlateau("loss")])
    >>> history = model.fit(x, y, batch_size=4, epochs=2, callbacks=[resume], verbose=0)
    >>> resume.step
    6
    >>> resume = Resume(folder, callbacks=[keras.callbacks.ReduceLROnPlateau("loss")])
    >>> again = model.fit(x, y, batch_size=4, epochs=3, callbacks=[resume], verbose=0)  # doctest: +ELLIPSIS
    Resuming from '...step_000000000006.npz': epoch 3 of 3, batch 0, step 6.
    >>> len(again.history["loss"])
    3
    """

    def __init__(self, folder, every=500, slots=3, seed=0, callbacks=None):
        super().__init__()
        if not isinstance(every, int) or every < 1:
            raise ValueError(f"Expected `every` to be a positive number of steps. Received: every={every!r}")
        if not (seed is None or (isinstance(seed, int) and seed >= 0)):
            raise ValueError(f"Expected `seed` to be None or an int that is not negative. Received: seed={seed!r}")
        self.checkpoints = CheckpointSlots(folder, slots)
        self.every = every
        self.seed = seed
        self.callbacks = callbacks

    @property
    def callbacks(self):
        """The other callbacks, which this one calls; None where none were given."""
        return self._callbacks

    @callbacks.setter
    def callbacks(self, callbacks):
        self._callbacks, self._kept = callbacks, KeptCallbacks(callbacks or [])

    def set_params(self, params):
        super().set_params(params)
        self._kept.set_params(params)

    def set_model(self, model):
        super().set_model(model)
        self._kept.set_model(model)

    def on_train_begin(self, logs=None):
        check_one_process()
        self.epoch, self.batch, self.step, self.first_step = 0, 0, 0, 0
        self._saved = (0, 0, 0)
        self._to_skip = 0
        self._skip = None
        self._epochs = []
        self._slot = None
        self.diverged = False
        self.stopped = None
        # A fit that was interrupted before its first epoch has left its own.
        self.model._initial_epoch = None
        self.checkpoints.open()
        slot = self.checkpoints.newest()
        if self.callbacks is None:
            print(
                "Resume saves the state of no callback beside it: it is given those, Resume(folder, callbacks=[...])."
            )
        if slot is None:
            self._kept.begin(self.params, None)
            return
        self._check(slot)
        self._kept.begin(self.params, slot)
        self._assign(slot, "model", "optimizer")
        self._slot = slot
        self.epoch, self.batch, self.step = self._saved = tuple(slot.facts[k] for k in ("epoch", "batch", "step"))
        self.first_step = self.step
        self._epochs = [tuple(pair) for pair in slot.facts["history"]]
        if self.callbacks is None or slot.facts.get("stopped") in (*self._kept.names, BESIDE):
            self.stopped = slot.facts.get("stopped")
        total = self.params["epochs"]
        # As keras.callbacks.BackupAndRestore does; fit reads it after this method.
        self.model._initial_epoch = total if self.stopped else self.epoch
        if self.batch:
            self._skip_batches()
        else:
            self._kept.unpack(slot)
        folder = str(self.checkpoints.folder)
        if self.stopped:
            print(
                f"The run in {folder!r} was stopped by {self.stopped}, in epoch {self.epoch}: nothing is left to train."
            )
        elif self.epoch >= total:
            print(f"The run in {folder!r} has done its {total} epochs: nothing is left to train.")
        else:
            place = f"epoch {self.epoch + 1} of {total}, batch {self.batch}, step {self.step}"
            print(f"Resuming from {str(slot.path)!r}: {place}.")

    def on_epoch_begin(self, epoch, logs=None):
        # Else it would hold for the next fit as well.
        self.model._initial_epoch = None
        if self._slot is not None:
            self._restore_history()
        if not self._to_skip:
            if self._slot is not None:
                set_generator_states(self._slot.arrays)
            self.epoch, self.batch = epoch, 0
            if self.step > self._saved[-1] or self._saved[0] < epoch:
                # Only now have all callbacks seen the end of the epoch before.
                self._save({})
        self.set_seeds(epoch)
        self._kept.tell("on_epoch_begin", epoch, logs)

    def on_train_batch_begin(self, batch, logs=None):
        if self._skip is not None:
            self._skip()
        else:
            self._kept.tell("on_train_batch_begin", batch, logs)

    def on_train_batch_end(self, batch, logs=None):
        if self._to_skip:
            return
        if self._skip is not None:
            # Only a step that has been done has surely made the metrics' variables.
            self._assign(self._slot, "model", "optimizer", "metrics")
            set_generator_states(self._slot.arrays)
            self._kept.unpack(self._slot)
            self._skip = self._slot = None
            return
        self._slot = None
        self.step += batch + 1 - self.batch
        self.batch = batch + 1
        self._kept.tell("on_train_batch_end", batch, logs)
        if not math.isfinite((logs or {}).get("loss", 0.0)):
            self._stop(f"The loss is {logs['loss']} at step {self.step}.")
        elif self.step - self._saved[-1] >= self.every:
            self._save(logs)

    def on_epoch_end(self, epoch, logs=None):
        if self._to_skip:
            self._refuse_short_epoch()
        self._kept.tell("on_epoch_end", epoch, logs)
        # Not a copy: callbacks after this one still add to it.
        self._epochs.append((epoch, logs))
        if epoch + 1 >= self.params["epochs"] or self.model.stop_training:
            self._save_the_end()

    def on_test_begin(self, logs=None):
        self._kept.tell("on_test_begin", logs)

    def on_test_end(self, logs=None):
        self._kept.tell("on_test_end", logs)

    def on_test_batch_begin(self, batch, logs=None):
        self._kept.tell("on_test_batch_begin", batch, logs)

    def on_test_batch_end(self, batch, logs=None):
        self._kept.tell("on_test_batch_end", batch, logs)

    def on_train_end(self, logs=None):
        self.model._initial_epoch = None
        if self._slot is not None:
            self._restore_history()
        elif self.model.stop_training and self.stopped is None and self._epochs:
            # By a callback after this one.
            self._save_the_end()
        slot = self.checkpoints.newest() if self.diverged else None
        if slot is not None:
            self._assign(slot, "model", "optimizer")
            print(f"The model has the weights of {str(slot.path)!r} again, step {slot.facts['step']}.")
        self._kept.tell("on_train_end", logs)

    def set_seeds(self, epoch):
        """Sets the global random seeds as they are at the start of an epoch.

        Args:
            epoch: Int, from 0.
        """
        if self.seed is not None:
            keras.utils.set_random_seed(int(np.random.SeedSequence([self.seed, epoch]).generate_state(1)[0] >> 1))

    def _save_the_end(self):
        self.epoch, self.batch = self._epochs[-1][0] + 1, 0
        if self.model.stop_training and not self.diverged:
            self.stopped = self._kept.stopper or BESIDE
        self._save({})

    def _save(self, logs):
        """Writes a checkpoint, unless a weight is not finite or the run has been stopped."""
        if self.diverged:
            return
        arrays = {
            f"{group}/{i:05d}": storable(ops.convert_to_numpy(v))
            for group, vs in self._variables().items()
            for i, v in enumerate(vs)
        }
        arrays |= generator_states()
        weights = {f"model/{i:05d}": v.path for i, v in enumerate(self.model.variables)}
        for name, path in weights.items():
            if not np.isfinite(arrays[name]).all():
                self._stop(f"The weight {path!r} is not finite at step {self.step}.")
                return
        facts = {
            "epoch": self.epoch,
            "batch": self.batch,
            "step": self.step,
            "seed": self.seed,
            "logs": _json(logs),
            "history": [[epoch, _json(values)] for epoch, values in self._epochs],
            "variables": self._signature(),
            "callbacks": self._kept.pack(arrays),
            "stopped": self.stopped,
        }
        try:
            self.checkpoints.save(self.step, facts, arrays)
        except OSError as error:
            # A disk that is full at hour nine must not end the run; one that never took a checkpoint must.
            if not self.checkpoints.paths():
                raise
            print(f"No checkpoint could be written at step {self.step} ({error}). The earlier ones are kept.")
        self._saved = (self.epoch, self.batch, self.step)

    def _stop(self, reason):
        print(f"{reason} Training stops; the checkpoints written before are kept.")
        self.diverged = True
        self.model.stop_training = True

    def _variables(self):
        # JAX gives the variables their values when a callback asks for `model`, at a cost: once, and not in each step.
        model = self.model
        optimizer = model.optimizer.variables if model.optimizer is not None else []
        return {"model": model.variables, "optimizer": optimizer, "metrics": model.metrics_variables}

    def _signature(self):
        return {group: [_describe(v) for v in variables] for group, variables in self._variables().items()}

    def _check(self, slot):
        """Refuses a checkpoint that is not of this model, optimizer and seed."""
        model = self.model
        if not model.built:
            raise ValueError(
                f"Expected a built model to resume from {str(slot.path)!r}: call it on a batch, or give Input."
            )
        if model.optimizer is not None and not model.optimizer.built:
            model.optimizer.build(model.trainable_variables)
        advice = f"Give another `folder`, or delete {str(self.checkpoints.folder)!r} to start anew."
        here = self._signature()
        for group in ("model", "optimizer"):
            saved = slot.facts["variables"][group]
            pairs = list(zip(saved, here[group], strict=False))
            different = next((f"{a} where this one has {b}" for a, b in pairs if a != b), None)
            if different is None and len(saved) != len(here[group]):
                different = f"{len(saved)} variables where this one has {len(here[group])}"
            if different is not None:
                raise ValueError(f"{str(slot.path)!r} is of another {group}: it has {different}. {advice}")
        if slot.facts["seed"] != self.seed:
            raise ValueError(
                f"Expected `seed` to be {slot.facts['seed']}, as in {str(slot.path)!r}. "
                f"Received: seed={self.seed}. {advice}"
            )

    def _assign(self, slot, *groups):
        variables = self._variables()
        for group in groups:
            if group == "metrics" and slot.facts["variables"][group] != self._signature()[group]:
                print("The metrics are not those of the checkpoint: this epoch's start where it is resumed.")
                self.model.reset_metrics()
                continue
            for i, variable in enumerate(variables[group]):
                variable.assign(slot.arrays[f"{group}/{i:05d}"])

    def _skip_batches(self):
        """Lets fit go through the batches already seen without training on them."""
        model, path = self.model, str(self._slot.path)
        together = model.steps_per_execution
        if self.batch % together:
            raise ValueError(
                f"Expected `steps_per_execution` to divide {self.batch}, the batches that {path!r} has seen of its "
                f"epoch. Received: steps_per_execution={together}"
            )
        if self.params["steps"] is not None and self.params["steps"] <= self.batch - together:
            self._refuse_short_epoch()
        self._to_skip = self.batch // together
        model.make_train_function()
        train = model.train_function

        def skip(*args):
            # For one call alone: an interrupted fit must not leave the model a way of not training.
            model.train_function = train
            # (state, iterator) on JAX, (iterator,) on TensorFlow, (batches,) on PyTorch, which has drawn them already.
            self._to_skip -= 1
            logs = self._slot.facts["logs"]
            if not self._to_skip:
                # The last one is trained on, which makes all variables, and then undone in on_train_batch_end.
                result = train(*args)
                return (logs, result[1]) if len(args) == 2 else logs
            if hasattr(args[-1], "__next__"):
                for _ in range(together):
                    next(args[-1])
            return (logs, args[0]) if len(args) == 2 else logs

        # Set as each batch begins. On JAX asking for `self.model` there would cost a copy of the state.
        self._skip = functools.partial(setattr, model, "train_function", skip)

    def _refuse_short_epoch(self):
        raise ValueError(
            f"Expected the data to have the {self.batch} batches that {str(self._slot.path)!r} has seen of epoch "
            f"{self.epoch + 1}. Received: an epoch of fewer batches."
        )

    def _restore_history(self):
        """Gives the history the epochs before this process."""
        record = self.model.history
        record.epoch = [epoch for epoch, _ in self._epochs]
        record.history = {}
        for _, values in self._epochs:
            for name, value in values.items():
                record.history.setdefault(name, []).append(value)


def _describe(variable):
    """A variable's name, shape and type, as they are in each process.

    Keras numbers the layers and optimizers that got no name of their own through the process: dense, dense_1, ...
    """
    return f"{re.sub(r'_[0-9]+(?=[_/]|$)', '', variable.path)} {list(variable.shape)} {variable.dtype}"


def _json(logs):
    """The numbers of a log as JSON can hold them."""
    return {name: float(value) for name, value in (logs or {}).items() if np.ndim(value) == 0}
