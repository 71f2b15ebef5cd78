"""Trains small models on PyTorch, as one of several processes.

`torchrun --nproc-per-node 2 -m tests.distribution.torch_cases FOLDER NAME ...` writes the results of the named cases to
FOLDER/PROCESS.json and FOLDER/PROCESS.npz.
"""

import json
import os
import sys

import keras
import numpy as np

from keras_vit import training
from keras_vit.distillation import Distiller
from keras_vit.distribution import ReduceMetrics, initialize, num_processes, process_id, reduce_metrics, synchronize
from keras_vit.distribution.processes import torch_group
from keras_vit.distribution.synchronization import check_synchronized, spread_seeds
from keras_vit.pretraining import MAE, SimMIM
from keras_vit.training import SAM, AdamW, LayerDecay, enable_lora
from tests.distribution.children import message
from tests.tiny import Losses, build, dtype_policy, randomize

RNG = np.random.default_rng(0)
BATCH, STEPS = 8, 10
IMAGES = RNG.normal(size=(BATCH * STEPS, 16, 16, 3)).astype("float32")
LABELS = RNG.integers(5, size=len(IMAGES))
NEW_IMAGES, NEW_LABELS = IMAGES[:13] + 0.5, LABELS[:13]


def optimizer(**options):
    # The gradient of a key's bias is rounding noise. With a smaller epsilon, Adam would amplify it.
    return AdamW(1e-3, epsilon=1e-3, **options)


def compiled(model, with_optimizer):
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    # The state of the first metric is a sum, and of the second a matrix of sums.
    metrics = ["accuracy", keras.metrics.MeanIoU(5, sparse_y_pred=False)]
    model.compile(with_optimizer, loss, metrics=metrics)
    return model


def plain():
    return compiled(build(), optimizer())


def sam():
    # A larger neighborhood amplifies rounding errors, also in one process.
    return compiled(SAM(build(), rho=0.02), keras.optimizers.SGD(0.03, momentum=0.9))


def teacher_alone():
    """Returns a distiller whose class head gets no gradient."""
    # Each process has the same teacher.
    teacher = randomize(build(num_layers=1), scale=0.2)
    model = Distiller(build(distillation_token=True), teacher, kind="soft", alpha=1.0)
    model.compile(optimizer())
    return model


def simmim():
    model = SimMIM(build(), mask_ratio=0.5)
    mask = np.arange(16) % 2 == 0
    model.draw = lambda batch_size, seed: {"mask": keras.ops.convert_to_tensor(np.tile(mask, (batch_size, 1)))}
    model.compile(optimizer())
    return model


def mae():
    model = MAE(build(), decoder_num_layers=1, seed=3)
    model.compile(optimizer())
    return model


def lora():
    model = build()
    enable_lora(model, rank=2)
    return compiled(model, LayerDecay.from_model(optimizer(), model, 0.75))


def ema_of_accumulated():
    return compiled(build(), optimizer(use_ema=True, ema_momentum=0.9, gradient_accumulation_steps=2))


def float16():
    with dtype_policy("mixed_float16"):
        # With this scale, all gradients of finite images are finite.
        return compiled(build(), keras.optimizers.LossScaleOptimizer(optimizer(), initial_scale=1024.0))


def dropout():
    model = build(dropout_rate=0.2, attention_dropout_rate=0.2, drop_path_rate=0.3, patch_dropout_rate=0.25)
    return compiled(model, optimizer())


CASES = {case.__name__: case for case in (plain, sam, mae, ema_of_accumulated, float16, dropout)}
CASES |= {case.__name__: case for case in (teacher_alone, simmim, lora)}
LONG = ["teacher_alone", "simmim", "lora"]


def part(array):
    """Returns this process's part of each batch."""
    return array[process_id() :: num_processes()]


def mean(losses):
    """Returns the mean of a list of losses over the processes."""
    import torch

    total = torch.tensor(losses, dtype=torch.float64)
    if group := torch_group():
        group.all_reduce(total)
    return (total / num_processes()).tolist()


def train(case):
    """Returns the losses, the history and the variables, except for random states."""
    # The initial weights of other processes must not matter.
    keras.utils.set_random_seed(1 + process_id())
    model = case()
    synchronize(model)
    images = IMAGES.copy()
    if case is float16:
        # The gradient of this image is not finite. It is in the part of the last process.
        images[BATCH * 3 + 1] = np.inf
    losses = Losses()
    found = {"history": fit(model, images, callbacks=[losses])}
    found["steps"] = mean(losses.losses)
    if case in (plain, sam):
        model.evaluate(*new_images(), batch_size=4, verbose=0)
        found["evaluated"] = reduce_metrics(model)
    if case is plain:
        found |= twice(model)
    if case is float16:
        found["scale"] = float(model.optimizer.dynamic_scale)
    return found, [
        keras.ops.convert_to_numpy(v)
        for v in model.variables + model.optimizer.variables
        if v.name != "seed_generator_state"
    ]


def new_images():
    """Returns this process's part of the images of evaluations, of which the second process has fewer."""
    rows = slice(None) if num_processes() == 1 else [slice(9), slice(9, None)][process_id()]
    return NEW_IMAGES[rows], NEW_LABELS[rows]


def fit(model, images, callbacks=(), **options):
    options = {"batch_size": BATCH // num_processes(), "shuffle": False, "verbose": 0, **options}
    if model.loss is not None:
        options["validation_data"] = new_images()
    labels = part(LABELS[: len(images)])
    return model.fit(part(images), labels, callbacks=[ReduceMetrics(), *callbacks], **options).history


def twice(model):
    """Trains again with frozen weights, with all weights, and as part of another model."""
    block = next(layer for layer in model.layers if "block" in layer.name)
    histories = []
    for trainable in (False, True):
        block.trainable = trainable
        compiled(model, keras.optimizers.SGD(0.01))
        synchronize(model)
        histories.append(fit(model, IMAGES))
    wrapper = compiled(SAM(model), keras.optimizers.SGD(0.01))
    synchronize(wrapper)
    return {"again": [*histories, fit(wrapper, IMAGES)]}


def saved(folder):
    """Returns the difference of an optimizer's state, saved by a process and loaded by Keras, and its moved rate."""
    model = compiled(build(num_layers=1), LayerDecay.from_model(optimizer(), build(num_layers=1), 0.75))
    given = model.optimizer
    synchronize(model)
    fit(model, IMAGES[:BATCH], epochs=1)
    path = f"{folder}/{process_id()}.keras"
    model.save(path)
    loaded = keras.models.load_model(path)
    pairs = zip(loaded.optimizer.variables, model.optimizer.variables, strict=True)
    differences = [float(abs(a - b).max()) for a, b in pairs]
    given.learning_rate = 0.5
    return {
        "kinds": [type(m.optimizer).__name__ for m in (model, loaded)],
        "differences": differences,
        "iterations": int(loaded.optimizer.iterations),
        "rate": float(model.optimizer.learning_rate),
    }


def not_finite():
    """Returns the losses in the logs of two steps if the image of one process is not finite."""
    model = plain()
    synchronize(model)
    images = IMAGES[: 2 * BATCH].copy()
    images[-1] = np.inf
    kept = Losses()
    options = {"batch_size": 4, "shuffle": False, "verbose": 0, "callbacks": [ReduceMetrics(), kept]}
    model.fit(part(images), part(LABELS[: 2 * BATCH]), **options)
    return [bool(np.isfinite(loss)) for loss in kept.losses]


def draws(model):
    """Returns the seeds of the generators and a random number of PyTorch."""
    import torch

    states = [v for v in model.variables if v.name == "seed_generator_state"]
    return [keras.ops.convert_to_numpy(v).tolist() for v in states] + [torch.rand(()).item()]


def seeds():
    """Returns draws after `synchronize`, and after equal seeds are set: twice spread, once not."""
    keras.utils.set_random_seed(5)
    synchronize(model := dropout())
    found = [draws(model)]
    for spread in (True, True, False):
        for variable in model.variables:
            if variable.name == "seed_generator_state":
                variable.assign([7, 0])
        keras.utils.set_random_seed(5)
        if spread:
            spread_seeds(model)
        found.append(draws(model))
    return found


def refusals(folder):
    """Returns the errors that the processes raise together, and those of a model that is not synchronized."""
    model = compiled(build(num_layers=1), "sgd")
    return {
        "model": message(lambda: synchronize(compiled(build(mlp_dim=20 + process_id()), "sgd"))),
        "not compiled": message(lambda: synchronize(build())),
        "check": message(lambda: check_synchronized(model)),
        "fit": message(lambda: training.fit(model, lambda epoch: None, 1, resume=folder)),
        "steps": int(model.optimizer.iterations),
        "is_left": os.path.exists(folder),
    }


if __name__ == "__main__":
    folder, *names = sys.argv[1:]
    initialize()
    results, arrays = {}, {}
    for name in names:
        results[name], values = train(CASES[name])
        arrays |= {f"{name}/{i:04d}": value for i, value in enumerate(values)}
    results |= {"seeds": seeds(), "saved": saved(folder), "not finite": not_finite()}
    results["refusals"] = refusals(f"{folder}/refused")
    np.savez(f"{folder}/{process_id()}.npz", **arrays)
    with open(f"{folder}/{process_id()}.json", "w") as file:
        json.dump(results, file)
    if group := torch_group():
        group.barrier()
