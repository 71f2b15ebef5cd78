"""Trains a small model of each family on CIFAR-10, with similar multiply-adds, and measures accuracy and speed.

Each model is trained for the same number of epochs on the same 50,000 images, with the same optimizer and schedule. The
images are flipped, shifted and partly erased, as in cifar10.py. Nothing was tuned for one family. The convolutional
models enlarge the images to twice the size, since their stems halve each side twice. The test images are used once,
after the last epoch. An interrupted run continues with the models that are not finished.

Speed is the number of images per second of CPU time. Other programs on the machine hardly change this figure.

    KERAS_BACKEND=torch OMP_NUM_THREADS=1 PYTHONPATH=. python benchmarks/families.py --data ~/tensorflow_datasets
"""

import argparse
import os
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
from cifar10 import Batches, read
from measure import resumed, write

import keras_vit
from keras_vit.console import text_table
from keras_vit.training import AdamW, WarmupDecay

RESULTS = Path(__file__).parent / "results" / "families.json"
SETTINGS = {"batch_size": 128, "learning_rate": 1e-3, "weight_decay": 0.05, "label_smoothing": 0.1, "warm_up": 0.05}
_ENCODER = {"hidden_dim": 96, "num_heads": 3, "num_layers": 4, "mlp_dim": 192, "pooling": "gap"}
# {family: (how much larger it sees the images, the model of images of this size)}.
MODELS = {
    "ViT": (1, lambda size: keras_vit.ViT("Ti/16", patch_size=4, **_ENCODER, **size)),
    "hybrid": (
        1,
        lambda size: keras_vit.ViT("R+Ti/16", patch_size=1, stages=(1,), width_factor=0.5, **_ENCODER, **size),
    ),
    "BiT": (2, lambda size: keras_vit.BiT("R50x1", stages=(1, 1, 1), width_factor=0.5, **size)),
    "CoAtNet": (
        2,
        lambda size: keras_vit.CoAtNet(
            "0",
            depths=(1, 2, 2, 1),
            widths=(32, 48, 96, 128),
            stem_widths=(16, 32),
            head_dim=16,
            representation_size=128,
            **size,
        ),
    ),
    "VT-ResNet": (
        2,
        lambda size: keras_vit.VTResNet("R18", stages=(1, 1), width=32, token_dim=128, key_dim=64, **size),
    ),
    "EfficientNet": (2, lambda size: keras_vit.EfficientNet("B0", **size)),
}


def build(family):
    """Returns (the model of images of 32 x 32 pixels, the model within it)."""
    scale, make = MODELS[family]
    inner = make({"image_size": 32 * scale, "num_classes": 10, "include_preprocessing": True})
    images = keras.Input((32, 32, 3))
    larger = images if scale == 1 else keras.layers.Resizing(32 * scale, 32 * scale, name="resize")(images)
    return keras.Model(images, inner(larger)), inner


def row_of(family, data, args):
    """Trains the model of a family; returns its row."""
    keras.utils.set_random_seed(args.seed)
    settings = argparse.Namespace(**SETTINGS, seed=args.seed, erase=10, mixup=0.0)
    model, inner = build(family)
    images, labels = (part[: args.train_images] for part in data["train"])
    batches = Batches(images, labels, settings)
    steps = args.epochs * len(batches)
    schedule = WarmupDecay(settings.learning_rate, total_steps=steps, warmup_steps=round(settings.warm_up * steps))
    loss = keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=settings.label_smoothing)
    model.compile(AdamW(schedule, weight_decay=settings.weight_decay), loss, metrics=["accuracy"])
    # The first call compiles, so it is made before the clock starts.
    model.train_on_batch(*batches[0])
    start, cpu = time.perf_counter(), time.process_time()
    history = model.fit(batches, epochs=args.epochs, verbose=0).history
    seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - cpu
    test_images, test_labels = data["test"]
    test = test_images.astype("float32"), np.eye(10, dtype="float32")[test_labels]
    costs = keras_vit.profile(inner)
    return {
        "family": family,
        "accuracy": model.evaluate(*test, batch_size=500, verbose=0, return_dict=True)["accuracy"],
        "parameters": costs.parameters,
        "multiply_adds": costs.multiply_adds,
        "trained images a CPU second": steps * settings.batch_size / cpu_seconds,
        "seconds": seconds,
        "CPU seconds": cpu_seconds,
        "training accuracy": history["accuracy"],
        "seed": args.seed,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="an .npz file, or a folder of TFDS datasets")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--families", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--train-images", type=int, default=50_000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    found = resumed(args.out, {"epochs": args.epochs, "train_images": args.train_images, **SETTINGS})
    data = read(args.data)
    for family in args.families:
        if any((row["family"], row["seed"]) == (family, args.seed) for row in found["rows"]):
            continue
        found["rows"].append(row_of(family, data, args))
        write(args.out, found)
    columns = ["family", "accuracy", "parameters", "multiply_adds", "trained images a CPU second"]
    print(text_table(columns, [[row[name] for name in columns] for row in found["rows"]], decimals=3))


if __name__ == "__main__":
    main()
