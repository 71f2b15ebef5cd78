"""Fine-tuning at a higher resolution (arXiv 2010.11929, section 3.2; arXiv 1906.06423).

A small ViT is pre-trained on CIFAR-10 at 32 pixels and fine-tuned on Oxford 17 Flowers at 32, 48 and 64, where the
position embeddings are interpolated. Beside it, the same model pre-trained and fine-tuned at that size, and one trained
on Flowers at that size from scratch. The flowers are real images of each size; CIFAR-10's are enlarged.

    KERAS_BACKEND=torch python benchmarks/studies/resolution.py --data ~/images
"""

from study import Study, main, mean_and_deviation
from training import accuracy, cifar10, fine_tuned, fit, flowers, multiply_adds, vit

SIZES = (32, 48, 64)
LINES = {"pre-trained at 32": "32 to {}", "pre-trained at this size": "{0} to {0}", "from scratch": "scratch {}"}


def run(data, seed, *, before, size, updates, fine_tuning):
    target = flowers(data, size)
    if before is None:
        model = vit(17, size)
        fit(model, *target["train"], updates=fine_tuning, seed=seed, batch_size=68)
        return {"transfer": accuracy(model, *target["test"]), "multiply_adds": multiply_adds(model)}
    model = vit(10, before)
    fit(model, *cifar10(data)["train"], updates=updates, seed=seed)
    result = {"transfer": fine_tuned(model, target, updates=fine_tuning, seed=seed, image_size=size)}
    return result | {"multiply_adds": multiply_adds(vit(17, size))}


def draw(figure, runs):
    axes = figure.subplots()
    for label, pattern in LINES.items():
        points = [(size, runs[name]) for size in SIZES if (name := pattern.format(size)) in runs]
        if points:
            scores = [mean_and_deviation([row["transfer"] for row in rows]) for _, rows in points]
            means, spreads = zip(*scores, strict=True)
            axes.errorbar([size for size, _ in points], means, spreads, fmt="o-", capsize=2, label=label)
    axes.set(xlabel="pixels a side", ylabel="accuracy on Flowers", xticks=SIZES)
    axes.grid(alpha=0.3)
    axes.legend()


STUDY = Study(
    name="resolution",
    cases={
        **{f"32 to {size}": {"before": 32, "size": size} for size in SIZES},
        **{f"{size} to {size}": {"before": size, "size": size} for size in SIZES[1:]},
        **{f"scratch {size}": {"before": None, "size": size} for size in SIZES},
    },
    common={"updates": 300, "fine_tuning": 100},
    run=run,
    draw=draw,
    score="transfer",
    quick={"updates": 2, "fine_tuning": 2},
    quick_cases=("32 to 48", "scratch 48"),
    figure_size=(6.4, 4.4),
)

if __name__ == "__main__":
    main(STUDY)
