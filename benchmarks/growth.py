"""Measures how time and memory of a ViT grow with image size, depth, width, batch and merged tokens; plots theory too.

Each point is measured in a new child process, which runs a forward pass or a training step (SGD with momentum) in
float32. Time is the shortest of three calls after the first call. Memory is the peak memory minus the memory of the
built model. The dotted lines in the plot show the growth that theory expects. For time, this is the growth of the
multiply-adds of `keras_vit.profile`. For memory, it is proportional growth. Only with depth, the memory of a forward
pass should not grow, because the activations of each block are freed. Both lines go through the largest point, since
small points have additional costs. `memory exponent` is the slope of memory by tokens between the two largest images:
1 means linear growth, and 2 means quadratic growth.

Rows are added to results/growth_<backend>.json. An interrupted run continues with the missing points:

    for backend in tensorflow jax torch; do KERAS_BACKEND=$backend python benchmarks/growth.py; done
"""

import argparse
import json
import math
import os
import pathlib

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
from children import side_of, tokens_of
from measure import resumed, write
from peers import OURS
from sides import Case, Entrant

import keras_vit
from keras_vit.console import text_table

RESULTS = pathlib.Path(__file__).parent / "results"
BACKENDS = {"tensorflow": "TensorFlow", "jax": "JAX", "torch": "PyTorch"}
TASKS = ("forward", "train")
VARIANT = "S/16"
# Each series changes one of these.
BASE = {"image size": 224, "depth": 6, "width": 384, "batch": 4, "token merging": 0}
# In the series "image size", a batch has one image, because an image of 1,024 pixels has 4,097 tokens.
SERIES = {
    "image size": ({"batch": 1}, (224, 384, 512, 768, 1024)),
    "depth": ({}, (3, 6, 12, 24)),
    "width": ({}, (192, 384, 768, 1536)),
    "batch": ({}, (1, 2, 4, 8, 16)),
    "token merging": ({}, (0, 4, 8, 16)),
}
QUICK = {
    "image size": ({"batch": 1, "depth": 1, "width": 64}, (32, 64)),
    "depth": ({"image size": 32, "width": 64}, (1, 2)),
}


def points(series):
    """Yields (series, settings) of all points."""
    for name, (fixed, values) in series.items():
        for value in values:
            yield name, {**BASE, **fixed, name: value}


def options_of(settings):
    """Returns the builder's options; heads have 64 channels."""
    width = settings["width"]
    options = {"hidden_dim": width, "num_heads": width // 64, "mlp_dim": 4 * width}
    return {**options, "token_merging": settings["token merging"]}


def multiply_adds(settings, task):
    """Returns the multiply-adds of a call. A training step needs three times as many as a forward pass."""
    options = {"num_layers": settings["depth"], **options_of(settings)}
    model = keras_vit.ViT(VARIANT, image_size=settings["image size"], **options)
    return keras_vit.profile(model).multiply_adds * settings["batch"] * (3 if task == "train" else 1)


def measure(series, settings, task):
    """Returns the row of a point, measured in a child process."""
    case = Case(f"{VARIANT}@{settings['image size']}", num_layers=settings["depth"])
    load = os.getloadavg()[0]
    found = side_of(Entrant(OURS, options=tuple(options_of(settings).items())), case, task, settings["batch"])
    return {
        "series": series,
        "task": task,
        **settings,
        "tokens": tokens_of(case, 1),
        "seconds": found["next_call"],
        "first call": found["first_call"],
        "MB": found["peak_after_build"],
        "model MB": found["built"],
        "multiply_adds": multiply_adds(settings, task),
        "load average": load,
    }


def rows_of(rows, series, task):
    """Returns the rows of a series, the smallest point first."""
    own = (row for row in rows if (row["series"], row["task"]) == (series, task))
    return sorted(own, key=lambda row: row[series])


def memory_exponent(rows, task):
    """Returns the slope of log(memory) by log(tokens) between the two largest images; None with fewer."""
    own = rows_of(rows, "image size", task)[-2:]
    if len(own) < 2:
        return None
    (tokens_1, memory_1), (tokens_2, memory_2) = ((row["tokens"], row["MB"]) for row in own)
    return math.log(memory_2 / memory_1) / math.log(tokens_2 / tokens_1)


def draw(folder):
    """Writes growth.png from the growth_<backend>.json files of a folder; returns its path."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    files = {backend: folder / f"growth_{backend}.json" for backend in BACKENDS}
    found = {b: json.loads(file.read_text(encoding="utf-8"))["rows"] for b, file in files.items() if file.exists()}
    names = [name for name in SERIES if any(row["series"] == name for rows in found.values() for row in rows)]
    if not names:
        raise FileNotFoundError(f"Expected files growth_<backend>.json with rows in {str(folder)!r}. Received: none")
    kinds = [(task, measure) for task in TASKS for measure in ("seconds", "MB")]
    figure, axes = plt.subplots(
        len(kinds), len(names), figsize=(3.4 * len(names), 2.8 * len(kinds)), squeeze=False, layout="constrained"
    )
    for row_of_axes, (task, kind) in zip(axes, kinds, strict=True):
        for ax, name in zip(row_of_axes, names, strict=True):
            # Plot image size as the number of tokens, so that linear growth is a line of slope 1.
            x = "tokens" if name == "image size" else name
            for number, backend in enumerate(BACKENDS):
                own = rows_of(found.get(backend, ()), name, task)
                if own:
                    color, at = f"C{number}", [row[x] for row in own]
                    ax.plot(at, [row[kind] for row in own], "o-", color=color, markersize=4, label=BACKENDS[backend])
                    # With merging, each block has fewer tokens, so the memory has no simple expected line.
                    if (name, kind) != ("token merging", "MB"):
                        ax.plot(at, expected(own, x, kind, task), ":", color=color)
            # The number of merged tokens starts at 0, which a logarithmic axis cannot show.
            scale = "linear" if name == "token merging" else "log"
            ax.set(xscale=scale, yscale=scale, xlabel=f"{x}{', patches a block' * (name == 'token merging')}")
            ax.set_title(f"{task}: {'seconds' if kind == 'seconds' else 'MB above the model'}", fontsize=9)
            if scale == "linear":
                ax.set_ylim(bottom=0)
            # Put ticks only at the points, because the default logarithmic ticks overlap.
            ticks = sorted({row[x] for rows in found.values() for row in rows_of(rows, name, task)})
            ax.set_xticks(ticks, [f"{tick:,}" for tick in ticks], rotation=45)
            ax.tick_params(axis="x", which="minor", bottom=False, labelbottom=False)
            ax.grid(alpha=0.3)
    axes[0, 0].legend(fontsize=8, title="dotted: theory", title_fontsize=8)
    path = folder / "growth.png"
    figure.savefig(path, dpi=100, metadata={"Software": None})
    plt.close(figure)
    return path


def expected(rows, x, kind, task):
    """Returns what theory expects of sorted rows: time by the multiply-adds, memory in proportion to `x`."""
    if (x, kind, task) == ("depth", "MB", "forward"):
        # Each block's activations are freed before the next one's.
        return [rows[-1][kind]] * len(rows)
    by = x if kind == "MB" else "multiply_adds"
    return [rows[-1][kind] * row[by] / rows[-1][by] for row in rows]


def main():
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n\n    ")[0], formatter_class=argparse.RawDescriptionHelpFormatter
    )
    backend = keras.backend.backend()
    parser.add_argument("--series", nargs="+", choices=SERIES, default=list(SERIES), help="(default: all)")
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS), help="(default: both)")
    parser.add_argument("--quick", action="store_true", help="tiny models, no file: to see that it runs")
    parser.add_argument("--plot", action="store_true", help="measure nothing: draw results/growth.png from the files")
    parser.add_argument("--out", type=pathlib.Path, help="the file of rows (default: results/growth_<backend>.json)")
    args = parser.parse_args()
    out = args.out or RESULTS / f"growth_{backend}.json"
    if args.plot:
        print(f"Wrote {draw(out.parent)}")
        return
    if args.quick:
        out = None
    found = resumed(out, {"variant": VARIANT})
    chosen = QUICK if args.quick else {name: SERIES[name] for name in args.series}
    for name, settings in points(chosen):
        for task in args.tasks:
            point = {"series": name, "task": task, **settings}
            if any(point.items() <= row.items() for row in found["rows"]):
                continue
            found["rows"].append(measure(name, settings, task))
            write(out, found)
    columns = ["series", "task", *BASE, "tokens", "seconds", "MB", "multiply_adds"]
    print(text_table(columns, [[row[name] for name in columns] for row in found["rows"]], decimals=3))
    for task in args.tasks:
        exponent = memory_exponent(found["rows"], task)
        if exponent is not None:
            print(f"{task}: memory exponent {exponent:.2f}")


if __name__ == "__main__":
    main()
