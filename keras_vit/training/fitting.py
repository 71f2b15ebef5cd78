from collections.abc import Mapping

import keras
import numpy as np

from keras_vit import arguments
from keras_vit.distribution.synchronization import check_synchronized
from keras_vit.models import forward
from keras_vit.models.finite import non_finite_weights
from keras_vit.training.checkpoints import CheckpointSlots
from keras_vit.training.checks import batch_problem, class_name_problems, give_class_names
from keras_vit.training.epochs import Epochs, one_batch
from keras_vit.training.resume import ResumableRun
from keras_vit.training.run_record import PARTS, describe_data, describe_run


def fit(model, data, epochs, *, resume, callbacks=(), **options):
    """Trains like `model.fit`, and resumes an interrupted run at its last checkpoint.

    If you start the same script again, it continues at the step of the last checkpoint. Each epoch sets the global
    random seeds, so the result is the same as without the interruption. On one machine with a deterministic backend,
    every bit of the result is the same. To continue a finished run, start it again with more `epochs`. To continue a
    run that a callback such as EarlyStopping stopped, start it again without that callback. If the callback stopped it
    within an epoch, the run continues at the next batch. A run that other code stopped by `model.stop_training = True`
    continues when you start it again. A loss or weight that is not finite stops the run, and the model gets the weights
    of the last checkpoint. If the model has no class names, it gets the class names of the data. Returns the
    `keras.callbacks.History` of the whole run.

    Args:
        model: A compiled and built `keras.Model`.
        data: Arrays (x, y) or (x, y, sample_weight), a `keras.utils.PyDataset`, a `torch.utils.data.DataLoader`, a
            `tf.data.Dataset`, or a function of the epoch (int, from 0) that returns one of these. If a
            `tf.data.Dataset` has a new order in each pass, pass a function that returns the dataset. Datasets of
            `keras_vit.data` do not need a function.
        epochs: Int, the number of epochs of the whole run, including the epochs before an interruption.
        resume: Path of the folder for the checkpoints of this run. No other run may use this folder.
        save_every: Int of at least 1, steps between checkpoints; 500 by default. Each epoch also ends with a
            checkpoint.
        keep: Int of at least 1, the number of checkpoints to keep; 3 by default. If the last checkpoint is damaged, the
            checkpoint before it is used.
        seed: Int of at least 0; 0 by default. It determines the global random seeds and the order of the data, if `fit`
            shuffles the data.
        allow: Tuple of the settings that may differ from the checkpoint: "seed", "model" (its config), "optimizer",
            "learning_rate" (the new rate is used), "loss", "data" (the sizes, values and order of the data, and the
            class weights) and "callbacks" (their arguments).
        callbacks: List of callbacks. `on_train_begin` and `on_train_end` are called once for the run. Checkpoints
            contain the states of Keras' callbacks, and of any callback that has the methods `get_state()` and
            `set_state(state)`. The method `get_state` must return a dict of JSON values and NumPy arrays.
        **options: Other arguments of `model.fit`: batch_size, shuffle, validation_data, class_weight, verbose, ...

    Raises:
        ValueError: If an argument is invalid, the model is not compiled, the state of a callback cannot be saved, or
            the checkpoint is of another run (see `allow`). The labels of the first batch must fit the model and its
            loss, and the class names of the model, the data and the validation data must not differ.
        TypeError: If an argument of `model.fit` is passed that `fit` replaces, such as `initial_epoch`.
        RuntimeError: If another process trains in the folder, or one of several PyTorch processes has not called
            `keras_vit.distribution.synchronize`.

    Example:
    >>> import keras, tempfile
    >>> folder = tempfile.mkdtemp()
    >>> data = np.zeros((12, 3)), np.zeros(12)
    >>> model = keras.Sequential([keras.Input((3,)), keras.layers.Dropout(0.5), keras.layers.Dense(1)])
    >>> model.compile("adam", "mse")
    >>> history = fit(model, data, epochs=2, resume=folder, save_every=2, batch_size=4, verbose=0)
    >>> again = fit(model, data, epochs=3, resume=folder, batch_size=4, verbose=0)  # doctest: +ELLIPSIS
    Resuming from '...step_000000000006.npz': epoch 3 of 3, batch 0, step 6.
    >>> len(again.history["loss"])
    3
    """
    return train(model, data, epochs, resume=resume, callbacks=callbacks, **options).history


def train(
    model,
    data,
    epochs,
    *,
    resume,
    save_every=500,
    keep=3,
    seed=0,
    allow=(),
    callbacks=(),
    batch_size=None,
    shuffle=True,
    class_weight=None,
    steps_per_epoch=None,
    verbose="auto",
    **options,
):
    """Trains as `fit` does, and returns the `ResumableRun`. Its `history` is a `keras.callbacks.History`."""
    if not getattr(arguments.model(model), "compiled", False):
        raise ValueError(f"Expected a compiled model. Received: {model.name!r}. Call its method `compile` first.")
    instead = {"x": "data", "y": "data", "initial_epoch": "resume", "validation_split": "validation_data"}
    for name in instead.keys() & options.keys():
        raise TypeError(f"Expected `{instead[name]}` instead of `{name}`, which is only an argument of model.fit")
    check_synchronized(model)
    arguments.each(arguments.positive_int, epochs=epochs, save_every=save_every, keep=keep)
    arguments.each(arguments.positive_int, optional=True, batch_size=batch_size, steps_per_epoch=steps_per_epoch)
    checkpoints = CheckpointSlots(arguments.path("resume", resume), keep)
    arguments.non_negative_int("seed", seed)
    arguments.choice("verbose", verbose, (0, 1, 2, "auto"))
    if class_weight is not None:
        arguments.instance("class_weight", class_weight, Mapping, "a dict {class index: weight}")
    allow = tuple(arguments.choice("allow", part, PARTS) for part in arguments.several("allow", allow))
    params = {"verbose": verbose, "epochs": epochs, "steps": None}
    run = ResumableRun(model, arguments.several("callbacks", callbacks), checkpoints, save_every, params)
    data = Epochs(data, seed, batch_size or 32, shuffle, steps_per_epoch)
    with checkpoints.opened():
        batch, steps = data.first_batch()
        labels = batch[1] if len(batch) > 1 and isinstance(batch[1], np.ndarray) else np.zeros(())
        several = labels.ndim > 1 and labels.shape[-1] > 1 and ((labels != 0).sum(-1) != 1) | (labels.max(-1) != 1)
        # If an image has several classes, Keras would use only the weight of the class with the largest label.
        if class_weight is not None and np.any(several):
            raise ValueError(
                "Expected one class per image for `class_weight`. Received: labels with several classes per image, or "
                "mixed labels. Pass a weight for each image: data=(images, labels, weights)."
            )
        names, others = (getattr(part, "class_names", ()) for part in (data.latest, options.get("validation_data")))
        if problem := batch_problem(model, batch):
            raise ValueError(problem)
        if len(batch) > 1:
            for problem in class_name_problems(model, names, others):
                raise ValueError(problem)
            give_class_names(model, names)
        # Evaluate a batch, so that the metrics create their variables.
        model.evaluate(one_batch(batch), verbose=0)
        weights = None if class_weight is None else {str(key): value for key, value in class_weight.items()}
        record = describe_run(model, batch)
        facts = {"batch_size": batch_size, "shuffle": bool(shuffle), "class_weight": weights}
        record["data"] = describe_data(data.latest, batch, steps, **facts)
        run.set_params({**params, "steps": steps})
        run.begin({"seed": seed, **record}, allow)
        options |= {"batch_size": batch_size, "class_weight": class_weight, "shuffle": False, "verbose": verbose}
        while not run.ended:
            first = run.batch
            x, steps = data.batches(run.epoch, first, run.restore_generators)
            run.set_params({**params, "steps": steps})
            part = {"initial_epoch": run.epoch, "epochs": run.epoch + 1}
            part["steps_per_epoch"] = None if steps is None else steps - first
            model.fit(x, callbacks=run, **part, **options)
            if not run.ended:
                run.undo_average()
        run.end()
    run.history = model.history
    return run


class TerminateOnNaN(keras.callbacks.TerminateOnNaN):
    """Stops training at a NaN or infinite loss, or after an epoch if weights are NaN or infinite.

    The loss does not show all NaN weights: on TensorFlow, ReLU can turn NaN into 0, so that the loss stays finite.

    Example:
    >>> model = keras_vit.ViT("Ti/16", image_size=32, num_classes=2, num_layers=1)
    >>> model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    >>> callbacks = [keras_vit.training.TerminateOnNaN()]
    >>> _ = model.fit(np.zeros((2, 32, 32, 3)), np.zeros(2), callbacks=callbacks, verbose=0)
    """

    def on_epoch_end(self, epoch, logs=None):
        if found := non_finite_weights(self.model):
            print(f"\nStopped after epoch {epoch + 1}: {len(found)} weights are NaN or infinite, such as {found[0]!r}.")
            self.model.stop_training = True


# Compile only runs with more steps than this. A compiled ViT-B/16 saves the time of its compilation in about 200 steps.
FEWEST_STEPS = 200


def compile_forward(model):
    """Compiles the forward pass of a model on PyTorch, as `model.compile(jit_compile=True)` does for keras_vit models.

    Use it for a model that contains a model of this package, for example with your own head. Keras'
    `jit_compile=True` would compile the whole train step of such a model, which takes many minutes. After
    `compile_forward`, the first batch of training and the first batch of evaluation take longer. After
    `model.compile(jit_compile=False)`, a model of this package runs without compilation again.

    Args:
        model: A built `keras.Model`; if it has no layers of this package, a ValueError is raised.

    Raises:
        RuntimeError: If the backend is not PyTorch, or PyTorch cannot compile on this machine.

    Example:
    >>> vit = keras_vit.ViT("Ti/16", image_size=32, num_layers=1, num_classes=0)
    >>> model = keras.Sequential([keras.Input((32, 32, 3)), vit, keras.layers.Dense(2)])
    >>> model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    >>> if keras.backend.backend() == "torch":
    ...     compile_forward(model)
    """
    if keras.backend.backend() != "torch":
        problem = f"Expected the PyTorch backend. Received: {keras.backend.backend()}"
        raise RuntimeError(f"{problem}. On this backend, use model.compile(jit_compile=True)")
    forward.set_compiled(model)


def compile_long_run(model, num_steps, verbose=1):
    """Compiles runs of more than `FEWEST_STEPS` steps on a GPU with PyTorch. If this fails, prints the reason."""
    if keras.backend.backend() != "torch" or num_steps <= FEWEST_STEPS:
        return
    if model.variables[0].value.device.type == "cpu":
        return
    if reason := forward.why_not(model):
        if verbose:
            print(f"The model trains without compilation: {reason}. {forward.REMEDY}.")
        return
    compile_forward(model)
