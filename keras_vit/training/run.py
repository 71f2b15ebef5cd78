"""Runs a recipe: trains and tests as it says, and writes what came out."""

import dataclasses
import time
from pathlib import Path
from typing import NamedTuple

import keras

from keras_vit.files import replacing
from keras_vit.training.callbacks import Resume
from keras_vit.training.fitting import fit
from keras_vit.training.from_recipe import build, kind_of_labels, loss, metrics, optimizer
from keras_vit.training.lengths import batch_size_for, lengths
from keras_vit.training.lora import merge_lora
from keras_vit.training.preflight import preflight
from keras_vit.training.run_folder import claim, identity, logs, refuse_another, write
from keras_vit.training.sam import SAM


class Run(NamedTuple):
    """What a run gave: the trained model, what `model.fit` recorded, and what is in `results.json`."""

    model: keras.Model
    history: keras.callbacks.History
    results: dict


def run(recipe, make_dataset, out, *, weights=None, seed=0, save_every=500, callbacks=(), verbose="auto"):
    """Trains and tests a model as a recipe says, on data that a function gives.

    Before it begins, `preflight` stops what cannot be right, and shows on one screen what will be.
    The folder holds `recipe.json`, `checkpoints` (see `Resume`: the same call, made again after the process was
    killed, goes on at the step where it was), `history.csv`, `tensorboard` where that is installed, and at the end
    `model.keras`, which takes raw images of 0..255 and carries the names of its classes, and `results.json`.

    Args:
        recipe: A `Recipe`.
        make_dataset: Function of a part, "train" or "test", and the options of `keras_vit.data.pipeline`, which
            returns its dataset.
        out: Path of the run's folder; it is made.
        weights: The checkpoint to start from in the place of the recipe's; "none" for random weights.
        seed: Int, of the initial weights, the order and the augmentation.
        save_every: Int, steps between two checkpoints.
        callbacks: Further Keras callbacks.
        verbose: As for `model.fit`; 0 shows no screen before it.

    Returns:
        `Run(model, history, results)`.

    Raises:
        ValueError: If the folder holds a run of another recipe, seed or data, or the recipe does not fit the data: see
            `preflight`.
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
    options = {"image_size": recipe.image_size, "normalize": False, "seed": seed}
    options["channels"] = recipe.model.get("in_channels", 3)
    labels = make_dataset("train", **options, batch_size=1, training=False)
    kind = kind_of_labels(recipe, labels.element_spec)
    if kind == "int" and (recipe.loss == "sigmoid" or recipe.label_smoothing):
        options["labels"] = "one_hot"
    if recipe.batch_size is None:
        recipe = recipe.replace({"batch_size": batch_size_for(labels.num_images)})
    options["batch_size"] = recipe.batch_size

    model = build(recipe, labels.num_classes, weights, labels.class_names)
    options["preprocessing"] = model

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
    test = make_dataset("test", **options, training=False)
    if test.class_names != train.class_names or test.num_classes != train.num_classes:
        raise ValueError(
            f"Expected the classes {train.class_names[:5]} ... of the training images in the test images as well. "
            f"Received: {test.class_names[:5]} ..."
        )
    length = lengths(recipe, train.num_images, test.num_images)

    trained = SAM(model, recipe.sam, dtype=recipe.dtype) if recipe.sam else model
    judged = {"loss": loss(recipe, one_hot), "metrics": metrics(train.num_classes, one_hot, kind)}
    trained.compile(optimizer(recipe, model, length.total, length.warmup), **judged)

    resume = Resume(out / "checkpoints", save_every, seed=seed)
    claimed = {**identity(recipe, train, test), "weights": str(weights), "seed": seed}
    refuse_another(out, claimed, resume)
    preflight(
        trained,
        train,
        validation_data=test,
        epochs=length.total / length.epoch,
        steps_per_epoch=length.epoch,
        out=out,
        verbose=int(verbose != 0),
    )
    claim(out, claimed)
    broken = set()

    def epoch_of(epoch):
        nonlocal train
        # Each epoch's dataset knows of its own broken images alone, and is too large to keep.
        broken.update(train.broken)
        first = epoch * length.epoch
        train = training(first, min(length.epoch, length.total - first))
        return train

    history = fit(
        trained,
        epoch_of,
        length.epochs,
        resume=resume,
        callbacks=[*logs(out), *callbacks],
        validation_data=test,
        verbose=verbose,
    )
    if resume.diverged:
        raise FloatingPointError(
            f"The run in {str(out)!r} came to numbers that are not finite, at step {resume.step} of {length.total}. "
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
        "steps": length.total,
        # Of the process that ended the run, which began it at that step.
        "seconds": round(time.time() - started, 1),
        "first_step": resume.first_step,
        "parameters": model.count_params(),
        "backend": keras.backend.backend(),
        "keras": keras.__version__,
        "history": history.history,
        "class_names": train.class_names,
    }
    if resume.first_step < length.total or not (out / "results.json").exists():
        write(out / "results.json", results)
    return Run(model, history, results)
