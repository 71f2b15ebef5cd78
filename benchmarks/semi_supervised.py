"""Trains on 1,000 labelled and 59,000 unlabelled images: supervised, Noisy Student and Meta Pseudo Labels.

The images are Fashion-MNIST, and the accuracy is measured on the 10,000 test images. All models are the same small
convolutional network. Each student starts from random weights and takes the same number of updates:

    supervised      Trains on the labelled images only, with the weak augmentation.
    noisy_student   Two rounds with soft labels and strongly augmented batches. The first teacher is the supervised
                    model.
    meta            Two thirds of the updates by Meta Pseudo Labels: the student never trains on the labels itself. Its
                    teacher starts from the supervised model.
    meta_finetuned  The student of `meta`, fine-tuned on the labelled images for the last third of the updates.

The weak augmentation is a random flip and shifts of up to 2 pixels. The strong augmentation adds a black square and a
random contrast. The cost of a method is the number of images that all its models, including teachers, processed forward
and backward, and the number that they processed only forward. The curves show ten measurements per run on the first
2,000 test images. The result is the accuracy on all test images after the last update. `--validation` holds out the
last 5,000 training images and measures the accuracy on these, to choose settings. Results are written after each run,
so an interrupted benchmark continues where it stopped. `--quick` is a test run of a few seconds.

Two choices were made with --validation and seed 0. The first are the learning rates, batch sizes and losses, at 1,000
updates: Noisy Student gained 0.004 over the supervised model, and Meta Pseudo Labels lost 0.012. The second are the
default numbers, 3,000 updates and four unlabelled images for each labelled image: Noisy Student gained 0.029, and Meta
Pseudo Labels 0.021. The small ViT of pretraining.py gained nothing.

    python benchmarks/semi_supervised.py --data-dir ~/tensorflow_datasets
"""

import argparse
import functools
import json
import pathlib
import statistics
import tempfile
import time

import keras
import numpy as np
from measure import environment, write
from pretraining import optimizer_for, read_images

from keras_vit.files import replacing
from keras_vit.semi_supervised import MetaPseudoLabels, noisy_student

METHODS = ("supervised", "noisy_student", "meta", "meta_finetuned")
QUICK = {
    "updates": 10,
    "batch_size": 10,
    "unlabelled_factor": 2,
    "num_labels": 50,
    "threshold": 0.0,
}
HELD_OUT = 5000
CURVE_IMAGES, CURVE_POINTS = 2000, 10


def build_model(noise=0.0):
    x = inputs = keras.Input((28, 28, 1))
    x = keras.layers.Rescaling(1 / 127.5, -1)(x)
    for width in (32, 64):
        x = keras.layers.Conv2D(width, 3, 2, padding="same", activation="relu", kernel_initializer="he_normal")(x)
    x = keras.layers.Dense(128, activation="relu", kernel_initializer="he_normal")(keras.layers.Flatten()(x))
    return keras.Model(inputs, keras.layers.Dense(10)(keras.layers.Dropout(noise)(x)))


def augment(images, rng, square=0):
    """Flips and shifts images, (batch, height, width, 1); with `square`, also applies the strong augmentation."""
    count, side = images.shape[:2]
    rows, columns = (np.clip(np.arange(side) + rng.integers(-2, 3, (count, 1)), 0, side - 1) for _ in range(2))
    columns = np.where(rng.random((count, 1)) < 0.5, columns[:, ::-1], columns)
    images = images[np.arange(count)[:, None, None], rows[:, :, None], columns[:, None, :]].astype("float32")
    if square:
        images = np.clip(images * rng.uniform(0.5, 1.5, (count, 1, 1, 1)), 0, 255).astype("float32")
        starts = rng.integers(-(square // 2), side - square // 2, (2, count, 1))
        down, right = ((np.arange(side) >= start) & (np.arange(side) < start + square) for start in starts)
        images[down[:, :, None] & right[:, None, :]] = 0
    return images


class Steps(keras.utils.PyDataset):
    """Batches that a function makes of a random generator; each step has its own."""

    def __init__(self, make, steps, seed):
        super().__init__()
        self.make, self.steps, self.seed = make, steps, seed

    def __len__(self):
        return self.steps

    def __getitem__(self, index):
        return self.make(np.random.default_rng([self.seed, index]))


class Curve(keras.callbacks.Callback):
    """Collects `points`, (updates, accuracy) of a model on some images while a trainer is fitted."""

    def __init__(self, model, images, classes, updates):
        super().__init__()
        self.watched, self.images, self.classes = model, images, classes
        self.every, self.points = max(1, updates // CURVE_POINTS), []

    def on_train_batch_end(self, batch, logs=None):
        if (batch + 1) % self.every == 0:
            _ = self.model  # On JAX, reading `self.model` writes the training state to the variables.
            self.points.append((batch + 1, accuracy(self.watched, self.images, self.classes)))


def accuracy(model, images, classes):
    batches = np.split(images.astype("float32"), range(500, len(images), 500))
    logits = [keras.ops.convert_to_numpy(model(batch, training=False)) for batch in batches]
    return float((np.concatenate(logits).argmax(axis=1) == classes).mean())


class Run:
    """One seed: the split of the images, and the methods."""

    def __init__(self, data, settings, seed):
        self.settings, self.seed = settings, seed
        (images, classes), self.test = data["train"], data["test"]
        rng = np.random.default_rng(seed)
        per_class = settings["num_labels"] // 10
        labelled = np.concatenate([rng.permutation(np.flatnonzero(classes == k))[:per_class] for k in range(10)])
        self.images, self.classes = images[labelled], classes[labelled].astype("int32")
        self.unlabelled = np.delete(images, labelled, axis=0)
        self.size, self.more = settings["batch_size"], settings["batch_size"] * settings["unlabelled_factor"]

    def draw(self, rng, square=0):
        """Returns a batch of augmented labelled images and their classes."""
        chosen = rng.integers(len(self.images), size=self.size)
        return augment(self.images[chosen], rng, square), self.classes[chosen]

    def fit(self, trainer, make, updates, model=None):
        """Fits a compiled model, and returns the curve of it or of the model that it trains."""
        images, classes = (array[:CURVE_IMAGES] for array in self.test)
        curve = Curve(model or trainer, images, classes, updates)
        trainer.fit(Steps(make, updates, self.seed), verbose=0, shuffle=False, callbacks=[curve])
        return curve.points

    def fit_student(self, model, make, updates, loss, rate="learning_rate"):
        model.compile(optimizer_for(self.settings[rate], updates), loss)
        return self.fit(model, make, updates)

    def accuracy(self, model):
        return accuracy(model, *self.test)

    @functools.cached_property
    def teacher(self):
        """Returns the supervised model and its curve."""
        keras.utils.set_random_seed(self.seed)
        model = build_model(self.settings["dropout"])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        return model, self.fit_student(model, self.draw, self.settings["updates"], loss)

    def supervised(self):
        model, curve = self.teacher
        return {"test_accuracy": self.accuracy(model), "curve": curve}

    def noisy_student(self):
        accuracies, curves, smoothing = [], [], 0.1
        loss = keras.losses.CategoricalCrossentropy(from_logits=True)

        def train(student, labels, checkpoints):
            def batch(rng):
                images, classes = self.draw(rng, self.settings["square"])
                chosen = rng.integers(len(labels), size=self.more)
                pseudo = augment(self.unlabelled[labels.indices[chosen]], rng, self.settings["square"])
                smooth = np.eye(10, dtype="float32")[classes] * (1 - smoothing) + smoothing / 10
                # Weight the rows like keras_vit.data.with_pseudo_labels, because Keras divides by the number of rows.
                rows = self.size + self.more
                weights = np.repeat([rows / self.size, rows / self.more], [self.size, self.more]).astype("float32")
                return np.concatenate([images, pseudo]), np.concatenate([smooth, labels.labels[chosen]]), weights

            curves.append(self.fit_student(student, batch, self.settings["updates"], loss, "student_learning_rate"))
            accuracies.append(self.accuracy(student))

        build = functools.partial(build_model, self.settings["noise"])
        (teacher, _), images = self.teacher, self.unlabelled.astype("float32")
        with tempfile.TemporaryDirectory() as folder:
            options = {"threshold": self.settings["threshold"], "seed": self.seed, "batch_size": 500}
            noisy_student(teacher, [build, build], images, train, folder, **options)
        first, last = curves
        rest = {"first_round": accuracies[0], "first_round_curve": first, "teacher": self.accuracy(teacher)}
        return {"test_accuracy": accuracies[-1], "curve": last, **rest}

    @functools.cached_property
    def meta_models(self):
        """Returns the teacher, the student and the curve of the student."""
        supervised, _ = self.teacher
        keras.utils.set_random_seed(self.seed)
        teacher, student = (build_model() for _ in range(2))
        teacher.set_weights(supervised.get_weights())
        updates, _ = meta_updates(self.settings)
        uda = {name: self.settings[name] for name in ("uda_weight", "uda_threshold", "uda_temperature")}
        # With label smoothing, the teacher's probabilities stay low, so many labels drawn from them would be wrong.
        uda["label_smoothing"] = 0.0
        trainer = MetaPseudoLabels(teacher, student, uda_steps=updates // 6, seed=self.seed, **uda)
        rates = (self.settings[name] for name in ("student_learning_rate", "teacher_learning_rate"))
        trainer.compile(*(optimizer_for(rate, updates) for rate in rates))

        def batch(rng):
            images, classes = self.draw(rng)
            chosen = self.unlabelled[rng.integers(len(self.unlabelled), size=self.more)]
            return (images, augment(chosen, rng), augment(chosen, rng, self.settings["meta_square"])), classes

        return teacher, student, self.fit(trainer, batch, updates, student)

    def meta(self):
        teacher, student, curve = self.meta_models
        return {"test_accuracy": self.accuracy(student), "curve": curve, "teacher": self.accuracy(teacher)}

    def meta_finetuned(self):
        _, trained, _ = self.meta_models
        student = keras.models.clone_model(trained)
        student.set_weights(trained.get_weights())
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        before, updates = meta_updates(self.settings)
        curve = self.fit_student(student, self.draw, updates, loss, "finetuning_learning_rate")
        return {"test_accuracy": self.accuracy(student), "curve": [(before + at, value) for at, value in curve]}


def meta_updates(settings):
    """Returns the updates of the student of Meta Pseudo Labels, and those of its fine-tuning: a third of all."""
    finetuning = settings["updates"] // 3
    return settings["updates"] - finetuning, finetuning


def compute(settings, num_unlabelled):
    """Returns the images taken forward and backward, and forward alone, by method; teachers included."""
    updates, size = settings["updates"], settings["batch_size"]
    more = size * settings["unlabelled_factor"]
    supervised = updates * size
    # One update: the student's step, its loss on labelled images before and after, the teacher's labels, and
    # the teacher's step on all images.
    first, last = meta_updates(settings)
    meta = supervised + first * (more + size + 2 * more), first * (2 * size + more)
    return {
        "supervised": (supervised, 0),
        "noisy_student": (supervised + 2 * updates * (size + more), 2 * num_unlabelled),
        "meta": meta,
        "meta_finetuned": (meta[0] + last * size, meta[1]),
    }


def summarize(runs):
    """Returns mean and spread over seeds per method, and the gain per seed over the supervised model."""
    summary = {}
    for method in METHODS:
        accuracies = {k.split("/")[1]: v["test_accuracy"] for k, v in runs.items() if k.startswith(f"{method}/")}
        if accuracies:
            values = list(accuracies.values())
            baselines = {seed: runs[f"supervised/{seed}"] for seed in accuracies if f"supervised/{seed}" in runs}
            summary[method] = {
                "mean": statistics.mean(values),
                "standard_deviation": statistics.stdev(values) if len(values) > 1 else None,
                "gain_over_supervised": [accuracies[k] - row["test_accuracy"] for k, row in baselines.items()],
            }
    return summary


def draw(runs, images, path):
    """Plots the accuracy by updates, and the last one by the images that were trained on."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.6, 4.0), layout="constrained")
    curves, costs = figure.subplots(1, 2, sharey=True)
    for number, method in enumerate(METHODS):
        rows = [row for key, row in runs.items() if key.startswith(f"{method}/")]
        style = {"color": f"C{number}", "label": method}
        for row in rows:
            if "curve" in row:
                curves.plot(*zip(*row["curve"], strict=True), alpha=0.7, **style)
                style.pop("label", None)
        accuracies = [row["test_accuracy"] for row in rows]
        costs.plot([images[method][0]] * len(rows), accuracies, "o", color=f"C{number}", alpha=0.7, label=method)
    curves.set(xlabel="updates of the student", ylabel="accuracy", title="2,000 test images, each seed")
    costs.set(xlabel="images forward and backward, all models", title="All test images, each seed")
    for axes in (curves, costs):
        axes.grid(alpha=0.3)
        axes.legend(loc="lower right")
    with replacing(path) as draft:
        figure.savefig(draft, format="png", dpi=110)


def synthetic():
    """Returns synthetic images, which replace Fashion-MNIST in a quick trial of the benchmark."""
    rng = np.random.default_rng(0)
    patterns = rng.integers(0, 200, (10, 28, 28, 1))
    arrays = {}
    for split, count in (("train", 600), ("test", 200)):
        classes = np.arange(count) % 10
        arrays[split] = (patterns[classes] + rng.integers(0, 56, (count, 28, 28, 1))).astype("uint8"), classes
    return arrays


def parse_arguments(argv):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--data-dir", help="the folder of TFDS datasets, or an .npz file of {train,test}_{images,labels}")
    add("--out", type=pathlib.Path, help="the JSON file; the plot is beside it (default: results/semi_supervised.json)")
    add("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    add("--seeds", nargs="+", type=int, default=[0, 1, 2])
    add("--validation", action="store_true", help="score held-out training images instead of the test images")
    add("--quick", action="store_true", help="a few updates on made-up images, to try the script")
    add("--dropout", type=float, default=0.0, help="the supervised model's")
    add("--num-labels", type=int, default=1000)
    add("--updates", type=int, default=3000, help="of each student")
    add("--batch-size", type=int, default=50, help="labelled images a step")
    add("--unlabelled-factor", type=int, default=4, help="unlabelled images a step for each labelled one")
    add("--learning-rate", type=float, default=4e-3, help="the supervised model's")
    add("--student-learning-rate", type=float, default=2e-3, help="Noisy Student's and Meta Pseudo Labels'")
    add("--teacher-learning-rate", type=float, default=1e-3, help="Meta Pseudo Labels' teacher's")
    add("--finetuning-learning-rate", type=float, default=1e-3, help="after Meta Pseudo Labels")
    add("--noise", type=float, default=0.0, help="Noisy Student's rate of dropout")
    add("--square", type=int, default=6, help="pixels a side that Noisy Student's augmentation hides; 0: the weak one")
    add("--meta-square", type=int, default=6, help="the same of Meta Pseudo Labels")
    add("--threshold", type=float, default=0.3, help="Noisy Student's, of the confidence")
    add("--uda-weight", type=float, default=1.0)
    add("--uda-threshold", type=float, default=0.8)
    add("--uda-temperature", type=float, default=0.5)
    args = parser.parse_args(argv)
    if args.quick:
        args.seeds = args.seeds[:1]
    results = pathlib.Path(tempfile.mkdtemp()) if args.quick else pathlib.Path(__file__).parent / "results"
    args.out = args.out or results / "semi_supervised.json"
    return args


def main(argv=None):
    """Runs the methods and seeds that are not in the results yet, and prints the table."""
    args = parse_arguments(argv)
    places = ("data_dir", "out", "methods", "seeds")
    settings = {name: value for name, value in vars(args).items() if name not in places}
    if args.quick:
        settings |= QUICK
    content = {**environment(), "settings": settings, "runs": {}}
    if args.out.exists():
        content = json.loads(args.out.read_text())
        if content["settings"] != settings:
            raise SystemExit(f"{args.out} holds runs of other settings, {content['settings']}. Give another --out.")
    data = synthetic() if args.quick else read_images(args.data_dir)
    if args.validation:
        train, held_out = -HELD_OUT, data["train"]
        data = {"train": tuple(a[:train] for a in held_out), "test": tuple(a[train:] for a in held_out)}
    content["images"] = compute(settings, len(data["train"][0]) - settings["num_labels"])
    for seed in args.seeds:
        run = Run(data, settings, seed)
        for method in args.methods:
            if f"{method}/{seed}" in content["runs"]:
                continue
            start, cpu = time.perf_counter(), time.process_time()
            row = getattr(run, method)()
            # If an earlier method trained a model that this method uses, these seconds do not include that training.
            row |= {"seconds": time.perf_counter() - start, "cpu_seconds": time.process_time() - cpu}
            content["runs"][f"{method}/{seed}"] = row
            print(f"{method:15} seed {seed}: {row['test_accuracy']:.4f} in {row['seconds']:.0f} s", flush=True)
            content["summary"] = summarize(content["runs"])
            write(args.out, content)
            draw(content["runs"], content["images"], args.out.with_suffix(".png"))
    for method, row in summarize(content["runs"]).items():
        spread = "" if row["standard_deviation"] is None else f" ± {row['standard_deviation']:.4f}"
        trained, forward = content["images"][method]
        gains = ", ".join(f"{gain:+.4f}" for gain in row["gain_over_supervised"])
        print(f"{method:15} {row['mean']:.4f}{spread}   over supervised: {gains}")
        print(f"{'':15} {trained:,} images forward and backward, {forward:,} forward")


if __name__ == "__main__":
    main()
