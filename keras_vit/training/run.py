"""Runs a recipe: trains and tests as it says, and writes what came out."""

import csv
import dataclasses
import hashlib
import importlib.util
import json
import math
import time
from pathlib import Path
from typing import NamedTuple

import keras

from keras_vit.files import replacing
from keras_vit.models.preprocessing import normalization_of
from keras_vit.training.callbacks import Resume
from keras_vit.training.fitting import fit
from keras_vit.training.from_recipe import build, kind_of_labels, loss, metrics, optimizer
from keras_vit.training.lora import merge_lora
from keras_vit.training.sam import SAM
from keras_vit.training.settings import TEXTS


class Run(NamedTuple):
    """What a run gave: the trained model, what `model.fit` recorded, and what is in `results.json`."""

    model: keras.Model
    history: keras.callbacks.History
    results: dict


def run(recipe, make_dataset, out, *, weights=None, seed=0, save_every=500, callbacks=(), verbose="auto"):
    """Trains and tests a model as a recipe says, on data that a function gives.

    The folder holds `recipe.json`, `checkpoints` (see `Resume`: the same call, made again after the process was
    killed, goes on at the step where it was), `history.csv`, `tensorboard` where that is installed, and at the end
    `model.keras`, which takes raw images of 0..255, and `results.json`.

    Args:
        recipe: A `Recipe`.
        make_dataset: Function of a part, "train" or "test", and the options of `keras_vit.data.pipeline`, which
            returns its dataset.
        out: Path of the run's folder; it is made.
        weights: The checkpoint to start from in the place of the recipe's; "none" for random weights.
        seed: Int, of the initial weights, the order and the augmentation.
        save_every: Int, steps between two checkpoints.
        callbacks: Further Keras callbacks.
        verbose: As for `model.fit`.

    Returns:
        `Run(model, history, results)`.

    Raises:
        ValueError: If the folder holds a run of another recipe, seed or data, or the recipe does not fit the data.
        FloatingPointError: If the loss or a weight became NaN or infinite; the checkpoints before it are kept.

    Example:

    >>> import functools, keras_vit.data
    >>> recipe = keras_vit.training.RECIPES["deit_tiny"].replace({"steps": 1000})
    >>> flowers = functools.partial(keras_vit.data.load, "oxford_flowers102")
    >>> keras_vit.training.run(recipe, flowers, "runs/flowers")  # doctest: +SKIP
    """
    out, started = Path(out), time.time()
    weights = recipe.weights if weights is None else weights
    weights = None if weights == "none" else weights
    keras.utils.set_random_seed(seed)
    options = {"image_size": recipe.image_size, "batch_size": recipe.batch_size, "normalize": False, "seed": seed}
    options["channels"] = recipe.model.get("in_channels", 3)
    labels = make_dataset("test", **options, training=False)
    kind = kind_of_labels(recipe, labels.element_spec)
    if kind == "int" and (recipe.loss == "sigmoid" or recipe.label_smoothing):
        options["labels"] = "one_hot"

    model = build(recipe, labels.num_classes, weights)
    normalization = normalization_of(model)
    # As at prediction: antialiased in any way but the official code's.
    options["interpolation"] = normalization.interpolation
    options["antialias"] = normalization.interpolation != "bilinear"

    def training(skip_batches=0, num_batches=None):
        return make_dataset(
            "train",
            **options,
            training=True,
            repeat=True,
            crop=recipe.crop,
            scale=(recipe.crop_scale, 1.0),
            flip=recipe.flip,
            policy=recipe.policy,
            skip_batches=skip_batches,
            num_batches=num_batches,
        )

    train = training()
    one_hot = len(train.element_spec[1].shape) == 2
    if one_hot and kind == "int":
        options["labels"] = "one_hot"
    test = make_dataset("test", **options, training=False, crop_fraction=normalization.crop_fraction)
    if test.class_names != train.class_names or test.num_classes != train.num_classes:
        raise ValueError(
            f"Expected the classes {train.class_names[:5]} ... of the training images in the test images as well. "
            f"Received: {test.class_names[:5]} ..."
        )
    steps = train.num_images / recipe.batch_size
    total_steps = recipe.steps or max(1, round(recipe.epochs * steps))
    # Short epochs are put together, so that testing and saving after each takes no more time than training.
    steps_per_epoch = max(math.ceil(steps), test.num_images // recipe.batch_size, min(25, total_steps // 20))
    steps_per_epoch = min(total_steps, steps_per_epoch)

    trained = SAM(model, recipe.sam, dtype=recipe.dtype) if recipe.sam else model
    made = optimizer(recipe, model, total_steps, recipe.warmup_steps or round(recipe.warmup_epochs * steps))
    judged = {"loss": loss(recipe, one_hot), "metrics": metrics(train.num_classes, one_hot, kind)}
    trained.compile(made, **judged)

    resume = Resume(out / "checkpoints", save_every, seed=seed)
    _claim(out, {**_identity(recipe, train, test), "weights": str(weights), "seed": seed}, resume)
    broken = set()

    def epoch_of(epoch):
        nonlocal train
        # Each epoch's dataset knows of its own broken images alone, and is too large to keep.
        broken.update(train.broken)
        first = epoch * steps_per_epoch
        train = training(first, min(steps_per_epoch, total_steps - first))
        return train

    history = fit(
        trained,
        epoch_of,
        -(-total_steps // steps_per_epoch),
        resume=resume,
        callbacks=[*_logs(out), *callbacks],
        validation_data=test,
        verbose=verbose,
    )
    if resume.diverged:
        raise FloatingPointError(
            f"The run in {str(out)!r} came to numbers that are not finite, at step {resume.step} of {total_steps}. "
            "A lower learning_rate, a longer warm-up or a smaller clip may help."
        )
    if recipe.train == "lora":
        model = merge_lora(model)
    if model is not trained:
        model.compile("sgd", **judged)
    scores = model.evaluate(test, return_dict=True, verbose=verbose)
    with replacing(out / "model.keras") as draft:
        model.save(draft)
    results = {
        "recipe": dataclasses.asdict(recipe),
        "weights": Path(str(weights)).name,
        "seed": seed,
        "test": {name: float(value) for name, value in scores.items()},
        "train_images": train.num_images,
        "broken_images": sorted(broken.union(train.broken, test.broken)),
        "test_images": test.num_images,
        "steps": total_steps,
        # Of the process that ended the run, which began it at that step.
        "seconds": round(time.time() - started, 1),
        "first_step": resume.first_step,
        "parameters": model.count_params(),
        "backend": keras.backend.backend(),
        "keras": keras.__version__,
        "history": history.history,
        "class_names": train.class_names,
    }
    if resume.first_step < total_steps or not (out / "results.json").exists():
        _write(out / "results.json", results)
    return Run(model, history, results)


def _logs(out):
    """The callbacks that log each epoch."""
    yield _HistoryFile(out / "history.csv")
    # TensorFlow does not install it.
    if importlib.util.find_spec("tensorboard"):
        yield keras.callbacks.TensorBoard(out / "tensorboard")


class _HistoryFile(keras.callbacks.Callback):
    """Writes all epochs to a CSV file after each. `keras.callbacks.CSVLogger` would repeat some after a kill."""

    def __init__(self, path):
        super().__init__()
        self.path = path

    def on_epoch_end(self, epoch, logs=None):
        # This epoch is not in the history yet; those before the last start are.
        columns = {"epoch": [*self.model.history.epoch, epoch]}
        columns |= {name: [*self.model.history.history.get(name, []), value] for name, value in (logs or {}).items()}
        with replacing(self.path) as draft, open(draft, "w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(columns)
            writer.writerows(zip(*columns.values(), strict=False))


def _identity(recipe, train, test):
    """What two runs have in common of which one goes on with the other: the settings and the images."""
    files = [getattr(dataset, "file_paths", []) for dataset in (train, test)]
    return {
        **{key: value for key, value in dataclasses.asdict(recipe).items() if key not in TEXTS},
        "train_images": train.num_images,
        "test_images": test.num_images,
        "class_names": hashlib.sha256(repr(train.class_names).encode()).hexdigest()[:16],
        "files": hashlib.sha256(repr(files).encode()).hexdigest()[:16],
    }


def _claim(out, facts, resume):
    """Makes the folder of a run, unless it holds the checkpoints of another one."""
    path, facts = out / "recipe.json", json.loads(json.dumps(facts))
    out.mkdir(parents=True, exist_ok=True)
    for leftover in out.glob(".*.model.keras"):
        leftover.unlink(missing_ok=True)
    if path.exists() and resume.checkpoints.paths():
        other = json.loads(path.read_text(encoding="utf-8"))
        # A setting that the recipe did not have then had no other value.
        if different := sorted(key for key in facts if facts[key] != other.get(key, facts[key])):
            raise ValueError(
                f"Expected `out` to be a new folder, or that of the same run. {str(out)!r} holds one with "
                + ", ".join(f"{key}={other[key]!r} and not {facts[key]!r}" for key in different)
            )
    _write(path, facts)


def _write(path, facts):
    with replacing(path) as draft:
        draft.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
