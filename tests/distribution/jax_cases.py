"""Trains small models on parts of the 8 devices of one JAX process.

`python -m tests.distribution.jax_cases FOLDER NAME ...` reads the images in FOLDER/images and writes the results of
the named cases to FOLDER/results.json.
"""

import contextlib
import functools
import json
import sys
from pathlib import Path

import keras
import numpy as np

import keras_vit
from keras_vit import data, evaluation, training
from keras_vit.distillation import Distiller
from keras_vit.distribution import data_parallel, describe, device_mesh, fsdp, layout_map, tensor_parallel
from keras_vit.pretraining import MAE
from keras_vit.training.fitting import train as train_run
from tests.distribution.children import message
from tests.tiny import Kill, Losses, build

FOLDER = Path(sys.argv[1]) if __name__ == "__main__" else None
RNG = np.random.default_rng(0)
# The gradient of a key's bias is rounding noise. With a smaller epsilon, Adam would amplify it.
EPSILON = 1e-6
PICTURES, LABELS = RNG.normal(size=(64, 16, 16, 3)).astype("float32"), RNG.integers(5, size=64)


def mesh(count, model=1):
    return device_mesh(model, keras.distribution.list_devices()[:count])


def keras_mesh():
    """Returns a mesh with the axis names of Keras' documents."""
    return keras.distribution.DeviceMesh((2, 2), ["batch", "model"], keras.distribution.list_devices()[:4])


def on(layouts):
    """Returns a context of these layouts; None is one device."""
    return contextlib.nullcontext() if layouts is None else layouts.scope()


@functools.cache
def pictures():
    """Images of 30 batches, cut and flipped at random, and their labels."""
    options = {"batch_size": 8, "crop": "pretrain", "flip": True, "normalize": False, "repeat": True, "num_batches": 30}
    batches = data.from_directory(FOLDER / "images", seed=1, image_size=32, **options).as_numpy_iterator()
    return [np.concatenate(arrays) for arrays in zip(*batches, strict=True)]


def curve(layouts, num_heads=3, **options):
    """The losses of 30 steps of a ViT-Ti/8 of two blocks on a few devices."""
    with on(layouts):
        keras.utils.set_random_seed(0)
        options |= {"image_size": 32, "num_layers": 2, "num_classes": 4, "head_init": "glorot_uniform"}
        model = keras_vit.ViT("Ti/8", num_heads=num_heads, include_preprocessing=True, **options)
        compiled(model, training.AdamW(3e-4, 0.1, epsilon=EPSILON))
        losses = Losses()
        model.fit(*pictures(), batch_size=8, shuffle=False, callbacks=[losses], verbose=0)
    return losses.losses


RANDOM = {"dropout_rate": 0.2, "attention_dropout_rate": 0.1, "drop_path_rate": 0.3}
SPLITS = {
    "data 2": lambda: data_parallel(mesh(2)),
    "data 4": lambda: data_parallel(mesh(4)),
    "data 8": lambda: data_parallel(mesh(8)),
    "fsdp 4": lambda: fsdp(mesh(4), 1024),
    "tensor 2 x 2": lambda: tensor_parallel(mesh(4, 2)),
    "fsdp+tensor 2 x 2": lambda: fsdp(keras_mesh(), 1024, layouts=layout_map(keras_mesh())),
}
KINDS = {
    # Two devices cannot share 3 heads.
    "3 heads": ({}, list(SPLITS)),
    "4 heads, random": ({"num_heads": 4, **RANDOM}, ["data 4", "tensor 2 x 2", "fsdp+tensor 2 x 2"]),
    "4 heads, bfloat16": ({"num_heads": 4, "dtype": "mixed_bfloat16"}, ["data 4", "tensor 2 x 2"]),
}


def curves(kind):
    """The losses of a kind of model, on one device ("one") and each split."""
    options, names = KINDS[kind]
    return {"one": curve(None, **options)} | {name: curve(SPLITS[name](), **options) for name in names}


def tiny(**changes):
    return build(**{"image_size": 16, "hidden_dim": 16, "num_heads": 4, "mlp_dim": 24, "num_layers": 1, **changes})


def with_lora(model):
    training.enable_lora(model, 2)
    return model


FAMILIES = {
    "map": lambda: tiny(pooling="map"),
    "registers, qk_norm": lambda: tiny(num_registers=2, qk_norm=True),
    "relative": lambda: tiny(position_embedding="relative"),
    "gated, rotary": lambda: tiny(gated_mlp=True, rotary_embedding="axial", mlp_norm=True),
    "key_bias": lambda: tiny(key_bias=False),
    "qkv_bias": lambda: tiny(qkv_bias=False),
    "hybrid": lambda: tiny(patch_size=1, stages=(1,), image_size=32, width_factor=0.5),
    "bit": lambda: keras_vit.BiT("R50x1", image_size=32, num_classes=3, stages=(1, 1), width_factor=0.5),
    "lora": lambda: with_lora(tiny()),
}


def tensor_parallel_output(family):
    """The axes of each variable in tensor parallelism, and the difference of the outputs from those of one device."""
    make = FAMILIES[family]
    model = make()
    weights = [RNG.normal(scale=0.1, size=w.shape).astype("float32") for w in model.get_weights()]
    pictures = RNG.normal(size=(4, *model.input_shape[1:])).astype("float32")
    model.set_weights(weights)
    expected = model.predict(pictures, verbose=0)
    layouts = tensor_parallel(keras_mesh())
    with layouts.scope():
        split = make()
        split.set_weights(weights)
        result = split.predict(pictures, verbose=0)
        axes = {v.path: layouts.get_variable_layout(v).axes for v in split.variables}
        placed = {v.path: str(v.value.sharding.spec) for v in split.variables}
    return {
        "difference": float(np.abs(result - expected).max() / np.abs(expected).max()),
        "axes": axes,
        "placed": {path: "model" in spec for path, spec in placed.items()},
    }


def compiled(model, optimizer=None, labelled=True, **options):
    optimizer = training.AdamW(1e-3, epsilon=EPSILON) if optimizer is None else optimizer
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss if labelled else None, **options)
    return model


def small(**changes):
    return build(num_layers=1, dropout_rate=0.2, drop_path_rate=0.2, **changes)


def averaging():
    return training.AdamW(1e-3, epsilon=EPSILON, use_ema=True, ema_momentum=0.9)


TRAINERS = {
    "sam": lambda: compiled(training.SAM(small(), rho=0.02), keras.optimizers.SGD(0.03, momentum=0.9)),
    "distiller": lambda: compiled(Distiller(small(distillation_token=True), build(num_layers=1))),
    # At the end, the weights are their moving average.
    "mae": lambda: compiled(MAE(small(), decoder_num_layers=1), averaging(), labelled=False),
    "lora": lambda: compiled(with_lora(small())),
}


def train(make, layouts):
    """The losses of 8 steps, with dropout and random masks, and the largest number of each weight."""
    with on(layouts):
        keras.utils.set_random_seed(0)
        model = make()
        losses = Losses()
        model.fit(PICTURES, LABELS, batch_size=8, epochs=1, callbacks=[losses], shuffle=False, verbose=0)
        weights = [float(np.abs(keras.ops.convert_to_numpy(v)).max()) for v in model.trainable_variables]
    return {"losses": losses.losses, "weights": weights}


def trainer(name):
    return {"one": train(TRAINERS[name], None), "data 4": train(TRAINERS[name], data_parallel(mesh(4)))}


def evaluated(layouts):
    """Features, few-shot and k-NN accuracies of images that the devices do not divide."""
    with on(layouts):
        keras.utils.set_random_seed(0)
        model = build()
        parts = (PICTURES[:40], LABELS[:40]), (PICTURES[40:61], LABELS[40:61])
        features, labels = evaluation.extract_features(model, parts[0], batch_size=16, verbose=0)
        few = evaluation.few_shot_accuracy(model, *parts, shots=3, batch_size=16, verbose=0)
        return {
            "features": np.abs(features).sum(axis=1).tolist(),
            "labels": labels.tolist(),
            "few-shot": list(few["by_l2"].values()),
            "k-NN": evaluation.knn_accuracy(model, *parts, k=5, batch_size=16, verbose=0),
        }


def descriptions():
    """The results of `describe` for a ViT on one device and on 8, and its errors."""
    found = {}
    split = {"data": data_parallel(mesh(8)), "fsdp": fsdp(mesh(8), 16), "tensor": tensor_parallel(keras_mesh())}
    # The axis of the batch is the second.
    split["turned"] = fsdp(keras.distribution.DeviceMesh((1, 8), ["model", "batch"]), 16)
    for name, layouts in {"one": None, **split}.items():
        with on(layouts):
            options = {"num_layers": 2, "num_heads": 4, "num_classes": 8, "head_init": "glorot_uniform"}
            model = keras_vit.ViT("Ti/8", image_size=32, **options)
            compiled(model)
            whole, step = describe(model), describe(model, batch_size=16)
            found[name] = {**step._asdict(), "text": str(step), "variables": whole._asdict()}
    with data_parallel(mesh(8)).scope():
        model = build()
        found["not compiled"] = message(lambda: describe(model))
        compiled(model)
        found["batch"] = message(lambda: describe(model, 12))
    return found


def run(kind, name, batch_size=8):
    """Trains by a recipe on one device (None) or all 8; returns the results, and the weights of the saved model."""
    changes = {"variant": "Ti/8", "image_size": 16, "model.num_layers": 1, "model.dropout_rate": 0.1}
    changes |= {"batch_size": batch_size, "warmup_steps": 2, "steps": 10}
    recipe = training.RECIPES["finetune_pets"].replace(changes)
    images = data.splits(FOLDER / "images", holdout=0.25)
    ran = training.run(recipe, images, FOLDER / name, weights="none", verbose=0, distribution=kind)
    saved = keras.models.load_model(FOLDER / name / "model.keras")
    weights = [float(abs(weight).max()) for weight in saved.get_weights()]
    return {"history": ran.history.history, "test": ran.results["test"], "weights": weights}


def refused_run():
    """The error of a batch that the devices cannot share, and whether it leaves a folder."""
    return message(lambda: run("data", "refused", 5)), (FOLDER / "refused").exists()


# Each layout resumes the fit of the layout before it.
CHAIN = (lambda: data_parallel(mesh(8)), lambda: fsdp(mesh(8), 16), lambda: None)


def fit_and_resume(folder, layouts, kill=None):
    """Trains two epochs of 8 steps of 8 images; returns the history and the step at which it began."""
    with on(layouts):
        keras.utils.set_random_seed(0)
        model = compiled(small(), metrics=["accuracy"])
        callbacks = [] if kill is None else [Kill(kill)]
        with contextlib.suppress(KeyboardInterrupt):
            options = {"resume": folder, "save_every": 1, "batch_size": 8, "callbacks": callbacks, "verbose": 0}
            run = train_run(model, (PICTURES, LABELS), 2, **options)
            return {"history": run.history.history, "first_step": run.first_step}


def chain():
    """An uninterrupted fit on one device, and one that is resumed on other devices after each interruption."""
    *others, last = CHAIN
    found = {"alone": fit_and_resume(FOLDER / "fit", None), "positions": []}
    for layouts in others:
        # The last step is not saved.
        fit_and_resume(FOLDER / "chain", layouts(), kill=4)
        found["positions"].append(max(path.name for path in (FOLDER / "chain").iterdir()))
    return {**found, "other": fit_and_resume(FOLDER / "chain", last())}


CASES = {
    **{f"curves, {kind}": functools.partial(curves, kind) for kind in KINDS},
    **{f"family {name}": functools.partial(tensor_parallel_output, name) for name in FAMILIES},
    **{f"trainer {name}": functools.partial(trainer, name) for name in TRAINERS},
    "evaluations": lambda: {"one": evaluated(None), "data 4": evaluated(data_parallel(mesh(4)))},
    "runs": lambda: {"one": run(None, "one"), "fsdp": run("fsdp", "fsdp")},
    **{case.__name__: case for case in (descriptions, chain, refused_run)},
}
NORMAL = {f"family {name}" for name in ("map", "registers, qk_norm", "key_bias", "qkv_bias", "hybrid")}
NORMAL |= {"trainer sam", "trainer mae", "evaluations"}
LONG = [name for name in CASES if name not in NORMAL | {"descriptions", "chain", "refused_run"}]

if __name__ == "__main__":
    (FOLDER / "results.json").write_text(json.dumps({name: CASES[name]() for name in sys.argv[2:]}))
