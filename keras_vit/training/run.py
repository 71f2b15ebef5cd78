"""Runs a recipe: builds the model and the optimizer that it says, trains, tests and writes what came out."""

import dataclasses
import importlib.util
import json
import time
from pathlib import Path
from typing import NamedTuple

import keras

from keras_vit.files import replacing
from keras_vit.models import ViT
from keras_vit.training.callbacks import Resume
from keras_vit.training.fitting import fit
from keras_vit.training.freezing import freeze
from keras_vit.training.layer_decay import LayerDecay, layer_multipliers
from keras_vit.training.lora import enable_lora, merge_lora
from keras_vit.training.optimizers import adam, adamw, sgd
from keras_vit.training.sam import SAM
from keras_vit.training.schedules import WarmupDecay


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
        ValueError: If the folder holds a run of another recipe or seed, or the recipe does not fit the data.

    Example:

    >>> import functools, keras_vit.data
    >>> recipe = keras_vit.training.RECIPES["deit_tiny"].replace({"steps": 1000})
    >>> flowers = functools.partial(keras_vit.data.load, "oxford_flowers102")
    >>> keras_vit.training.run(recipe, flowers, "runs/flowers")  # doctest: +SKIP
    """
    out, started = Path(out), time.time()
    weights = {None: recipe.weights, "none": None}.get(weights, weights)
    _claim(out, {**dataclasses.asdict(recipe), "weights": str(weights), "seed": seed})
    keras.utils.set_random_seed(seed)
    options = {"image_size": recipe.image_size, "batch_size": recipe.batch_size, "normalize": False, "seed": seed}
    options["channels"] = recipe.model.get("in_channels", 3)
    smooths = recipe.loss == "sigmoid" or recipe.label_smoothing > 0

    def training(skip_batches=0, num_batches=None):
        return make_dataset(
            "train",
            **options,
            training=True,
            repeat=True,
            crop=recipe.crop,
            scale=(recipe.crop_scale, 1.0),
            policy=recipe.policy,
            labels="one_hot" if smooths else None,
            skip_batches=skip_batches,
            num_batches=num_batches,
        )

    train = training()
    one_hot = len(train.element_spec[1].shape) == 2
    test = make_dataset("test", **options, training=False, labels="one_hot" if one_hot else None)
    if test.class_names != train.class_names or test.num_classes != train.num_classes:
        raise ValueError(
            f"Expected the classes {train.class_names[:5]} ... of the training images in the test images as well. "
            f"Received: {test.class_names[:5]} ..."
        )
    steps_per_epoch = max(1, train.num_images // recipe.batch_size)
    total_steps = recipe.steps or max(1, round(recipe.epochs * steps_per_epoch))
    # Short epochs are put together, so that testing after each takes no more time than training.
    steps_per_epoch = min(total_steps, max(steps_per_epoch, test.num_images // recipe.batch_size))
    epochs = -(-total_steps // steps_per_epoch)

    model = build(recipe, train.num_classes, weights)
    trained = SAM(model, recipe.sam) if recipe.sam else model
    warmup_steps = recipe.warmup_steps or round(recipe.warmup_epochs * train.num_images / recipe.batch_size)
    trained.compile(
        optimizer(recipe, model, total_steps, min(warmup_steps, total_steps - 1)),
        loss(recipe, one_hot),
        metrics=_metrics(train.num_classes, one_hot),
    )

    def epoch_of(epoch):
        first = epoch * steps_per_epoch
        return training(first, min(steps_per_epoch, total_steps - first))

    history = fit(
        trained,
        epoch_of,
        epochs,
        resume=Resume(out / "checkpoints", save_every, seed=seed),
        callbacks=[*_logs(out), *callbacks],
        validation_data=test,
        verbose=verbose,
    )
    if recipe.train == "lora":
        model = merge_lora(model)
        model.compile(loss=loss(recipe, one_hot), metrics=_metrics(train.num_classes, one_hot))
    scores = model.evaluate(test, return_dict=True, verbose=verbose) if not recipe.sam else None
    scores = scores or trained.evaluate(test, return_dict=True, verbose=verbose)
    with replacing(out / "model.keras") as draft:
        model.save(draft)
    results = {
        "recipe": dataclasses.asdict(recipe),
        "weights": str(weights),
        "seed": seed,
        "test": {name: float(value) for name, value in scores.items()},
        "train_images": train.num_images,
        "test_images": test.num_images,
        "steps": total_steps,
        # Of this process: a run that was resumed took longer.
        "seconds": round(time.time() - started, 1),
        "parameters": model.count_params(),
        "backend": keras.backend.backend(),
        "keras": keras.__version__,
        "history": history.history,
        "class_names": train.class_names,
    }
    _write(out / "results.json", results)
    return Run(model, history, results)


def build(recipe, num_classes, weights=None):
    """Builds a recipe's model, with what it does not train frozen; it takes raw images of 0..255.

    Args:
        recipe: A `Recipe`.
        num_classes: Int.
        weights: As for `keras_vit.ViT`.

    Returns:
        A `keras.Model`, not compiled.
    """
    policy = keras.config.dtype_policy()
    keras.config.set_dtype_policy(recipe.dtype)
    try:
        model = ViT(
            recipe.variant,
            **{
                "image_size": recipe.image_size,
                "num_classes": num_classes,
                "weights": weights,
                "include_preprocessing": True,
                **recipe.model,
            },
        )
    finally:
        keras.config.set_dtype_policy(policy)
    if recipe.train == "head":
        freeze(model)
    elif recipe.train == "lora":
        enable_lora(model, recipe.lora_rank)
    return model


def optimizer(recipe, model, total_steps, warmup_steps):
    """Makes a recipe's optimizer.

    Args:
        recipe: A `Recipe`.
        model: The model, for the depths of its layers.
        total_steps: Int.
        warmup_steps: Int.

    Returns:
        A `keras.optimizers.Optimizer`.
    """
    schedule = WarmupDecay(recipe.learning_rate, total_steps, warmup_steps, recipe.decay)
    options = {"global_clipnorm": recipe.clip}
    if recipe.accumulate > 1:
        options["gradient_accumulation_steps"] = recipe.accumulate
    if recipe.ema:
        options |= {"use_ema": True, "ema_momentum": recipe.ema}
    if recipe.optimizer != "sgd":
        options["weight_decay"] = recipe.weight_decay
    made = {"adam": adam, "adamw": adamw, "sgd": sgd}[recipe.optimizer](schedule, **options)
    if recipe.layer_decay:
        made = LayerDecay(made, layer_multipliers(model, recipe.layer_decay))
    return made


def loss(recipe, one_hot):
    """Makes a recipe's loss of logits.

    Args:
        recipe: A `Recipe`.
        one_hot: Bool, whether labels are numbers for each class; integers otherwise.

    Returns:
        A `keras.losses.Loss`.
    """
    if recipe.loss == "sigmoid":
        # Summed over the classes and not averaged, as in the source, so that their number does not change the steps.
        return _SumOverClasses(from_logits=True)
    if one_hot:
        return keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=recipe.label_smoothing)
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


@keras.saving.register_keras_serializable(package="keras_vit")
class _SumOverClasses(keras.losses.BinaryCrossentropy):
    """Binary cross-entropy, summed over the classes."""

    def call(self, y_true, y_pred):
        return super().call(y_true, y_pred) * y_pred.shape[-1]


def _metrics(num_classes, one_hot):
    metrics = ["accuracy"]
    if num_classes > 10:
        kind = keras.metrics.TopKCategoricalAccuracy if one_hot else keras.metrics.SparseTopKCategoricalAccuracy
        metrics.append(kind(5, name="top_5_accuracy"))
    return metrics


def _logs(out):
    """The callbacks that log each epoch; a run that goes on adds to what there is."""
    file = out / "history.csv"
    yield keras.callbacks.CSVLogger(file, append=file.exists())
    # TensorFlow does not install it.
    if importlib.util.find_spec("tensorboard"):
        yield keras.callbacks.TensorBoard(out / "tensorboard")


def _claim(out, facts):
    """Makes the folder of a run, unless it holds another one."""
    path, facts = out / "recipe.json", json.loads(json.dumps(facts))
    if path.exists():
        other = json.loads(path.read_text(encoding="utf-8"))
        if different := sorted(key for key in {**facts, **other} if facts.get(key) != other.get(key)):
            raise ValueError(
                f"Expected `out` to be a new folder, or that of the same run. {str(out)!r} holds one with "
                + ", ".join(f"{key}={other.get(key)!r} and not {facts.get(key)!r}" for key in different)
            )
        return
    out.mkdir(parents=True, exist_ok=True)
    _write(path, facts)


def _write(path, facts):
    with replacing(path) as draft:
        draft.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
