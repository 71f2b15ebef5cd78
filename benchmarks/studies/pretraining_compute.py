"""Accuracy against pre-training compute: BiT, hybrids and ViTs (arXiv 2010.11929, figure 5 and table 6).

Three sizes of each family are pre-trained on CIFAR-10 for four budgets, which span 16 times, each with a schedule of
its own. Then they are transferred to Oxford 17 Flowers: fine-tuned, and few-shot on frozen features. Compute is the
multiply-adds of a forward pass times the images seen.

    KERAS_BACKEND=torch python benchmarks/studies/pretraining_compute.py --data ~/images
"""

import numpy as np
from study import Study, main, mean_and_deviation
from training import TITLES, bit, cifar10, fit, hybrid, multiply_adds, transferred, vit

BATCH = 100
MODELS = {
    "BiT-S": (bit, {"stages": (1,)}),
    "BiT-M": (bit, {"stages": (1, 1)}),
    "BiT-L": (bit, {"stages": (2, 2, 2)}),
    "hybrid-S": (hybrid, {"hidden_dim": 32, "num_layers": 1}),
    "hybrid-M": (hybrid, {"hidden_dim": 48, "num_layers": 2}),
    "hybrid-L": (hybrid, {"hidden_dim": 80, "num_layers": 3}),
    "ViT-S": (vit, {"hidden_dim": 32, "num_layers": 2}),
    "ViT-M": (vit, {"hidden_dim": 48, "num_layers": 3}),
    "ViT-L": (vit, {"hidden_dim": 80, "num_layers": 4}),
}
UPDATES = (30, 75, 190, 480)


def run(data, seed, *, model, updates, share, fine_tuning):
    build, sizes = MODELS[model]
    network = build(**sizes)
    images, labels = cifar10(data)["train"]
    updates = max(2, round(share * updates))
    fit(network, images, labels, updates=updates, seed=seed)
    return {
        "compute": float(multiply_adds(network) * updates * BATCH),
        **transferred(network, data, updates=fine_tuning, seed=seed),
    }


def draw(figure, runs):
    for axes, (score, title) in zip(figure.subplots(1, 3), TITLES.items(), strict=True):
        for number, family in enumerate(("BiT", "hybrid", "ViT")):
            for size, marker in zip("SML", "o^s", strict=True):
                cases = [rows for case, rows in runs.items() if case.startswith(f"{family}-{size} ")]
                points = [(rows[0]["compute"], *mean_and_deviation([row[score] for row in rows])) for rows in cases]
                if points:
                    x, y, spread = np.array(points).T
                    style = {"color": f"C{number}", "marker": marker, "capsize": 2, "label": f"{family}-{size}"}
                    axes.errorbar(x, y, spread, **style)
        axes.set(xscale="log", xlabel="multiply-adds x images seen", ylabel="accuracy", title=title)
        axes.grid(alpha=0.3)
    axes.legend(fontsize="x-small")


STUDY = Study(
    name="pretraining_compute",
    cases={f"{model} {updates}": {"model": model, "updates": updates} for model in MODELS for updates in UPDATES},
    common={"share": 1.0, "fine_tuning": 60},
    run=run,
    draw=draw,
    score="transfer",
    quick={"share": 0.05, "fine_tuning": 2},
    quick_cases=("BiT-S 30", "hybrid-S 30", "ViT-S 30"),
    figure_size=(13.0, 4.2),
)

if __name__ == "__main__":
    main(STUDY)
