"""Trains small models in low precision at a high learning rate, and looks for the first step that is not finite.

A ViT and a hybrid learn scikit-learn's digits, enlarged to 32 pixels, for 200 steps with the recipes' AdamW at a
constant learning rate of 3e-3, without warm-up or clipping. Losses become infinite more easily than with any recipe.
float16 uses Keras' loss scaling. Each backend adds its runs to the same file; an interrupted benchmark resumes:

    for backend in tensorflow jax torch; do KERAS_BACKEND=$backend python benchmarks/low_precision.py; done
"""

import argparse
import json
import os
import pathlib
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
from sklearn.datasets import load_digits

import keras_vit
from keras_vit.files import replacing

SIZES = {"image_size": 32, "num_classes": 10, "hidden_dim": 64, "num_layers": 3, "num_heads": 4, "mlp_dim": 256}
MODELS = {"vit": {"patch_size": 8}, "hybrid": {"patch_size": 1, "stages": (1, 1), "width_factor": 0.5}}
POLICIES = ("mixed_bfloat16", "mixed_float16")
STEPS, BATCH, RATE = 200, 8, 3e-3


def load():
    """Returns training and test images in [-1, 1], (number, 32, 32, 3), and labels."""
    digits = load_digits()
    images = np.repeat(np.repeat(digits.images, 4, axis=1), 4, axis=2)[..., None] / 8 - 1
    images = np.repeat(images, 3, axis=-1).astype("float32")
    return (images[:1500], digits.target[:1500]), (images[1500:], digits.target[1500:])


def compiled(name, policy):
    """Returns a compiled model and its optimizer's first state."""
    model = keras_vit.ViT("Ti/16", dtype=policy, **SIZES, **MODELS[name])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    # XLA takes minutes to compile float16 for CPUs in TensorFlow.
    jit_compile = False if keras.backend.backend() == "tensorflow" else "auto"
    model.compile(keras_vit.training.AdamW(RATE), loss, metrics=["accuracy"], jit_compile=jit_compile)
    model.optimizer.build(model.trainable_variables)
    return model, [keras.ops.convert_to_numpy(variable) for variable in model.optimizer.variables]


def train(model, state, name, policy, seed, data, test):
    """Trains the compiled model from the initial weights of a seed; returns the facts of the run."""
    keras.utils.set_random_seed(seed)
    model.set_weights(keras_vit.ViT("Ti/16", dtype=policy, **SIZES, **MODELS[name]).get_weights())
    for variable, value in zip(model.optimizer.variables, state, strict=True):
        variable.assign(value)
    rng, losses = np.random.default_rng(seed), []
    start = time.perf_counter()
    for _ in range(STEPS):
        batch = rng.choice(len(data[0]), BATCH, replace=False)
        # Without this reset, the loss would be the mean over all steps so far.
        model.reset_metrics()
        losses.append(float(model.train_on_batch(data[0][batch], data[1][batch], return_dict=True)["loss"]))
    seconds = time.perf_counter() - start
    wrong = np.flatnonzero(~np.isfinite(losses))
    scale = getattr(model.optimizer, "dynamic_scale", None)
    return {
        "backend": keras.backend.backend(),
        "model": name,
        "policy": policy,
        "seed": seed,
        "first_step_not_finite": int(wrong[0]) if len(wrong) else None,
        "finite_weights": all(np.isfinite(weight).all() for weight in model.get_weights()),
        "first_loss": losses[0],
        "last_loss": float(np.mean(losses[-20:])),
        "accuracy": model.evaluate(*test, verbose=0, return_dict=True)["accuracy"],
        "loss_scale": None if scale is None else float(scale),
        "seconds": round(seconds, 1),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    default = pathlib.Path(__file__).parent / "results" / "low_precision.json"
    parser.add_argument("--out", type=pathlib.Path, default=default)
    args = parser.parse_args()
    data, test = load()
    settings = {"sizes": SIZES, "models": MODELS, "steps": STEPS, "batch_size": BATCH, "learning_rate": RATE}
    runs = json.loads(args.out.read_text(encoding="utf-8"))["runs"] if args.out.exists() else []
    done = [(run["backend"], run["model"], run["policy"], run["seed"]) for run in runs]
    for name in MODELS:
        for policy in POLICIES:
            seeds = [seed for seed in args.seeds if (keras.backend.backend(), name, policy, seed) not in done]
            model, state = compiled(name, policy) if seeds else (None, None)
            for seed in seeds:
                run = train(model, state, name, policy, seed, data, test)
                runs.append(run)
                print(*run.values())
                with replacing(args.out) as draft:
                    content = {"keras_vit": keras_vit.__version__, "settings": settings, "runs": runs}
                    draft.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
