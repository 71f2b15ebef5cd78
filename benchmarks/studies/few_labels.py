"""Few labels and many images: self-supervision and semi-supervision side by side, at equal compute.

The images are Fashion-MNIST; 100, 300, 1,000 or 4,000 of them have labels. Each method trains the same small ViT, and
may spend the same number of images taken forward and backward, by all its networks together (`budget`):

    supervised      all of it on the labelled images
    masked_patch, simmim, mae
                    three quarters on pre-training without labels, then fine-tuning on the labelled images
    distillation    a third on a convolutional teacher of the labelled images, the rest on its student
    noisy_student   a third on a supervised teacher, the rest on one round: soft labels of all images, and strong
                    augmentation
    meta            a sixth on a supervised teacher, two thirds on Meta Pseudo Labels, a sixth on fine-tuning

Masked autoencoders take a quarter of the patches through the encoder, which is cheaper; forward passes alone are not
counted. The accuracy is that of the 10,000 test images after the last update. The budget was raised to 150,000 after a
first run with 60,000; no other setting was chosen by it.

    KERAS_BACKEND=torch python benchmarks/studies/few_labels.py --data ~/images
"""

import functools
from pathlib import Path

import keras
import numpy as np
from study import Study, main, mean_and_deviation

# isort: split
# `study` finds these, which are in the folder above.
from pretraining import build_model, optimizer_for, read_images
from semi_supervised import Steps, augment, synthetic
from semi_supervised import build_model as build_convolutional
from training import accuracy

from keras_vit.distillation import Distiller
from keras_vit.pretraining import MAE, MaskedPatchPrediction, SimMIM
from keras_vit.semi_supervised import MetaPseudoLabels, pseudo_labels

METHODS = ("supervised", "masked_patch", "simmim", "mae", "distillation", "noisy_student", "meta")
LABELS = (100, 300, 1000, 4000)
BATCH, LABELLED, UNLABELLED = 100, 20, 80
SQUARE = 6
SIZES = {"patch_size": 7, "hidden_dim": 64, "num_layers": 3}


@functools.cache
def fashion_mnist(folder):
    return synthetic() if folder is None else read_images(Path(folder) / "fashion_mnist.npz")


class Run:
    """The images, the labelled ones among them, and the trainings that the methods are made of."""

    def __init__(self, data, seed, num_labels, budget, rates):
        (self.images, classes), self.seed, self.budget, self.rates = data["train"], seed, budget, rates
        rng = np.random.default_rng(seed)
        per_class = [rng.permutation(np.flatnonzero(classes == k))[: num_labels // 10] for k in range(10)]
        self.labelled = np.concatenate(per_class)
        self.classes = classes[self.labelled].astype("int32")

    def updates(self, share, images=BATCH):
        """Returns the updates of so many images that a share of the budget pays for."""
        return max(2, round(self.budget * share / images))

    def draw(self, rng, size=BATCH, square=0):
        chosen = rng.integers(len(self.labelled), size=size)
        return augment(self.images[self.labelled[chosen]], rng, square), self.classes[chosen]

    def unlabelled(self, rng, size):
        return self.images[rng.integers(len(self.images), size=size)]

    def fit(self, model, make, updates):
        model.fit(Steps(make, updates, self.seed), verbose=0, shuffle=False)

    def supervise(self, model, share, rate="supervised"):
        """Trains a model on the labelled images."""
        updates = self.updates(share)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizer_for(self.rates[rate], updates), loss)
        self.fit(model, self.draw, updates)
        return model

    def supervised(self):
        return self.supervise(build_model(SIZES), 1)

    def pretrained(self, make):
        model = build_model(SIZES)
        wrapper, updates = make(model, seed=self.seed), self.updates(3 / 4)
        wrapper.compile(optimizer_for(self.rates["pretraining"], updates))
        self.fit(wrapper, lambda rng: (augment(self.unlabelled(rng, BATCH), rng),), updates)
        return self.supervise(model, 1 / 4, "fine_tuning")

    def masked_patch(self):
        return self.pretrained(MaskedPatchPrediction)

    def simmim(self):
        return self.pretrained(functools.partial(SimMIM, mask_unit=7))

    def mae(self):
        return self.pretrained(functools.partial(MAE, decoder_num_layers=1))

    def distillation(self):
        teacher = self.supervise(build_convolutional(), 1 / 3)
        student, updates = build_model(SIZES), self.updates(2 / 3)
        distiller = Distiller(student, teacher, kind="soft", teacher_preprocessing=lambda images: images)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        distiller.compile(optimizer_for(self.rates["supervised"], updates), loss)
        self.fit(distiller, self.draw, updates)
        return student

    def noisy_student(self):
        teacher = self.supervise(build_model(SIZES), 1 / 3)
        labels = pseudo_labels(teacher, self.images.astype("float32"), threshold=0.0, batch_size=500, verbose=0)
        student, updates = build_model(SIZES), self.updates(2 / 3)

        def batch(rng):
            images, classes = self.draw(rng, LABELLED, SQUARE)
            chosen = rng.integers(len(labels), size=UNLABELLED)
            pseudo = augment(self.images[labels.indices[chosen]], rng, SQUARE)
            targets = np.concatenate([np.eye(10, dtype="float32")[classes], labels.labels[chosen]])
            return np.concatenate([images, pseudo]), targets

        loss = keras.losses.CategoricalCrossentropy(from_logits=True)
        student.compile(optimizer_for(self.rates["supervised"], updates), loss)
        self.fit(student, batch, updates)
        return student

    def meta(self):
        teacher, student = self.supervise(build_model(SIZES), 1 / 6), build_model(SIZES)
        # One update: the student's step, and the teacher's step on labelled and, twice, on unlabelled images.
        updates = self.updates(2 / 3, UNLABELLED + LABELLED + 2 * UNLABELLED)
        trainer = MetaPseudoLabels(
            teacher,
            student,
            label_smoothing=0.0,
            uda_weight=1.0,
            uda_temperature=0.5,
            uda_threshold=0.8,
            uda_steps=updates // 6,
            seed=self.seed,
        )
        trainer.compile(*(optimizer_for(self.rates["supervised"], updates) for _ in range(2)))

        def batch(rng):
            (images, classes), others = self.draw(rng, LABELLED), self.unlabelled(rng, UNLABELLED)
            return (images, augment(others, rng), augment(others, rng, SQUARE)), classes

        self.fit(trainer, batch, updates)
        return self.supervise(student, 1 / 6, "fine_tuning")


def run(data, seed, *, method, num_labels, budget, rates):
    parts = fashion_mnist(data)
    model = getattr(Run(parts, seed, num_labels, budget, rates), method)()
    return {"accuracy": accuracy(model, *parts["test"])}


def draw(figure, runs):
    axes = figure.subplots()
    for number, method in enumerate(METHODS):
        points = [(count, runs[case]) for count in LABELS if (case := f"{method} {count}") in runs]
        if points:
            scores = [mean_and_deviation([row["accuracy"] for row in rows]) for _, rows in points]
            means, spreads = zip(*scores, strict=True)
            # Side by side, so that the intervals are seen.
            x = [count * 1.03 ** (number - 3) for count, _ in points]
            axes.errorbar(x, means, spreads, fmt="o-", capsize=2, label=method)
    axes.set(xscale="log", xlabel="labels", ylabel="accuracy on 10,000 test images", title="Fashion-MNIST")
    axes.set_xticks(LABELS, [f"{count:,}" for count in LABELS], minor=False)
    axes.grid(alpha=0.3)
    axes.legend()


STUDY = Study(
    name="few_labels",
    cases={f"{method} {count}": {"method": method, "num_labels": count} for method in METHODS for count in LABELS},
    common={"budget": 150_000, "rates": {"supervised": 2e-3, "pretraining": 2e-3, "fine_tuning": 1e-3}},
    run=run,
    draw=draw,
    score="accuracy",
    quick={"budget": 400},
    quick_cases=tuple(f"{method} 100" for method in METHODS),
    figure_size=(7.5, 5.0),
)

if __name__ == "__main__":
    main(STUDY)
