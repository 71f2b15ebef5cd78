"""The ablations of arXiv 2010.11929, appendix D, on CIFAR-10 from scratch.

- position: the position embedding (table 8): none, one per position, one per row and column, relative, sines;
- pooling: the class token or the mean of the patches, each at three learning rates (figure 9);
- head: with and without the hidden layer `pre_logits`;
- optimizer: SGD and Adam, for a ViT and a BiT (table 7 has ResNets);
- scaling: depth, width, patch size and MLP, one at a time (figure 8), and axial blocks, each a block along the rows and
  one along the columns (section D.6, figure 13).

The accuracy is that of the 10,000 test images after the last update; no setting was chosen by it.

    KERAS_BACKEND=torch python benchmarks/studies/ablations.py --data ~/images
"""

from study import Study, main, mean_and_deviation
from training import accuracy, axial_vit, bit, cifar10, fit, multiply_adds, schedule, vit

import keras_vit

SGD = {"optimizer": "sgd", "learning_rate": 0.1}
# {group: {case: what differs from the base model, which is in each group}}.
GROUPS = {
    "position": {name: {"position_embedding": name} for name in ("none", "learned2d", "relative", "sincos2d")},
    "pooling": {
        "token 0.0003": {"learning_rate": 3e-4},
        "token 0.003": {"learning_rate": 3e-3},
        "mean 0.0003": {"pooling": "gap", "learning_rate": 3e-4},
        "mean 0.001": {"pooling": "gap"},
        "mean 0.003": {"pooling": "gap", "learning_rate": 3e-3},
    },
    "head": {"pre_logits": {"representation_size": 48}},
    "optimizer": {"ViT SGD": SGD, "BiT Adam": {"family": "bit"}, "BiT SGD": {"family": "bit", **SGD}},
    "scaling": {
        **{f"depth {layers}": {"num_layers": layers} for layers in (1, 6)},
        **{f"width {width}": {"hidden_dim": width} for width in (24, 96)},
        **{f"patch {patch}": {"patch_size": patch} for patch in (8, 16)},
        **{f"MLP {size}": {"mlp_dim": size} for size in (24, 384)},
        **{f"axial {layers}": {"family": "axial", "num_layers": layers} for layers in (1, 3)},
    },
}
BASE = {"position": "learned", "pooling": "token 0.001", "head": "linear", "optimizer": "ViT Adam", "scaling": "base"}
CASES = {"base": {}}
CASES |= {f"{group}: {name}": change for group, cases in GROUPS.items() for name, change in cases.items()}


def run(data, seed, *, updates, family="vit", optimizer="adam", learning_rate=1e-3, **sizes):
    model = {"vit": vit, "bit": bit, "axial": axial_vit}[family](**sizes)
    rate = schedule(learning_rate, updates)
    kind = keras_vit.training.AdamW if optimizer == "adam" else keras_vit.training.SGD
    parts = cifar10(data)
    fit(model, *parts["train"], updates=updates, seed=seed, optimizer=kind(rate))
    return {"accuracy": accuracy(model, *parts["test"]), "multiply_adds": multiply_adds(model)}


def draw(figure, runs):
    for axes, group in zip(figure.subplots(1, len(GROUPS)), GROUPS, strict=True):
        cases = {BASE[group]: "base", **{name: f"{group}: {name}" for name in GROUPS[group]}}
        rows = {name: runs[case] for name, case in cases.items() if case in runs}
        for number, (name, results) in enumerate(rows.items()):
            mean, spread = mean_and_deviation([row["accuracy"] for row in results])
            x = results[0]["multiply_adds"] if group == "scaling" else number
            axes.errorbar(x, mean, spread, fmt="o", color="C1" if name == BASE[group] else "C0", capsize=2)
            if group == "scaling":
                axes.annotate(name, (x, mean), fontsize="x-small")
        if group == "scaling":
            axes.set(xscale="log", xlabel="multiply-adds an image")
        else:
            axes.set_xticks(range(len(rows)), list(rows), rotation=60, ha="right", fontsize="small")
        axes.set(title=group, ylabel="accuracy")
        axes.grid(alpha=0.3)


STUDY = Study(
    name="ablations",
    cases=CASES,
    common={"updates": 300},
    run=run,
    draw=draw,
    score="accuracy",
    quick={"updates": 2},
    quick_cases=("position: relative", "head: pre_logits", "optimizer: BiT SGD", "scaling: axial 1"),
    figure_size=(18.0, 4.4),
)

if __name__ == "__main__":
    main(STUDY)
