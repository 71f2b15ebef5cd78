"""Saves the state of a run every few steps, and resumes the run from its last checkpoint."""

import json
import math

import keras
import numpy as np

from keras_vit.distribution.processes import agree, first_in_process_0, process_id
from keras_vit.distribution.synchronization import spread_seeds
from keras_vit.training import callback_states
from keras_vit.training.checkpoints import (
    OTHER_FOLDER,
    assign,
    check_model,
    generator_states,
    model_arrays,
    set_generator_states,
    signature,
)
from keras_vit.training.run_record import PARTS, difference, plain_rate


class ResumableRun(keras.callbacks.CallbackList):
    """Saves checkpoints, and calls the callbacks, which see a single run although `fit` is called per epoch.

    `every` is the number of steps between checkpoints. `first_step` is the step at which this process began, `diverged`
    is True after a NaN or infinite loss or weight, and `stopped` is the name of the callback that stopped the run,
    "other code", or None.
    """

    def __init__(self, model, callbacks, checkpoints, every, params):
        self.named = callback_states.named(callbacks)
        # On JAX, each access to `self.model` copies the training state, so keep the model as `self.trained` too.
        self.trained, self.checkpoints, self.every = model, checkpoints, every
        self.epoch, self.batch, self.step, self.first_step, self.saved_step = 0, 0, 0, 0, 0
        self.diverged, self.stopped, self.last_logs = False, None, {}
        self.slot, self.new_rate, self.arrays, self.generators = None, None, {}, {}
        super().__init__(
            list(self.named.values()), add_history=True, add_progbar=params["verbose"] != 0, model=model, **params
        )
        self.named.setdefault("History", model.history)
        self.swaps = [callback for callback in self.callbacks if callback_states.swaps_on_epoch(callback)]
        self.first_attributes = {}

    def set_params(self, params):
        super().set_params(params)
        for callback in self.callbacks:
            if isinstance(callback, keras.callbacks.SwapEMAWeights):
                # In the last epoch of a run, SwapEMAWeights deletes the trained weights. Raise the number of epochs in
                # its `params` by 1, so that the callback keeps the weights.
                callback.set_params({**params, "epochs": params["epochs"] + 1})

    def begin(self, record, allow):
        """Restores the newest checkpoint if there is one, and calls `on_train_begin` of the callbacks."""
        settings = {name: callback_states.settings(callback) for name, callback in self.named.items()}
        # Convert the record as a checkpoint does, so that numbers of NumPy equal the saved numbers.
        self.record = json.loads(json.dumps({**record, "callbacks": settings}, default=lambda value: value.item()))
        total = self.params["epochs"]
        slot = first_in_process_0(self.checkpoints.newest)
        step = -1 if slot is None else slot.facts["step"]
        if agree(step) != step:
            raise ValueError(
                "Expected all processes to use the same folder of checkpoints. "
                f"Received: {str(self.checkpoints.folder)!r}, where process 0 found other checkpoints than this process"
            )
        if slot is not None:
            check_model(self.trained, slot)
            self._check_record(slot, allow)
            self.epoch, self.batch, self.step = (slot.facts[key] for key in ("epoch", "batch", "step"))
            self.first_step = self.saved_step = self.step
            if slot.facts["stopped"] in self.named:
                self.stopped = slot.facts["stopped"]
        states = self._states(slot)
        for callback in self.callbacks:
            name = next((name for name, other in self.named.items() if other is callback), None)
            callback_states.begin(callback, states.get(name, {}), self.ended)
        if slot is None:
            self._remember()
            return
        self.slot = slot
        if not self.batch or self.ended:
            self._restore()
        if self.ended:
            for callback in self.swaps if self.batch else ():
                callback.on_epoch_end(self.epoch)
            stopped = f"was stopped by {self.stopped}, in epoch {self.epoch + (self.batch > 0)}"
            end = stopped if self.stopped else f"has done {total} epochs"
            print(f"The run in {str(self.checkpoints.folder)!r} {end}: nothing is left to train.")
        else:
            place = f"epoch {self.epoch + 1} of {total}, batch {self.batch}, step {self.step}"
            print(f"Resuming from {str(slot.path)!r}: {place}.")

    @property
    def ended(self):
        """True if a callback stopped the run, the run diverged, or all epochs are trained."""
        return self.stopped is not None or self.diverged or self.epoch >= self.params["epochs"]

    def end(self):
        """Gives the model its final weights and calls `on_train_end` of the callbacks."""
        if self.swaps:
            self.undo_average()
        elif not self.diverged:
            self.trained.optimizer.finalize_variable_values(self.trained.trainable_weights)
        self._call("on_train_end", self.last_logs)
        # EarlyStopping may have restored the best weights, so assign the weights of the checkpoint last.
        slot = self.checkpoints.newest() if self.diverged else None
        if slot is not None:
            assign(self.trained, slot.arrays, slot.facts, "model", "optimizer")
            print(f"The model has the weights of {str(slot.path)!r} again, step {slot.facts['step']}.")

    def undo_average(self):
        """Restores the trained weights, which `model.fit` replaced by their moving average at the end of an epoch."""
        if self.arrays:
            assign(self.trained, self.arrays, None, "model")

    # The next two methods do nothing, because `model.fit` calls them in each epoch. `begin` and `end` replace them.
    def on_train_begin(self, logs=None):
        pass

    def on_train_end(self, logs=None):
        pass

    def on_epoch_begin(self, epoch, logs=None):
        self._call("on_epoch_begin", epoch, _floats(logs))
        if self.slot is not None:
            self._restore()
        spread_seeds(self.trained)
        self.offset = self.batch

    def restore_generators(self):
        """Restores the states of PyTorch's random generators. Call it after Keras has made its data loader."""
        states, self.generators = self.generators, {}
        set_generator_states(states)
        if states:
            spread_seeds(self.trained)

    def on_train_batch_begin(self, batch, logs=None):
        self.restore_generators()
        self._call("on_train_batch_begin", batch + self.offset, _floats(logs))

    def on_train_batch_end(self, batch, logs=None):
        logs = _floats(logs)
        batch += self.offset
        # With `steps_per_execution`, Keras may pass a number after the last batch.
        trained = min(batch + 1, self._num_batches)
        self.step += trained - self.batch
        self.batch = trained
        self._call("on_train_batch_end", batch, logs)
        if not math.isfinite(logs.get("loss", 0.0)):
            self._stop(f"The loss is {logs['loss']} at step {self.step}.")
        # Do not save after the last step of an epoch, because `on_epoch_end` saves the start of the next epoch.
        elif self._stopped_early or (self.step - self.saved_step >= self.every and self.batch < self._num_batches):
            self._save()

    def on_epoch_end(self, epoch, logs=None):
        stopped_early, self.last_logs = self._stopped_early, _floats(logs)
        self._call("on_epoch_end", epoch, self.last_logs)
        if stopped_early and not self.diverged:
            # The last checkpoint is at this batch. Keep it, so that a resumed run trains the rest of the epoch.
            self._keep(model_arrays(self.model))
            return
        self.epoch, self.batch = epoch + 1, 0
        self._save()

    @property
    def _stopped_early(self):
        """True if a callback stopped the run before the last step of an epoch."""
        return self.stopped is not None and self.batch < self._num_batches

    @property
    def _num_batches(self):
        """The number of batches of an epoch. Infinite if it is not known."""
        return self.params["steps"] or math.inf

    def _call(self, event, *args):
        """Calls a method of each callback, and stores the name of a callback that stops the run."""
        if self.trained.stop_training and not self.diverged:
            self.stopped = self.stopped or "other code"
        for callback in self.callbacks:
            stopped = self.trained.stop_training
            getattr(callback, event)(*args)
            if self.trained.stop_training and not stopped:
                self.stopped = next(name for name, other in self.named.items() if other is callback)

    def _check_record(self, slot, allow):
        """Raises an error if the checkpoint is of a different run. Settings whose names are in `allow` may differ."""
        saved, here = slot.facts["record"], self.record
        rate = plain_rate(self.trained.optimizer)
        if rate is not None and here["learning_rate"] != saved["learning_rate"]:
            number = next(i for i, variable in enumerate(self.trained.optimizer.variables) if variable is rate)
            # If a process calls `fit` twice, the optimizer still has the last learning rate of the first call. The user
            # did not change this rate, so do not report a difference.
            if here["learning_rate"] == float(slot.arrays[f"optimizer/{number:05d}"]):
                here["learning_rate"] = saved["learning_rate"]
            else:
                self.new_rate = here["learning_rate"]
        if {"data", "seed"} & set(allow):
            # If the data may differ, do not compare the loss values, because they depend on the labels of a batch.
            here["loss"].pop("value", None)
        # Only process 0 compares its record, because it wrote the checkpoint. All other processes read other images, so
        # their records differ.
        for part in PARTS if process_id() == 0 else ():
            found = None if part in allow else difference(saved[part], here[part], part)
            if found:
                raise ValueError(
                    f"{str(slot.path)!r} is of another run: {found}. {OTHER_FOLDER.format(slot.path.parent)} "
                    f"To resume it anyway, pass `allow=({part!r},)`."
                )

    def _states(self, slot):
        """Returns {name: state} of the callbacks in a checkpoint. Prints which callbacks are new or missing."""
        if slot is None:
            return {}
        saved = {name: callback_states.unpack(state, slot.arrays) for name, state in slot.facts["callbacks"]}
        state_of = callback_states.get_state
        if new := [name for name, callback in self.named.items() if name not in saved and state_of(callback)]:
            print(f"{str(slot.path)!r} has no state of {', '.join(new)}. New callbacks start afresh.")
        if gone := sorted(name for name, state in saved.items() if state and name not in self.named):
            print(
                f"{str(slot.path)!r} has a state of {', '.join(gone)}, which `callbacks` lacks. This state is not used."
            )
        return saved

    def _restore(self):
        """Restores the model, the optimizer, the metrics and the callbacks from the checkpoint."""
        slot, self.slot = self.slot, None
        for callback in () if self.batch else self.swaps:
            # At the end of an epoch, SwapEMAWeights has put the averages into the model. Call its methods again, so
            # that the callback has the same state as after the epoch.
            callback.on_epoch_begin(self.epoch)
            callback.on_epoch_end(self.epoch)
        assign(self.model, slot.arrays, slot.facts, "model", "optimizer", *(["metrics"] if self.batch else []))
        if self.new_rate is not None:
            self.trained.optimizer.learning_rate = self.new_rate
        for name, state in slot.facts["callbacks"]:
            if name in self.named:
                callback_states.set_state(self.named[name], callback_states.unpack(state, slot.arrays))
        self._remember()
        if self.batch:
            self.generators = slot.arrays
        else:
            self._keep(slot.arrays)

    def _save(self):
        """Writes a checkpoint if the run has not diverged. If a weight is not finite, stops the run instead."""
        if self.diverged:
            return
        # On JAX, reading `self.model` copies the state of the training to the model's variables.
        model = self.model
        arrays = model_arrays(model) | generator_states()
        for i, variable in enumerate(model.variables):
            if not np.isfinite(arrays[f"model/{i:05d}"]).all():
                self._stop(f"The weight {variable.path!r} is not finite at step {self.step}.")
                return
        for name, first in list(self.first_attributes.items()):
            now = callback_states.own_attributes(self.named[name])
            if changed := sorted(key for key, value in now.items() if value != first.get(key)):
                del self.first_attributes[name]
                print(
                    f"The callback {name} changes {', '.join(changed)} during training. Checkpoints do not save these "
                    "attributes, so a resumed run starts without the changes. To save them, define get_state() and "
                    "set_state(state)."
                )
        facts = {name: getattr(self, name) for name in ("epoch", "batch", "step", "record", "stopped")}
        facts |= {"variables": signature(model), "callbacks": []}
        for name, callback in self.named.items():
            try:
                state = callback_states.pack(callback_states.get_state(callback), arrays, "callbacks")
            except TypeError as error:
                raise TypeError(f"The state of the callback {name} cannot be saved. {error}") from None
            facts["callbacks"].append([name, state])
        # A resumed run computes the seeds of all processes from the seeds of process 0. Compute them in the same way at
        # each checkpoint, so that a run without an interruption has the same seeds.
        spread_seeds(model)
        try:
            if process_id() == 0:
                self.checkpoints.save(self.step, facts, arrays)
        except OSError as error:
            # A full disk must not end a long run. Raise only if there is no checkpoint yet.
            if not self.checkpoints.paths():
                raise
            print(f"No checkpoint could be written at step {self.step} ({error}). Earlier checkpoints are kept.")
        self.saved_step = self.step
        if not self.batch:
            self._keep(arrays)

    def _keep(self, arrays):
        """Stores the weights at the end of an epoch, if `model.fit` will replace them by their average."""
        if _averages(self.trained.optimizer):
            self.arrays = {name: array for name, array in arrays.items() if name.startswith("model/")}

    def _remember(self):
        own = callback_states.own_attributes
        self.first_attributes = {name: own(callback) for name, callback in self.named.items()}

    def _stop(self, reason):
        print(f"{reason} Training stops; the checkpoints written before are kept.")
        self.diverged = True
        self.trained.stop_training = True


def _floats(logs):
    """Converts the scalars of a dict of logs to floats, and joins nested dicts, as Keras does."""
    flat = {}
    for name, value in (logs or {}).items():
        nested = isinstance(value, dict)
        flat |= _floats(value) if nested else {name: float(value) if np.ndim(value) == 0 else value}
    return flat


def _averages(optimizer):
    """Returns True if an optimizer, or one within it, replaces the weights by their average at the end of training."""
    inner = [getattr(optimizer, "inner_optimizer", None), *getattr(optimizer, "optimizers", ())]
    return bool(getattr(optimizer, "use_ema", False)) or any(_averages(part) for part in inner if part is not None)
