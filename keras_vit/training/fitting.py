import math

import keras

from keras_vit.distribution.synchronization import check_synchronized
from keras_vit.prediction.inputs import num_batches
from keras_vit.training.resume import Resume
from keras_vit.training.run_record import data_of


def fit(model, make_dataset, epochs, *, resume, callbacks=(), verbose="auto", **options):
    """Trains like `model.fit`, with a dataset per epoch, and resumes an interrupted run at its last checkpoint.

    Use it for a `tf.data.Dataset` that is shuffled and augmented anew in each epoch. The global random seeds are set
    from the epoch before its dataset is made, so a resumed run sees the same batches as an uninterrupted one.
    `keras_vit.data` datasets also get the epoch by `set_epoch`, so `make_dataset` may return the same one each time.
    Returns the `keras.callbacks.History` of the whole run, including the epochs before a restart.

    Args:
        model: A compiled and built `keras.Model`.
        make_dataset: Function of the epoch (int, from 0) that returns one epoch of data, as `x` of `model.fit`.
        epochs: Int, epochs of the whole run.
        resume: `Resume`, or the path of a folder for one with default arguments.
        callbacks: As for `model.fit`. They see one run with one beginning and end, and `Resume` saves their states.
        verbose: As for `model.fit`.
        **options: Other arguments of `model.fit`: validation_data, validation_freq, class_weight, ...

    Raises:
        ValueError: As `Resume` does.
        RuntimeError: In one of several PyTorch processes without `keras_vit.distribution.synchronize`.

    Example:

    >>> import tempfile
    >>> model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    >>> model.compile("adam", "mse")
    >>> class Data(keras.utils.PyDataset):
    ...     def __len__(self):
    ...         return 4
    ...     def __getitem__(self, i):
    ...         return keras.ops.ones((2, 3)), keras.ops.ones((2, 1))
    >>> history = fit(model, lambda epoch: Data(), epochs=2, resume=tempfile.mkdtemp(), verbose=0)
    >>> len(history.history["loss"])
    2
    """
    check_synchronized(model)
    resume = resume if isinstance(resume, Resume) else Resume(resume)
    given, optimizer = resume.callbacks, model.optimizer
    resume.callbacks = [*(given or []), *callbacks]
    # Each fit would replace the weights by their moving average; only the end of the run may.
    optimizer.finalize_variable_values = lambda variables: None
    try:
        params = {"verbose": verbose, "epochs": epochs, "steps": None}
        run = _OneRun([resume], add_history=True, add_progbar=verbose != 0, model=model, **params)
        # Builds the metrics; otherwise `fit` would on a first batch, and another iterator may shuffle in another order.
        resume.set_seeds(0)
        dataset = make_dataset(0)
        model.evaluate(dataset, steps=1, verbose=0)
        resume.data = data_of(dataset, steps=num_batches(dataset))
        # As fit does before on_train_begin.
        model.make_train_function()
        keras.callbacks.CallbackList.on_train_begin(run)
        for epoch in range(epochs if resume.stopped else resume.epoch, epochs):
            resume.set_seeds(epoch)
            dataset = make_dataset(epoch)
            if hasattr(dataset, "set_epoch"):
                dataset.set_epoch(epoch)
            steps = num_batches(dataset)
            run.set_params({**params, "steps": None if steps == math.inf else steps})
            # Keras warns that it cannot shuffle a tf.data.Dataset.
            order = {"shuffle": False} if hasattr(dataset, "element_spec") else {}
            ends = {"initial_epoch": epoch, "epochs": epoch + 1}
            model.fit(dataset, callbacks=run, verbose=verbose, **ends, **{**order, **options})
            if model.stop_training:
                break
        type(optimizer).finalize_variable_values(optimizer, model.trainable_weights)
        keras.callbacks.CallbackList.on_train_end(run)
    finally:
        del optimizer.finalize_variable_values
        resume.callbacks, resume.data = given, None
    return model.history


class _OneRun(keras.callbacks.CallbackList):
    """Callbacks that see several calls of fit as one run."""

    def on_train_begin(self, logs=None):
        pass

    def on_train_end(self, logs=None):
        pass
