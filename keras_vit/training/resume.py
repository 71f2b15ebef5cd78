import functools
import math

import keras
import numpy as np

from keras_vit import arguments
from keras_vit.distribution.processes import agree, first_in_process_0, process_id
from keras_vit.distribution.synchronization import check_synchronized, spread_seeds
from keras_vit.training.checkpoints import OTHER_FOLDER, CheckpointSlots, assign, check_model, model_arrays, signature
from keras_vit.training.kept_callbacks import KeptCallbacks
from keras_vit.training.run_record import (
    PARTS,
    arguments_of_fit,
    data_of,
    difference,
    goes_on,
    plain_rate,
    record_of,
)
from keras_vit.training.torch_generators import generator_states, set_generator_states

_UNKNOWN_STOPPER = "a callback that was not given to Resume"


class Resume(keras.callbacks.Callback):
    """Saves a run every few steps; the same script, started again, resumes at the step of the last checkpoint.

    A checkpoint has the model's variables, random generators, optimizer, metrics, history, callbacks and position in
    the data. A resumed run computes the same as an uninterrupted one, bit for bit on one machine if the backend is
    deterministic. `keras.callbacks.BackupAndRestore` restores neither the position within an epoch nor the history,
    generators or other callbacks.

    To return to its position, the run skips the epoch's first batches, so an epoch must have the same batches in each
    process. This holds for data that is not shuffled, or shuffled once, and for NumPy arrays, a `keras.utils.PyDataset`
    or a `torch.utils.data.DataLoader` shuffled by the global random seeds. (On TensorFlow, arrays are shuffled by the
    seed at the time of `model.fit`: call `keras.utils.set_random_seed` first.) For a `tf.data.Dataset` shuffled anew in
    each epoch, use `keras_vit.training.fit`.

    Give other callbacks to this one instead of `model.fit`: `Resume(folder, callbacks=[EarlyStopping()])`. They are not
    called for skipped batches, and their states are saved: those of Keras' own callbacks, and of any with
    `get_state()`, which returns a dict of JSON values and NumPy arrays, and `set_state(state)`.

    A run stopped by a callback, such as EarlyStopping, is finished, unless it is started again with `callbacks` without
    that one. A finished run trains no more unless `epochs` has grown. Raise KeyboardInterrupt to interrupt a process,
    such as at a time limit. A loss or weight that is not finite stops the run, and the model gets the weights of the
    last checkpoint.

    Args:
        folder: Path of the folder of checkpoints, for this run only.
        every: Int of at least 1, steps between checkpoints. Each epoch also ends with one.
        slots: Int of at least 1, the number of checkpoints to keep. If one is damaged, the one before it is used.
        seed: Int of at least 0 from which the global random seeds (Python, NumPy, backend) are set at the start of each
            epoch; None leaves them.
        callbacks: List of the other callbacks; [] if there are none, since None prints a notice.
        allow: What may differ from the checkpoint, a tuple of "seed", "model" (its config), "optimizer",
            "learning_rate" (the new one counts), "loss" and "data" (its sizes, and a sample of arrays).

    Attributes: `epoch`, `batch` and `step`: the position; `first_step`: where this process began; `diverged`: whether a
    number was not finite; `stopped`: the name of the callback that stopped the run, or None.

    Raises:
        ValueError: If an argument is invalid, the model is not built, the checkpoint is of another run (see `allow`),
            or `steps_per_epoch` lets an epoch begin within the data, where a resumed run would not.
        RuntimeError: At the start of training, in one of several PyTorch processes without
            `keras_vit.distribution.synchronize`.

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

    def __init__(self, folder, every=500, slots=3, seed=0, callbacks=None, allow=()):
        super().__init__()
        self.checkpoints = CheckpointSlots(folder, slots)
        self.every = arguments.positive_int("every", every)
        self.seed = arguments.optional(arguments.non_negative_int, "seed", seed)
        self.callbacks = callbacks
        self.allow = tuple(arguments.one_of("allow", part, PARTS) for part in allow)
        # As `run_record.data_of` describes it, if `model.fit` does not get it.
        self.data = None

    @property
    def callbacks(self):
        """The other callbacks, which this one calls; None if none were given."""
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
        check_synchronized(self.model)
        self.epoch, self.batch, self.step, self.first_step = 0, 0, 0, 0
        self._saved = (0, 0, 0)
        self._to_skip = 0
        self._skip = None
        self._epochs = []
        self._slot = None
        self.diverged = False
        self.stopped = None
        # A fit interrupted before its first epoch would leave its value.
        self.model._initial_epoch = None
        self._record = self._new_record()
        self._new_rate = None
        slot = first_in_process_0(self._newest)
        step = -1 if slot is None else slot.facts["step"]
        if agree(step) != step:
            raise ValueError(
                "Expected `folder` to be the same for all processes. "
                f"Received: {str(self.checkpoints.folder)!r}, with other checkpoints here than in process 0"
            )
        if self.callbacks is None:
            print("Resume saves no state of callbacks given to fit. Give them to Resume(folder, callbacks=[...]).")
        if slot is None:
            self._kept.begin(self.params, None)
            return
        check_model(self.model, slot)
        self._check_record(slot)
        self._kept.begin(self.params, slot)
        self._slot = slot
        self._assign("model", "optimizer")
        self.epoch, self.batch, self.step = self._saved = tuple(slot.facts[k] for k in ("epoch", "batch", "step"))
        self.first_step = self.step
        self._epochs = [tuple(pair) for pair in slot.facts["history"]]
        if self.callbacks is None or slot.facts.get("stopped") in (*self._kept.named, _UNKNOWN_STOPPER):
            self.stopped = slot.facts.get("stopped")
        total = self.params["epochs"]
        # As keras.callbacks.BackupAndRestore does; fit reads it after this method.
        self.model._initial_epoch = total if self.stopped else self.epoch
        if self.batch:
            self._skip_batches()
        else:
            self._kept.unpack(slot)
        if self.stopped or self.epoch >= total:
            end = (
                f"was stopped by {self.stopped}, in epoch {self.epoch}" if self.stopped else f"has done {total} epochs"
            )
            print(f"The run in {str(self.checkpoints.folder)!r} {end}: nothing is left to train.")
        else:
            place = f"epoch {self.epoch + 1} of {total}, batch {self.batch}, step {self.step}"
            print(f"Resuming from {str(slot.path)!r}: {place}.")

    def on_epoch_begin(self, epoch, logs=None):
        # Otherwise it would apply to the next fit as well.
        self.model._initial_epoch = None
        if self._slot is not None:
            self._restore_history()
        if not self._to_skip:
            if self._slot is not None:
                set_generator_states(self._slot.arrays)
            self.epoch, self.batch = epoch, 0
            if self.step > self._saved[-1] or self._saved[0] < epoch:
                # Only now have all callbacks seen the end of the previous epoch.
                self._save({})
        self.set_seeds(epoch)
        spread_seeds(self.model)
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
            # Metrics are sure to have their variables only after a step.
            self._assign("model", "optimizer", "metrics")
            set_generator_states(self._slot.arrays)
            spread_seeds(self.model)
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
        # Not a copy: later callbacks still add to it.
        self._epochs.append((epoch, logs))
        if epoch + 1 >= self.params["epochs"] or self.model.stop_training:
            self._save_the_end()

    def _tell(self, *args, **kwargs):
        self._kept.tell(*args, **kwargs)

    on_test_begin = functools.partialmethod(_tell, "on_test_begin")
    on_test_end = functools.partialmethod(_tell, "on_test_end")
    on_test_batch_begin = functools.partialmethod(_tell, "on_test_batch_begin")
    on_test_batch_end = functools.partialmethod(_tell, "on_test_batch_end")

    def on_train_end(self, logs=None):
        self.model._initial_epoch = None
        if self._slot is not None:
            self._restore_history()
        elif self.model.stop_training and self.stopped is None and self._epochs:
            # Stopped by a callback after this one.
            self._save_the_end()
        slot = self.checkpoints.newest() if self.diverged else None
        if slot is not None:
            assign(self.model, slot, "model", "optimizer")
            print(f"The model has the weights of {str(slot.path)!r} again, step {slot.facts['step']}.")
        self._kept.tell("on_train_end", logs)

    def _newest(self):
        if process_id() == 0:
            self.checkpoints.open()
        return self.checkpoints.newest()

    def set_seeds(self, epoch):
        """Sets the global random seeds for the start of an epoch (int, from 0)."""
        if self.seed is not None:
            keras.utils.set_random_seed(int(np.random.SeedSequence([self.seed, epoch]).generate_state(1)[0] >> 1))

    def _new_record(self):
        given = arguments_of_fit() if self.data is None else {}
        if goes_on(**given) and "data" not in self.allow:
            raise ValueError(
                f"Expected epochs that each begin the data anew. Received: steps_per_epoch={given['steps_per_epoch']}, "
                "with data that goes on. Leave `steps_per_epoch` out, or use keras_vit.training.fit with a dataset for "
                "each epoch; `allow=('data',)` lets a resumed run begin it anew."
            )
        names = ("x", "y", "sample_weight", "batch_size")
        data = self.data or data_of(*(given.get(name) for name in names), steps=self.params["steps"])
        return {"seed": self.seed, **record_of(self.model, data)}

    def _check_record(self, slot):
        """Raises if the checkpoint is of a run with something else that `allow` does not name."""
        # A checkpoint of an older version has only the seed.
        saved, here = {"seed": slot.facts["seed"], **slot.facts.get("record", {})}, self._record
        rate = plain_rate(self.model.optimizer)
        if rate is not None and here["learning_rate"] != saved.get("learning_rate", here["learning_rate"]):
            number = next(i for i, variable in enumerate(self.model.optimizer.variables) if variable is rate)
            # The second fit of a process has the rate that the first ended with.
            if here["learning_rate"] == float(slot.arrays[f"optimizer/{number:05d}"]):
                here["learning_rate"] = saved["learning_rate"]
            else:
                self._new_rate = here["learning_rate"]
        for part in PARTS:
            found = None if part in self.allow else difference(saved.get(part, here[part]), here[part], part)
            if found:
                raise ValueError(
                    f"{str(slot.path)!r} is of another run: {found}. {OTHER_FOLDER.format(slot.path.parent)} "
                    f"`allow=({part!r},)` resumes it all the same."
                )

    def _assign(self, *groups):
        assign(self.model, self._slot, *groups)
        if self._new_rate is not None:
            self.model.optimizer.learning_rate = self._new_rate

    def _save_the_end(self):
        self.epoch, self.batch = self._epochs[-1][0] + 1, 0
        if self.model.stop_training and not self.diverged:
            self.stopped = self._kept.stopper or _UNKNOWN_STOPPER
        self._save({})

    def _save(self, logs):
        """Writes a checkpoint, unless a weight is not finite or the run has diverged."""
        if self.diverged:
            return
        # On JAX, each access to `self.model` in a callback copies the state.
        model = self.model
        arrays = model_arrays(model) | generator_states()
        for i, variable in enumerate(model.variables):
            if not np.isfinite(arrays[f"model/{i:05d}"]).all():
                self._stop(f"The weight {variable.path!r} is not finite at step {self.step}.")
                return
        facts = {
            "epoch": self.epoch,
            "batch": self.batch,
            "step": self.step,
            "seed": self.seed,
            "record": self._record,
            "logs": _json(logs),
            "history": [[epoch, _json(values)] for epoch, values in self._epochs],
            "variables": signature(model),
            "callbacks": self._kept.pack(arrays),
            "stopped": self.stopped,
        }
        # So that a resumed run, which knows only the seeds of process 0, draws the same numbers.
        spread_seeds(model)
        try:
            if process_id() == 0:
                self.checkpoints.save(self.step, facts, arrays)
        except OSError as error:
            # A disk that fills up must not end a long run, unless it never took a checkpoint.
            if not self.checkpoints.paths():
                raise
            print(f"No checkpoint could be written at step {self.step} ({error}). The earlier ones are kept.")
        self._saved = (self.epoch, self.batch, self.step)

    def _stop(self, reason):
        print(f"{reason} Training stops; the checkpoints written before are kept.")
        self.diverged = True
        self.model.stop_training = True

    def _skip_batches(self):
        """Makes fit skip the batches already seen without training on them."""
        model, path = self.model, str(self._slot.path)
        together = model.steps_per_execution
        if self.batch % together:
            raise ValueError(
                f"Expected `steps_per_execution` to divide {self.batch}, the batches that {path!r} has seen of its "
                f"epoch. Received: steps_per_execution={together}"
            )
        if self.params["steps"] is not None and self.params["steps"] <= self.batch - together:
            # On TensorFlow, Keras could not end an epoch without a step.
            self._refuse_short_epoch()
        self._to_skip = self.batch // together
        model.make_train_function()
        train = model.train_function

        def skip(*args):
            # For one call only: an interrupted fit must not leave a model that does not train.
            model.train_function = train
            # (state, iterator) on JAX, (iterator,) on TensorFlow, (batches,), already drawn, on PyTorch.
            self._to_skip -= 1
            logs = self._slot.facts["logs"]
            if not self._to_skip:
                # Trains on the last one to create all variables; on_train_batch_end then undoes it.
                result = train(*args)
                return (logs, result[1]) if len(args) == 2 else logs
            if hasattr(args[-1], "__next__"):
                for _ in range(together):
                    next(args[-1])
            return (logs, args[0]) if len(args) == 2 else logs

        self._skip = functools.partial(setattr, model, "train_function", skip)

    def _refuse_short_epoch(self):
        raise ValueError(
            f"Expected the data to have the {self.batch} batches that {str(self._slot.path)!r} has seen of epoch "
            f"{self.epoch + 1}. Received: an epoch of fewer batches."
        )

    def _restore_history(self):
        """Adds the epochs before this process to the history."""
        record = self.model.history
        record.epoch = [epoch for epoch, _ in self._epochs]
        record.history = {}
        for _, values in self._epochs:
            for name, value in values.items():
                record.history.setdefault(name, []).append(value)


def _json(logs):
    """Converts the scalars of a log to floats for JSON."""
    return {name: float(value) for name, value in (logs or {}).items() if np.ndim(value) == 0}
