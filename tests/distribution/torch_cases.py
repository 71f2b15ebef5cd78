"""Trains small models on PyTorch, as process R of N; as a program, writes what came of it for the test to compare."""

import json
import sys

import keras
import numpy as np

from keras_vit.distillation import Distiller
from keras_vit.distribution import torch_processes
from keras_vit.pretraining import MAE, SimMIM
from keras_vit.training import SAM, LayerDecay, adamw, enable_lora, layer_multipliers
from tests.tiny import build, randomize

RNG = np.random.default_rng(0)
BATCH, STEPS = 8, 10
IMAGES = RNG.normal(size=(BATCH * STEPS, 16, 16, 3)).astype("float32")
LABELS = RNG.integers(5, size=len(IMAGES))
NEW_IMAGES, NEW_LABELS = IMAGES[:13] + 0.5, LABELS[:13]


class Losses(keras.callbacks.Callback):
    """The logs of each step."""

    def on_train_begin(self, logs=None):
        self.steps = []

    def on_train_batch_end(self, batch, logs=None):
        self.steps.append({name: float(value) for name, value in logs.items()})


def optimizer(**options):
    # The gradient of a key's bias is rounding noise, which Adam would otherwise blow up.
    return adamw(1e-3, epsilon=1e-3, **options)


def compiled(model, with_optimizer):
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    # A sum, and a matrix of sums.
    metrics = ["accuracy", keras.metrics.MeanIoU(5, sparse_y_pred=False)]
    model.compile(with_optimizer, loss, metrics=metrics)
    return model


def plain():
    return compiled(build(), optimizer())


def sam():
    # A larger neighborhood blows up rounding, with one process as well.
    return compiled(SAM(build(), rho=0.02), keras.optimizers.SGD(0.03, momentum=0.9))


def teacher():
    """The same in each process, which is left to the user."""
    return randomize(build(num_layers=1), scale=0.2)


def distiller():
    return compiled(Distiller(build(distillation_token=True), teacher()), optimizer())


def teacher_alone():
    """Its class head gets no gradient."""
    model = Distiller(build(distillation_token=True), teacher(), kind="soft", alpha=1.0)
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
    return compiled(model, LayerDecay(optimizer(), layer_multipliers(model, 0.75)))


def ema_of_accumulated():
    return compiled(build(), optimizer(use_ema=True, ema_momentum=0.9, gradient_accumulation_steps=2))


def float16():
    """With an image, in the part of the last process, whose gradient is not finite."""
    keras.config.set_dtype_policy("mixed_float16")
    try:
        # Small enough for all gradients that are finite.
        return compiled(build(), keras.optimizers.LossScaleOptimizer(optimizer(), initial_scale=1024.0))
    finally:
        keras.config.set_dtype_policy("float32")


def dropout():
    model = build(dropout_rate=0.2, attention_dropout_rate=0.2, drop_path_rate=0.3, patch_dropout_rate=0.25)
    return compiled(model, optimizer())


CASES = (plain, sam, distiller, teacher_alone, simmim, mae, lora, ema_of_accumulated, float16, dropout)


def part(array):
    """This process's part of each batch."""
    return array[torch_processes.process_id() :: torch_processes.num_processes()]


def train(case):
    """Returns the logs and the variables, except for random states."""
    # What the other processes begin with must not count.
    keras.utils.set_random_seed(1 + torch_processes.process_id())
    model = case()
    torch_processes.synchronize(model)
    images = IMAGES.copy()
    if case is float16:
        images[BATCH * 3 + 1] = np.inf
    losses = Losses()
    history = fit(model, images, callbacks=[losses])
    found = {"steps": losses.steps, "history": history}
    if case in (plain, sam, distiller):
        # 13 images: in 4 batches for one process; in 3 and 1 for two.
        cut = {1: [slice(None)], 2: [slice(9), slice(9, None)]}[torch_processes.num_processes()]
        rows = cut[torch_processes.process_id()]
        found["evaluated"] = model.evaluate(
            NEW_IMAGES[rows], NEW_LABELS[rows], batch_size=4, verbose=0, return_dict=True
        )
    if case is plain:
        found |= twice(model)
    if case is float16:
        found["scale"] = float(model.optimizer.dynamic_scale)
    return found, [
        keras.ops.convert_to_numpy(v)
        for v in model.variables + model.optimizer.variables
        if v.name != "seed_generator_state"
    ]


def fit(model, images, **options):
    size = BATCH // torch_processes.num_processes()
    options = {"batch_size": size, "shuffle": False, "verbose": 0, **options}
    return model.fit(part(images), part(LABELS), **options).history


def twice(model):
    """Trains on with other weights frozen, synchronized again each time, and as part of another model."""
    block = next(layer for layer in model.layers if "block" in layer.name)
    histories = []
    for trainable in (False, True):
        block.trainable = trainable
        compiled(model, keras.optimizers.SGD(0.01))
        torch_processes.synchronize(model)
        histories.append(fit(model, IMAGES))
    # The weights already have their hooks.
    wrapper = compiled(SAM(model), keras.optimizers.SGD(0.01))
    torch_processes.synchronize(wrapper)
    return {"again": [*histories, fit(wrapper, IMAGES)]}


def draws(model):
    """The seeds of the generators and a number of PyTorch's own."""
    import torch

    states = [v for v in model.variables if v.name == "seed_generator_state"]
    return [keras.ops.convert_to_numpy(v).tolist() for v in states] + [torch.rand(()).item()]


def seeds():
    """What is drawn after `synchronize`, and after the same seeds are set: twice spread, once not."""
    keras.utils.set_random_seed(5)
    torch_processes.synchronize(model := dropout())
    found = [draws(model)]
    for spread in (True, True, False):
        for variable in model.variables:
            if variable.name == "seed_generator_state":
                variable.assign([7, 0])
        keras.utils.set_random_seed(5)
        if spread:
            torch_processes.spread_seeds(model)
        found.append(draws(model))
    return found


def refusals(coordinator):
    """The messages of what the processes refuse together."""
    count, here = torch_processes.num_processes(), torch_processes.process_id()
    torch_processes.initialize(coordinator, count, here)
    calls = {
        "group": lambda: torch_processes.initialize(coordinator, count + 1, here),
        "model": lambda: torch_processes.synchronize(compiled(build(mlp_dim=20 + here), "sgd")),
    }
    found = {}
    for name, call in calls.items():
        try:
            call()
        except ValueError as error:
            found[name] = str(error)
    return found


if __name__ == "__main__":
    coordinator, count, here, path = sys.argv[1:]
    torch_processes.initialize(coordinator, int(count), int(here), timeout=60)
    results, arrays = {}, {}
    for case in CASES:
        results[case.__name__], values = train(case)
        arrays |= {f"{case.__name__}/{i:04d}": value for i, value in enumerate(values)}
    results["seeds"], results["refusals"] = seeds(), refusals(coordinator)
    np.savez(f"{path}/{here}.npz", **arrays)
    with open(f"{path}/{here}.json", "w") as file:
        json.dump(results, file)
    torch_processes.barrier()
