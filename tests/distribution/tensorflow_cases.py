"""Trains small models on two logical CPUs of TensorFlow, with a process for each case.

`python -m tests.distribution.tensorflow_cases FOLDER NAME ...` reads the images in FOLDER/images and writes the results
of the named cases to FOLDER/results.json.
"""

import contextlib
import functools
import json
import multiprocessing
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import keras
import numpy as np

from keras_vit import data, from_pretrained, save_weights, training
from keras_vit.distillation import Distiller
from keras_vit.distribution import synchronize
from keras_vit.training import SAM, SGD, AdamW, LayerDecay
from tests.distribution.children import message
from tests.tiny import Kill, Losses, build, randomize
from tests.training.test_running import TINY

RNG = np.random.default_rng(0)
BATCH, STEPS = 8, 10
IMAGES = RNG.normal(size=(BATCH * STEPS, 16, 16, 3)).astype("float32")
LABELS = RNG.integers(5, size=len(IMAGES))
LONG = ["distiller", "run"]


def optimizer(**options):
    # The gradient of a key's bias is rounding noise. With a smaller epsilon, Adam would amplify it.
    return AdamW(1e-3, epsilon=1e-6, **options)


def compiled(model, with_optimizer):
    # TensorFlow would take longer to compile than to train.
    model.compile(with_optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True), jit_compile=False)
    return model


def averaged():
    """A model whose weights are replaced by their moving average at the end of training."""
    return compiled(build(num_layers=1), SGD(0.01, global_clipnorm=None, use_ema=True, ema_momentum=0.9))


def sam():
    # A larger neighborhood amplifies rounding errors, also on one device.
    return compiled(SAM(build(num_layers=1), rho=0.02), keras.optimizers.SGD(0.03, momentum=0.9))


def distiller():
    student, teacher = build(num_layers=1, distillation_token=True), build(num_layers=1)
    return compiled(Distiller(student, teacher), optimizer())


CASES = (averaged, sam, distiller)


def fit(model, images=IMAGES):
    """Returns the losses of each step, and the weights."""
    losses = Losses()
    synchronize(model).fit(images, LABELS, batch_size=BATCH, shuffle=False, callbacks=[losses], verbose=0)
    return {"losses": losses.losses, "weights": [np.abs(w.numpy()).mean().item() for w in model.trainable_weights]}


def train(case, on_two, seed=0):
    keras.utils.set_random_seed(seed)
    with two_devices() if on_two else contextlib.nullcontext():
        return fit(case())


def logical_devices():
    """Splits the CPU in two."""
    import tensorflow as tf

    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)


def two_devices():
    """The scope of a strategy of two logical CPUs."""
    import tensorflow as tf

    logical_devices()
    return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope()


def loaded(folder):
    """The largest difference of a weight on each device, of a model loaded for both, from the file's."""
    import tensorflow as tf

    scope = two_devices()
    saved = randomize(build(num_layers=1))
    save_weights(saved, folder / "vit.safetensors")
    with scope:
        model = from_pretrained(folder / "vit.safetensors", dtype="float32")
        results = tf.distribute.get_strategy().experimental_local_results
        copies = [[copy.numpy() for copy in results(weight.value)] for weight in model.weights]
    wanted = saved.get_weights()
    return [max(float(np.abs(own[i] - w).max()) for own, w in zip(copies, wanted, strict=True)) for i in (0, 1)]


def refusals():
    """Returns the errors for optimizers that need the gradient of the whole batch."""
    found, adam = {}, keras.optimizers.Adam
    settings = {"gradient_accumulation_steps": 2, "clipnorm": 1.0, "clipvalue": 1.0, "global_clipnorm": 1.0}
    optimizers = {name: functools.partial(adam, **{name: value}) for name, value in settings.items()}
    optimizers["LossScaleOptimizer"] = lambda: keras.optimizers.LossScaleOptimizer(adam())
    with two_devices():
        for name, make in optimizers.items():
            model = compiled(build(num_layers=1), make())
            found[name] = message(lambda model=model: synchronize(model))
        model = compiled(build(num_layers=1), LayerDecay.from_model(adam(gradient_accumulation_steps=2), model))
        found["nested"] = message(lambda: synchronize(model))
    return found


def run(folder, name, distribution, kill=None):
    """Trains by a recipe on one device or two; returns its results, or None if it was interrupted."""
    recipe = training.RECIPES["finetune_pets"].replace({**TINY, "steps": 8, "clip": None})
    images = data.splits(Path(folder) / "images", holdout=0.3)
    options = {"weights": "none", "save_every": 1, "distribution": distribution, "verbose": 0}
    if distribution:
        logical_devices()
    try:
        ran = training.run(recipe, images, Path(folder) / name, callbacks=[Kill(kill)] if kill else [], **options)
    except KeyboardInterrupt:
        return None
    return {
        "history": ran.history.history,
        "test": ran.results["test"],
        "first_step": ran.results["first_step"],
        "replicas": ran.model.distribute_strategy.num_replicas_in_sync,
    }


def jobs(folder):
    """Returns lists of functions with their arguments, by name of the case, in the order in which they run."""
    return {
        **{case.__name__: [(train, case, on_two) for on_two in (False, True)] for case in CASES},
        "loaded": [(loaded, folder)],
        "refusals": [(refusals,)],
        "run": [(run, folder, "alone", None), (run, folder, "run", None, 4), (run, folder, "run", "data")],
    }


def in_a_fork(function, *arguments):
    """Returns the result of a function in a process of its own, because two strategies in one process interfere."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as pool:
        return pool.submit(function, *arguments).result()


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    results = {name: [in_a_fork(*job) for job in jobs(folder)[name]] for name in sys.argv[2:]}
    (folder / "results.json").write_text(json.dumps(results))
