"""The size of the pre-training set: where a ViT passes a ResNet (arXiv 2010.11929, figures 3 and 4).

Two sizes of BiT and of ViT are pre-trained on CIFAR-10 and on random subsets down to 195 images, each for the same
number of updates, and then transferred to Oxford 17 Flowers: fine-tuned (figure 3), and few-shot linear on frozen
features (figure 4).

    KERAS_BACKEND=torch python benchmarks/studies/pretraining_size.py --data ~/images
"""

import numpy as np
from study import Study, main, mean_and_deviation
from training import TITLES, bit, cifar10, fit, transferred, vit

MODELS = {
    "BiT-S": (bit, {"stages": (1,)}),
    "BiT-L": (bit, {"stages": (2, 2, 2)}),
    "ViT-S": (vit, {"hidden_dim": 48, "num_layers": 3}),
    "ViT-L": (vit, {"hidden_dim": 80, "num_layers": 4}),
}
PARTS = (256, 64, 16, 8, 4, 2, 1)


def run(data, seed, *, model, part, updates, fine_tuning):
    images, labels = cifar10(data)["train"]
    chosen = np.random.default_rng(seed).permutation(len(images))[: len(images) // part]
    build, sizes = MODELS[model]
    network = build(**sizes)
    fit(network, images[chosen], labels[chosen], updates=updates, seed=seed)
    return {
        "images": len(chosen),
        **transferred(network, data, updates=fine_tuning, seed=seed),
    }


def draw(figure, runs):
    sizes = sorted({rows[0]["images"] for rows in runs.values()})
    for axes, (score, title) in zip(figure.subplots(1, 3), TITLES.items(), strict=True):
        for number, model in enumerate(MODELS):
            cases = [rows for case, rows in runs.items() if case.startswith(f"{model} ")]
            points = [(rows[0]["images"], *mean_and_deviation([row[score] for row in rows])) for rows in cases]
            if points:
                x, y, spread = np.array(sorted(points)).T
                axes.errorbar(
                    x, y, spread, color=f"C{number // 2}", ls="--" if number % 2 else "-", capsize=2, label=model
                )
        axes.set(xscale="log", xlabel="images pre-trained on", ylabel="accuracy", title=title)
        axes.set_xticks(sizes, [f"{images:,}" for images in sizes], rotation=60, fontsize="small")
        axes.minorticks_off()
        axes.grid(alpha=0.3)
    axes.legend()


STUDY = Study(
    name="pretraining_size",
    cases={f"{model} 1/{part}": {"model": model, "part": part} for model in MODELS for part in PARTS},
    common={"updates": 400, "fine_tuning": 60},
    run=run,
    draw=draw,
    score="few_shot",
    quick={"updates": 2, "fine_tuning": 2},
    quick_cases=("BiT-S 1/2", "ViT-S 1/2"),
    figure_size=(13.0, 4.2),
)

if __name__ == "__main__":
    main(STUDY)
