import keras

from keras_vit.training.callbacks import Resume
from keras_vit.training.processes import check_one_process


def fit(model, make_dataset, epochs, *, resume, callbacks=(), verbose="auto", **options):
    """Trains as `model.fit` does, on a dataset made anew for each epoch, and resumes at the step where it was.

    This is the way to train on a `tf.data.Dataset` that is shuffled and augmented anew in each epoch. The global random
    seeds are set by the epoch's number before the dataset is made, so a resumed run sees the very batches that the
    uninterrupted one would have, also where the dataset's own seeds are not given. A dataset of `keras_vit.data` is
    told the epoch, so that `make_dataset` may return the same one each time.

    Args:
        model: A compiled and built `keras.Model`.
        make_dataset: Function of the epoch's number (int, from 0) that returns one epoch of data: a `tf.data.Dataset`
            or anything else that `model.fit` takes as `x`.
        epochs: Int, number of epochs of the whole run, counted from its very start.
        resume: `Resume`, or the path of the folder for one with its defaults.
        callbacks: Callbacks, as for `model.fit`. They see one run, with one beginning and one end. Their states are
            saved with the run, as those of the callbacks given to `Resume` are.
        verbose: As for `model.fit`.
        **options: Other arguments of `model.fit`: validation_data, validation_freq, class_weight, ...

    Returns:
        The `keras.callbacks.History` of the whole run, also of epochs before the last start.

    Raises:
        ValueError: As `Resume` does.
        RuntimeError: In one of several processes of PyTorch.

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
    check_one_process()
    resume = resume if isinstance(resume, Resume) else Resume(resume)
    given = resume.callbacks
    resume.callbacks = [*(given or []), *callbacks]
    try:
        return _fit(model, make_dataset, epochs, resume, verbose, options)
    finally:
        resume.callbacks = given


def _fit(model, make_dataset, epochs, resume, verbose, options):
    params = {"verbose": verbose, "epochs": epochs, "steps": None}
    run = _OneRun([resume], add_history=True, add_progbar=verbose != 0, model=model, **params)
    # Where metrics are not built, the first fit of a process looks at the first batch, and a dataset that is shuffled
    # anew by each iterator would then not give the order that it gives in a later epoch.
    resume.set_seeds(0)
    model.evaluate(make_dataset(0), steps=1, verbose=0)
    # fit does so before on_train_begin.
    model.make_train_function()
    optimizer = model.optimizer
    # Each fit would put the moving average in the weights' place: once is enough, after the last.
    optimizer.finalize_variable_values = lambda variables: None
    try:
        run.begin()
        for epoch in range(epochs if resume.stopped else resume.epoch, epochs):
            resume.set_seeds(epoch)
            dataset = make_dataset(epoch)
            if hasattr(dataset, "set_epoch"):
                dataset.set_epoch(epoch)
            run.set_params({**params, "steps": _length(dataset)})
            # Keras warns where it is to shuffle what it cannot, which a tf.data.Dataset is.
            order = {"shuffle": False} if hasattr(dataset, "element_spec") else {}
            model.fit(
                dataset,
                initial_epoch=epoch,
                epochs=epoch + 1,
                callbacks=run,
                verbose=verbose,
                **{**order, **options},
            )
            if model.stop_training:
                break
    finally:
        del optimizer.finalize_variable_values
    optimizer.finalize_variable_values(model.trainable_weights)
    run.end()
    return model.history


class _OneRun(keras.callbacks.CallbackList):
    """Callbacks for which several calls of fit are one run."""

    def begin(self):
        super().on_train_begin()

    def end(self):
        super().on_train_end()

    def on_train_begin(self, logs=None):
        """Nothing: `begin` has been called."""

    def on_train_end(self, logs=None):
        """Nothing: `end` will be called."""


def _length(dataset):
    """The number of batches, or None where it is not known."""
    try:
        return len(dataset)
    except TypeError:
        return None
