"""Measures how much a stronger teacher helps a small DeiT-style student on Fashion-MNIST, over several seeds.

A convolutional teacher is trained on all 60,000 images. For each seed, a small ViT with a distillation token is trained
on fewer images, with and without the teacher, from the same initial weights, on the same batches and with the same
optimizer. The test accuracy is measured after the last step, with the mean of the two heads as output.

Results are written after each run; with the same settings, an interrupted benchmark resumes.

    KERAS_BACKEND=tensorflow python benchmarks/distillation.py --data-dir ~/tensorflow_datasets --teacher teacher.keras
"""

import argparse
import json
import os
import pathlib
import platform
import statistics
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np

import keras_vit
from keras_vit.distillation import Distiller
from keras_vit.files import replacing

STUDENT = {"image_size": 28, "patch_size": 4, "in_channels": 1, "num_classes": 10, "distillation_token": True}
STUDENT |= {"hidden_dim": 64, "num_layers": 4, "num_heads": 4, "mlp_dim": 128}
KINDS = ("without", "with")
BATCH = 128
# These arguments are not settings of a run, so a run may resume with other values.
PLACES = ("data_dir", "out", "teacher", "seeds")


class Batches(keras.utils.PyDataset):
    """Shuffled batches with random flips and shifts of up to two pixels, determined by the seed."""

    def __init__(self, images, labels, seed):
        super().__init__()
        self.images, self.labels = np.pad(images, ((0, 0), (2, 2), (2, 2), (0, 0)), constant_values=-1), labels
        self.seed, self.epoch = seed, 0
        self.on_epoch_begin()

    def on_epoch_begin(self):
        self.order = np.random.default_rng([self.seed, self.epoch]).permutation(len(self.labels))

    def on_epoch_end(self):
        self.epoch += 1
        self.on_epoch_begin()

    def __len__(self):
        return len(self.labels) // BATCH

    def __getitem__(self, i):
        rng = np.random.default_rng([self.seed, self.epoch, i])
        chosen = self.order[i * BATCH : (i + 1) * BATCH]
        places = rng.integers(5, size=(BATCH, 2))
        images = np.stack([self.images[j, a : a + 28, b : b + 28] for j, (a, b) in zip(chosen, places, strict=True)])
        mirrored = rng.random(BATCH) < 0.5
        images[mirrored] = images[mirrored, :, ::-1]
        return images, self.labels[chosen]


def load(split, data_dir):
    """Returns Fashion-MNIST images in [-1, 1] and labels, from a TFDS folder or an .npz file."""
    if data_dir.endswith(".npz"):
        with np.load(data_dir, allow_pickle=False) as file:
            images, labels = file[f"{split}_images"], file[f"{split}_labels"]
    else:
        import tensorflow_datasets as tfds

        data = tfds.load("fashion_mnist", split=split, data_dir=data_dir, download=False, batch_size=-1)
        images, labels = data["image"].numpy(), data["label"].numpy()
    return (images.astype("float32") - 127.5) / 127.5, labels.astype("int32")


def compiled(model, epochs, steps, rate, weight_decay):
    warm_up = epochs * steps // 10
    schedule = keras.optimizers.schedules.CosineDecay(0.0, epochs * steps - warm_up, 0.0, "cosine", rate, warm_up)
    optimizer = keras.optimizers.AdamW(schedule, weight_decay=weight_decay)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=["accuracy"])
    return model


def build_teacher():
    x = inputs = keras.Input((28, 28, 1))
    for width, count in ((32, 2), (64, 2), (128, 1)):
        for _ in range(count):
            x = keras.layers.Conv2D(width, 3, padding="same", use_bias=False)(x)
            x = keras.layers.ReLU()(keras.layers.BatchNormalization(momentum=0.9)(x))
        x = keras.layers.MaxPooling2D()(x) if width < 128 else keras.layers.GlobalAveragePooling2D()(x)
    return keras.Model(inputs, keras.layers.Dense(10)(x), name="teacher")


def train_teacher(args, train, test):
    """Trains the teacher, or loads it if it exists; returns it with its results."""
    facts = args.teacher.with_suffix(".json")
    if args.teacher.exists() and facts.exists():
        return keras.saving.load_model(args.teacher), json.loads(facts.read_text(encoding="utf-8"))
    keras.utils.set_random_seed(0)
    batches = Batches(train[0][: args.teacher_images], train[1][: args.teacher_images], seed=0)
    teacher = compiled(build_teacher(), args.teacher_epochs, len(batches), rate=4e-3, weight_decay=0.01)
    start = time.perf_counter()
    teacher.fit(batches, epochs=args.teacher_epochs, verbose=2)
    seconds = time.perf_counter() - start
    accuracy = teacher.evaluate(*test, batch_size=500, verbose=0, return_dict=True)["accuracy"]
    told = {"accuracy": float(accuracy), "seconds": seconds, "parameters": teacher.count_params()}
    teacher.save(args.teacher)
    facts.write_text(json.dumps(told), encoding="utf-8")
    return teacher, told


def train_student(args, kind, seed, teacher, train, test):
    keras.utils.set_random_seed(seed)
    student = model = keras_vit.ViT("Ti/16", **STUDENT)
    if kind == "with":
        model = Distiller(student, teacher, args.kind, args.alpha, args.temperature)
    batches = Batches(train[0][: args.images], train[1][: args.images], seed=seed)
    compiled(model, args.epochs, len(batches), args.rate, args.weight_decay)
    start = time.perf_counter()
    every = args.validate_every
    validation = {"validation_data": test, "validation_batch_size": 500, "validation_freq": every}
    history = model.fit(batches, epochs=args.epochs, verbose=2, **validation)
    seconds = time.perf_counter() - start
    accuracy = model.evaluate(*test, batch_size=500, verbose=0, return_dict=True)["accuracy"]
    curve = [[every * (i + 1), float(value)] for i, value in enumerate(history.history.get("val_accuracy", []))]
    return {"kind": kind, "seed": seed, "accuracy": float(accuracy), "seconds": seconds, "curve": curve}


def write(out, content):
    for kind in KINDS:
        accuracies = [run["accuracy"] for run in content["runs"] if run["kind"] == kind]
        if accuracies:
            spread = statistics.stdev(accuracies) if len(accuracies) > 1 else None
            content[kind] = {"mean": statistics.mean(accuracies), "standard_deviation": spread}
    with replacing(out) as draft:
        draft.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def draw(out, content):
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4.5), layout="constrained")
    for kind, color in zip(KINDS, ("tab:gray", "tab:blue"), strict=True):
        runs = [run for run in content["runs"] if run["kind"] == kind]
        for i, run in enumerate(runs):
            epochs, accuracies = zip(*run["curve"], strict=True) if run["curve"] else ((), ())
            axes.plot(epochs, accuracies, color=color, alpha=0.8, label=None if i else f"student {kind} teacher")
    axes.axhline(content["teacher"]["accuracy"], color="tab:red", linestyle="--", label="teacher")
    axes.set(xlabel="epoch", ylabel="test accuracy", title=f"Fashion-MNIST, {content['settings']['images']:,} images")
    axes.legend(loc="lower right")
    figure.savefig(out.with_suffix(".png"), dpi=120)
    plt.close(figure)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--data-dir", required=True, help="a folder of TFDS datasets, or an .npz file")
    parser.add_argument(
        "--teacher",
        type=pathlib.Path,
        required=True,
        help="the .keras file of the teacher; if it does not exist, the teacher is trained and saved there",
    )
    parser.add_argument("--teacher-images", type=int, default=60_000)
    parser.add_argument("--teacher-epochs", type=int, default=6)
    parser.add_argument("--images", type=int, default=4_000, help="labelled images of the student (default: 4000)")
    parser.add_argument("--test-images", type=int, default=10_000)
    parser.add_argument("--epochs", type=int, default=60, help="of the student (default: 60)")
    parser.add_argument(
        "--validate-every", type=int, default=15, help="epochs between points of the curve (default: 15)"
    )
    parser.add_argument("--rate", type=float, default=2e-3, help="the student's highest learning rate")
    parser.add_argument("--weight-decay", type=float, default=0.05)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--kind", choices=("hard", "soft"), default="hard")
    parser.add_argument("--alpha", type=float, default=0.5)
    parser.add_argument("--temperature", type=float, default=3.0)
    default = pathlib.Path(__file__).parent / "results" / "distillation.json"
    parser.add_argument(
        "--out",
        type=pathlib.Path,
        default=default,
        help="the JSON file of the results; the PNG is written to the same folder",
    )
    args = parser.parse_args()
    settings = {name: value for name, value in vars(args).items() if name not in PLACES}
    settings |= {"student": STUDENT, "batch_size": BATCH, "backend": keras.backend.backend()}

    train = load("train", args.data_dir)
    test = tuple(array[: args.test_images] for array in load("test", args.data_dir))
    teacher, told = train_teacher(args, train, test)
    print(f"teacher: {told['accuracy']:.4f}")
    content = {
        "keras_vit": keras_vit.__version__,
        "settings": settings,
        "cpu_count": os.cpu_count(),
        "machine": platform.machine(),
        "runs": [],
    }
    if args.out.exists():
        before = json.loads(args.out.read_text(encoding="utf-8"))
        if before["settings"] == settings and before["teacher"] == told:
            content["runs"] = before["runs"]
    content["teacher"] = told
    done = {(run["kind"], run["seed"]) for run in content["runs"]}
    for seed in args.seeds:
        for kind in KINDS:
            if (kind, seed) not in done:
                content["runs"].append(train_student(args, kind, seed, teacher, train, test))
                write(args.out, content)
                draw(args.out, content)
    print("   ".join(["seed", *KINDS]))
    for seed in args.seeds:
        found = {run["kind"]: run["accuracy"] for run in content["runs"] if run["seed"] == seed}
        print(f"{seed:4d}   {found['without']:.4f}   {found['with']:.4f}")
    print("mean   " + "   ".join(f"{content[kind]['mean']:.4f}" for kind in KINDS))


if __name__ == "__main__":
    main()
