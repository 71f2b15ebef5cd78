"""Meta Pseudo Labels on two moons: 2,000 points, 6 of them labelled, as in arXiv 2003.10580, section 3.1.

Each network has two hidden layers of 8 sigmoid units, and is trained by SGD with learning rate 0.1 on all 6 labelled
points. Methods that use unlabelled points also use a random 128 of the 2,000 points in each step. Accuracy is measured
on all 2,000 points.

    pseudo_labels   a teacher of the labelled points alone, and a student of the hard labels that it gives all points
    meta            Meta Pseudo Labels: UDA weight 8, temperature 0.7, threshold 0.6; augmentation is normal noise
    no_feedback     the teacher of meta beside a student of learning rate 0, so that its feedback is 0
    meta_alone      meta without UDA

In results/two_moons.json, meta separates the moons with each of 5 seeds, and the other students do not. UDA is the
reason: the teacher with UDA and without feedback is as good. The feedback without UDA is about 0.001 at this learning
rate and changes nothing. So the results do not confirm the paper's claim for the feedback alone.

Results are written after each run, so an interrupted benchmark resumes.

    KERAS_BACKEND=jax python benchmarks/two_moons.py
"""

import argparse
import json
import os
import pathlib
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np

import keras_vit
from keras_vit.files import replacing
from keras_vit.semi_supervised import MetaPseudoLabels, pseudo_labels

METHODS = ("pseudo_labels", "meta", "no_feedback", "meta_alone")
RATE, BATCH, EXECUTION = 0.1, 128, 100


def two_moons(seed, num_points=2000, num_labels=6, noise=0.1):
    """Returns points, their classes and the positions of the labelled ones."""
    rng = np.random.default_rng(seed)
    upper, lower = rng.uniform(0, np.pi, (2, num_points // 2))
    points = np.stack([[np.cos(upper), np.sin(upper)], [1 - np.cos(lower), 0.5 - np.sin(lower)]])
    points = points.transpose(0, 2, 1).reshape(-1, 2) + rng.normal(scale=noise, size=(num_points, 2))
    classes = np.repeat([0, 1], num_points // 2)
    labelled = [rng.choice(np.flatnonzero(classes == k), num_labels // 2, replace=False) for k in (0, 1)]
    return points.astype("float32"), classes.astype("int32"), np.concatenate(labelled)


def network():
    hidden = [keras.layers.Dense(8, "sigmoid") for _ in range(2)]
    return keras.Sequential([keras.Input((2,)), *hidden, keras.layers.Dense(2)])


class Steps(keras.utils.PyDataset):
    """As many steps as asked for, each made by a function of a random generator."""

    def __init__(self, make, steps, seed):
        super().__init__()
        self.make, self.steps, self.seed = make, steps, seed

    def __len__(self):
        return self.steps

    def __getitem__(self, index):
        return self.make(np.random.default_rng([self.seed, index]))


def train(method, seed, steps, jitter):
    """Returns the accuracies of the networks by role."""
    keras.utils.set_random_seed(seed)
    points, classes, labelled = two_moons(seed)
    known = points[labelled], classes[labelled]
    student, teacher = network(), network()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    execution = {"steps_per_execution": EXECUTION if keras.backend.backend() != "torch" else 1}
    if method == "pseudo_labels":
        teacher.compile(keras.optimizers.SGD(RATE), loss, **execution)
        teacher.fit(Steps(lambda rng: known, steps, seed), verbose=0, shuffle=False)
        labels = pseudo_labels(teacher, points, kind="hard", threshold=0.0, batch_size=len(points)).labels

        def batch(rng):
            chosen = rng.integers(len(points), size=BATCH)
            return points[chosen], labels[chosen]

        student.compile(keras.optimizers.SGD(RATE), loss, **execution)
        student.fit(Steps(batch, steps, seed), verbose=0, shuffle=False)
    else:
        uda = {"uda_weight": 0.0 if method == "meta_alone" else 8.0, "uda_temperature": 0.7, "uda_threshold": 0.6}
        trainer = MetaPseudoLabels(teacher, student, label_smoothing=0.0, uda_steps=0, seed=seed, **uda)
        rate = 0.0 if method == "no_feedback" else RATE
        trainer.compile(keras.optimizers.SGD(rate), keras.optimizers.SGD(RATE), **execution)

        def batch(rng):
            chosen = points[rng.integers(len(points), size=BATCH)]
            noise = rng.normal(scale=jitter, size=chosen.shape).astype("float32")
            return (known[0], chosen, chosen + noise), known[1]

        trainer.fit(Steps(batch, steps, seed), verbose=0, shuffle=False)
    models = {"teacher": teacher} if method == "no_feedback" else {"student": student, "teacher": teacher}
    predicted = {role: model.predict(points, batch_size=len(points), verbose=0) for role, model in models.items()}
    return {role: float((logits.argmax(axis=1) == classes).mean()) for role, logits in predicted.items()}


def main(argv=None):
    """Trains the networks that are not in the results yet, and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--out", type=pathlib.Path, default=pathlib.Path(__file__).parent / "results" / "two_moons.json")
    add("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    add("--seeds", nargs="+", type=int, default=[0, 1, 2, 3, 4])
    add("--steps", type=int, default=40_000, help="of each network")
    add("--jitter", type=float, default=0.2, help="standard deviation of the augmentation")
    args = parser.parse_args(argv)
    settings = {"steps": args.steps, "jitter": args.jitter, "learning_rate": RATE, "batch": BATCH}
    versions = {"keras": keras.__version__, "keras_vit": keras_vit.__version__}
    content = {"backend": keras.backend.backend(), **versions, "settings": settings, "runs": {}}
    if args.out.exists():
        content = json.loads(args.out.read_text())
        if content["settings"] != settings:
            raise SystemExit(f"{args.out} holds runs of other settings, {content['settings']}. Give another --out.")
    for seed in args.seeds:
        for method in args.methods:
            if f"{method}/{seed}" in content["runs"]:
                continue
            start = time.perf_counter()
            row = train(method, seed, args.steps, args.jitter)
            content["runs"][f"{method}/{seed}"] = {**row, "seconds": round(time.perf_counter() - start, 1)}
            print(f"{method:13} seed {seed}: {content['runs'][f'{method}/{seed}']}", flush=True)
            with replacing(args.out) as draft:
                draft.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    for method in args.methods:
        rows = [content["runs"][f"{method}/{seed}"] for seed in args.seeds]
        for role in [role for role in ("student", "teacher") if role in rows[0]]:
            print(f"{method:13} {role}: " + ", ".join(f"{row[role]:.3f}" for row in rows))


if __name__ == "__main__":
    main()
