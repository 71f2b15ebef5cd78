"""Runs a recipe: trains and evaluates a model, and writes the results to a folder."""

import dataclasses
import functools
import hashlib
import importlib.util
import json
import time
from pathlib import Path
from typing import NamedTuple

import keras

from keras_vit import arguments
from keras_vit.console import silenced
from keras_vit.distribution.layouts import KINDS, distributed
from keras_vit.distribution.processes import on_one_device, process_id
from keras_vit.distribution.synchronization import ReduceMetrics, reduce_metrics, synchronize
from keras_vit.files import replacing
from keras_vit.training.checkpoints import CheckpointSlots
from keras_vit.training.checks import preflight
from keras_vit.training.fitting import compile_long_run
from keras_vit.training.fitting import train as fit_run
from keras_vit.training.sam import SAM
from keras_vit.training.settings import TEXTS, Recipe, batch_size_for, build, kind_of_labels, lengths, loss, metrics
from keras_vit.training.settings import optimizer as build_optimizer
from keras_vit.training.trainable import merge_lora
from keras_vit.version import __version__


class Run(NamedTuple):
    """The trained model, the history of `model.fit`, and the contents of `results.json`."""

    model: keras.Model
    history: keras.callbacks.History
    results: dict


def run(
    recipe,
    make_dataset,
    out,
    *,
    weights=None,
    seed=0,
    save_every=500,
    callbacks=(),
    distribution=None,
    model_devices=None,
    verbose="auto",
):
    """Trains and evaluates a model by a recipe; returns `Run(model, history, results)`.

    First, `preflight` checks the model and the data. During the run, the folder `out` contains `recipe.json`,
    `history.csv`, the folder `checkpoints` and, if TensorBoard is installed, the folder `tensorboard`. At the end,
    `results.json` and `model.keras` are added. The model in `model.keras` takes images with pixels from 0 to 255 and
    contains the class names. If a run is killed, the same call resumes it at the last checkpoint.

    Args:
        recipe: A `Recipe`.
        make_dataset: Function that returns a dataset. The function's first argument is "train" or "test", and its
            keyword arguments are options of `keras_vit.data.pipeline`.
        out: Path of the run's folder, which is created.
        weights: The checkpoint to start from, as in `Recipe`. None uses the recipe's checkpoint, and "none" uses random
            weights.
        seed: Int, the random seed of the initial weights, the order of the images and their augmentation.
        save_every: Int, steps between checkpoints.
        callbacks: Additional Keras callbacks.
        distribution, model_devices: As for `keras_vit.distribution.distributed`. A resumed run may use other devices.
            With several processes (see `keras_vit.distribution.initialize`), call `run` in each process with the same
            arguments and the same folder.
        verbose: As for `model.fit`; 0 also hides the summary.

    Raises:
        ValueError: If the folder contains a run with another recipe, seed or data, the recipe does not fit the data, or
            the batch size is not a multiple of the number of devices that share a batch.
        RuntimeError: If the backend does not support this distribution; the message contains a remedy.
        FloatingPointError: If the loss or a weight became NaN or infinite; earlier checkpoints are kept.

    Example:
    >>> import functools, keras_vit.data
    >>> recipe = keras_vit.training.RECIPES["deit_tiny"].replace({"steps": 1000})
    >>> flowers = functools.partial(keras_vit.data.load, "oxford_flowers102")
    >>> keras_vit.training.run(recipe, flowers, "runs/flowers")  # doctest: +SKIP
    """
    arguments.instance("recipe", recipe, Recipe)
    arguments.function("make_dataset", make_dataset)
    arguments.path("out", out)
    arguments.optional(arguments.path, "weights", weights)
    arguments.positive_int("save_every", save_every)
    callbacks = arguments.several("callbacks", callbacks)
    arguments.choice("distribution", distribution, (None, *KINDS))
    arguments.choice("verbose", verbose, (0, 1, 2, "auto"))
    seed = int(arguments.non_negative_int("seed", seed, 2**32 - 1))
    with distributed(distribution, model_devices) as split:
        return _run(recipe, make_dataset, Path(out), split, weights, seed, save_every, callbacks, verbose)


def _run(recipe, make_dataset, out, split, weights, seed, save_every, callbacks, verbose):
    started, writes = time.time(), process_id() == 0
    verbose = verbose if writes else 0
    weights = recipe.weights if weights is None else weights
    weights = None if weights == "none" else weights
    keras.utils.set_random_seed(seed)
    options = {"image_size": recipe.image_size, "normalize": False, "seed": seed}
    options["channels"] = recipe.model.get("in_channels", 3)
    labels = make_dataset("train", **options, batch_size=1, training=False)
    kind = kind_of_labels(recipe, labels.element_spec)
    if kind == "int" and (recipe.loss == "sigmoid" or recipe.label_smoothing):
        options["labels"] = "one_hot"
    if recipe.batch_size is None:
        recipe = recipe.replace({"batch_size": batch_size_for(labels.num_images)})
    if recipe.batch_size % split.parts:
        expected = f"Expected a `batch_size` that is a multiple of the {split.parts} devices that share a batch"
        raise ValueError(f"{expected}. Received: {recipe.batch_size}")
    with silenced(verbose == 0):
        model = build(recipe, labels.num_classes, weights, labels.class_names)
    options |= {"batch_size": recipe.batch_size, "preprocessing": model}
    options |= {"num_shards": split.num_shards, "shard_index": split.shard_index}
    augmented = {"crop": recipe.crop, "flip": recipe.flip, "augment": recipe.policy}
    if recipe.crop == "pretrain":
        augmented["scale"] = (recipe.crop_scale, 1.0)
    training = functools.partial(make_dataset, "train", training=True, repeat=True, **augmented, **options)
    train = training()
    one_hot = len(train.element_spec[1].shape) == 2
    if one_hot and kind == "int":
        options["labels"] = "one_hot"
    # Pad the test batches, so that all devices get equally many images. Padding has weight 0 in the metrics.
    test = make_dataset("test", **options, training=False, pad_remainder=split.parts > 1)
    if test.class_names != train.class_names or test.num_classes != train.num_classes:
        expected = f"Expected test images with the classes of the training images, {train.class_names[:5]} ..."
        raise ValueError(f"{expected}. Received: {test.class_names[:5]} ...")
    length = lengths(recipe, train.num_images, test.num_images)

    trained = SAM(model, recipe.sam, dtype=recipe.dtype) if recipe.sam else model
    compile_options = {"loss": loss(recipe, one_hot)}
    compile_options["weighted_metrics" if split.parts > 1 else "metrics"] = metrics(train.num_classes, one_hot, kind)
    trained.compile(build_optimizer(recipe, model, length.total, length.warmup), **compile_options)
    synchronize(trained)
    compile_long_run(trained, length.total, verbose)

    # These settings and images must be the same when the run is resumed.
    facts = {key: value for key, value in dataclasses.asdict(recipe).items() if key not in TEXTS}
    facts |= {"train_images": train.num_images, "test_images": test.num_images, "weights": str(weights), "seed": seed}
    files = [getattr(dataset, "file_paths", []) for dataset in (train, test)]
    for name, values in (("class_names", train.class_names), ("files", files)):
        facts[name] = hashlib.sha256(repr(values).encode()).hexdigest()[:16]
    checkpoints = out / "checkpoints"
    path = out / "recipe.json"
    if path.is_file() and CheckpointSlots(checkpoints).paths():
        here, other = json.loads(json.dumps(facts)), json.loads(path.read_text(encoding="utf-8"))
        # If `recipe.json` lacks a setting, an older version of this package wrote the file. Do not compare the setting.
        different = sorted(key for key in here if here[key] != other.get(key, here[key]))
        if listed := ", ".join(f"{key}={other[key]!r} and not {here[key]!r}" for key in different):
            expected = "Expected `out` to be a new folder, or the folder of the same run"
            raise ValueError(f"{expected}. Received: {str(out)!r}, the folder of a run with {listed}")
    lengths_of_fit = {"epochs": length.total / length.epoch, "steps_per_epoch": length.epoch}
    preflight(trained, train, validation_data=test, **lengths_of_fit, verbose=int(verbose != 0))
    if writes:
        out.mkdir(parents=True, exist_ok=True)
        _write(path, facts)
    # Keep the names of the broken images of earlier epochs, but not the datasets, because a dataset takes much memory.
    broken, reading = set(), train

    # Cache the dataset, because `fit` calls this function twice for the first epoch.
    @functools.lru_cache(maxsize=1)
    def make_epoch(epoch):
        nonlocal reading
        broken.update(reading.broken)
        first = epoch * length.epoch
        reading = training(skip_batches=first, num_batches=min(length.epoch, length.total - first))
        return reading

    logs = [ReduceMetrics()]
    if writes:
        logs.append(keras.callbacks.CSVLogger(out / "history.csv"))
    if writes and importlib.util.find_spec("tensorboard"):
        logs.append(keras.callbacks.TensorBoard(out / "tensorboard"))
    resumed = {"resume": checkpoints, "save_every": save_every, "seed": seed, "callbacks": [*logs, *callbacks]}
    ended = fit_run(trained, make_epoch, length.epochs, **resumed, validation_data=test, verbose=verbose)
    if ended.diverged:
        problem = f"The run in {str(out)!r} reached non-finite values at step {ended.step} of {length.total}"
        raise FloatingPointError(f"{problem}. A lower learning_rate, a longer warm-up or a smaller clip may help.")
    if recipe.train == "lora":
        model = merge_lora(model)
    if model is not trained:
        model.compile("sgd", **compile_options)
        synchronize(model)
    model.evaluate(test, verbose=verbose)
    scores = reduce_metrics(model)
    whole = on_one_device(model)
    if writes:
        with replacing(out / "model.keras") as draft:
            whole.save(draft)
    results = {
        "recipe": dataclasses.asdict(recipe),
        "weights": Path(str(weights)).name,
        "seed": seed,
        "test": {name: float(value) for name, value in scores.items()},
        "train_images": train.num_images,
        "broken_images": sorted(broken.union(reading.broken, test.broken)),
        "test_images": test.num_images,
        "steps": ended.step,
        # The seconds that this process took. If this process resumed the run, it began at step `first_step`.
        "seconds": round(time.time() - started, 1),
        "first_step": ended.first_step,
        "parameters": model.count_params(),
        "backend": keras.backend.backend(),
        "keras": keras.__version__,
        "keras_vit": __version__,
        "history": ended.history.history,
        "class_names": train.class_names,
        # The names of a table's columns of paths and labels. None without a table, and for images with several labels,
        # because a submission contains one class per image.
        "table_columns": getattr(train, "table_columns", None) if kind == "int" else None,
    }
    if writes and (ended.first_step < ended.step or not (out / "results.json").exists()):
        _write(out / "results.json", results)
    return Run(model, ended.history, results)


def _write(path, facts):
    with replacing(path) as draft:
        draft.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
