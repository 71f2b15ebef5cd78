"""The ablations of arXiv 2010.11929, appendix D, on CIFAR-10 from scratch.

- position: the position embedding (table 8): none, one per position, one per row and column, relative, sines;
- pooling: the class token or the mean of the patches, each at three learning rates (figure 9);
- head: with and without the hidden layer `pre_logits`;
- optimizer: SGD and Adam, for a ViT and a BiT (table 7 has ResNets);
- scaling: depth, width, patch size and MLP, one at a time (figure 8).

The accuracy is that of the 10,000 test images after the last update; no setting was chosen by it.

    KERAS_BACKEND=jax python benchmarks/studies/ablations.py --data ~/images
"""

from study import Study, main, mean_and_deviation
from training import accuracy, bit, cifar10, fit, multiply_adds, schedule, vit

from keras_vit.training import adamw, sgd

RATE = 1e-3
GROUPS = {
    "position": {
        name: {"position_embedding": name} for name in ("none", "learned", "learned2d", "relative", "sincos2d")
    },
    "pooling": {
        f"{pooling} {rate:g}": {"pooling": pooling, "learning_rate": rate}
        for pooling in ("token", "gap")
        for rate in (3e-4, 1e-3, 3e-3)
    },
    "head": {"linear": {}, "pre_logits": {"representation_size": 64}},
    "optimizer": {
        "ViT Adam": {},
        "ViT SGD": {"learning_rate": 0.1, "optimizer": "sgd"},
        "BiT Adam": {"family": "bit"},
        "BiT SGD": {"family": "bit", "learning_rate": 0.1, "optimizer": "sgd"},
    },
    "scaling": {
        "base": {},
        **{f"depth {layers}": {"num_layers": layers} for layers in (1, 2, 8)},
        **{f"width {width}": {"hidden_dim": width} for width in (32, 96, 128)},
        **{f"patch {patch}": {"patch_size": patch} for patch in (8, 16)},
        **{f"MLP {size}": {"mlp_dim": size} for size in (32, 64, 256, 512)},
    },
}


def run(data, seed, *, updates, family="vit", optimizer="adamw", learning_rate=RATE, **sizes):
    model = bit() if family == "bit" else vit(**sizes)
    rate = schedule(learning_rate, updates)
    made = adamw(rate, weight_decay=0.05) if optimizer == "adamw" else sgd(rate)
    parts = cifar10(data)
    fit(model, *parts["train"], updates=updates, seed=seed, optimizer=made)
    return {"accuracy": accuracy(model, *parts["test"]), "multiply_adds": multiply_adds(model)}


def draw(figure, runs):
    for axes, group in zip(figure.subplots(1, len(GROUPS)), GROUPS, strict=True):
        rows = {case.split(": ")[1]: rows for case, rows in runs.items() if case.startswith(f"{group}: ")}
        scores = [mean_and_deviation([row["accuracy"] for row in results]) for results in rows.values()]
        if group == "scaling":
            for (name, results), (mean, spread) in zip(rows.items(), scores, strict=True):
                kind = name.split()[0]
                color = f"C{('base', 'depth', 'width', 'patch', 'MLP').index(kind)}"
                axes.errorbar(results[0]["multiply_adds"], mean, spread, fmt="o", color=color, capsize=2)
                axes.annotate(name, (results[0]["multiply_adds"], mean), fontsize="x-small")
            axes.set(xscale="log", xlabel="multiply-adds an image")
        else:
            means, spreads = ([score[i] for score in scores] for i in range(2))
            axes.errorbar(range(len(rows)), means, spreads, fmt="o", capsize=2)
            axes.set_xticks(range(len(rows)), list(rows), rotation=60, ha="right", fontsize="small")
        axes.set(title=group, ylabel="accuracy")
        axes.grid(alpha=0.3)


STUDY = Study(
    name="ablations",
    cases={f"{group}: {name}": settings for group, cases in GROUPS.items() for name, settings in cases.items()},
    common={"updates": 600},
    run=run,
    draw=draw,
    score="accuracy",
    quick={"updates": 2},
    quick_cases=("position: relative", "head: pre_logits", "optimizer: BiT SGD"),
    figure_size=(18.0, 4.4),
)

if __name__ == "__main__":
    main(STUDY)
