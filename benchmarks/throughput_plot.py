"""Plots the ratios and intervals written by throughput.py."""

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
from measure import KEY, read_rows

BACKENDS = {"tensorflow": "TensorFlow", "jax": "JAX", "torch": "PyTorch"}
# Title, tasks, whether rows have options, and the side on which ours is better.
PANELS = (
    ("images a second: ours / peer", ("forward", "train"), False, "right"),
    ("images a second: ours with an option / ours without, or peer", ("forward", "train"), True, "right"),
    ("build and first call, seconds: ours / peer", ("first_forward", "first_train"), False, "left"),
    ("peak memory: ours / peer", ("memory_forward", "memory_train"), False, "left"),
    (
        "first call and memory: ours with an option / ours without, or peer",
        ("first_forward", "first_train", "memory_forward", "memory_train"),
        True,
        "left",
    ),
)


def points_of(rows):
    """Returns [(label, backend, spread)] of the main measure per row."""
    points = []
    for row in sorted(rows, key=lambda row: [row[name] for name in KEY]):
        ratios = next(iter(row["ratios_subject_to_side"].values()))
        for side, ratio in ratios.items():
            gelu = "" if row["activation"] == "gelu" else f" {row['activation']}"
            what = f"{row['task']} {row['model']} {row['dtype']}{gelu}, batch {row['batch']}"
            points.append((", ".join(filter(None, (what, row["options"], side))), row["run"]["backend"], ratio))
    return points


def draw(folder):
    """Writes throughput.png from the throughput_<backend>.json files of a folder; returns its path."""
    rows = [row for backend in BACKENDS for row in read_rows(folder / f"throughput_{backend}.json")]
    panels = []
    for title, tasks, options, better in PANELS:
        points = points_of(row for row in rows if row["task"] in tasks and bool(row["options"]) == options)
        if points:
            panels.append((f"{title} (better on the {better})", points))
    if not panels:
        raise FileNotFoundError(
            f"Expected files throughput_<backend>.json with rows in {str(folder)!r}. Received: none"
        )
    heights = [len(dict.fromkeys(label for label, _, _ in points)) + 2 for _, points in panels]
    figure, axes = plt.subplots(
        len(panels),
        1,
        figsize=(10, 0.32 * sum(heights) + 0.6),
        height_ratios=heights,
        squeeze=False,
        layout="constrained",
    )
    for ax, (title, points) in zip(axes[:, 0], panels, strict=True):
        places = {label: i for i, label in enumerate(dict.fromkeys(label for label, _, _ in points))}
        for number, (backend, name) in enumerate(BACKENDS.items()):
            own = [(places[label], ratio) for label, b, ratio in points if b == backend]
            if own:
                medians = [ratio["median"] for _, ratio in own]
                ax.errorbar(
                    medians,
                    # Shift the points of each backend, so that intervals do not overlap.
                    [place + 0.22 * (number - 1) for place, _ in own],
                    xerr=[
                        [ratio["median"] - ratio["low"] for _, ratio in own],
                        [ratio["high"] - ratio["median"] for _, ratio in own],
                    ],
                    fmt="o",
                    markersize=4,
                    capsize=2,
                    color=f"C{number}",
                    label=name,
                )
        ax.axvline(1, color="gray", linewidth=0.8)
        ax.set_yticks(list(places.values()), list(places), fontsize=8)
        ax.set_ylim(len(places) - 0.5, -0.5)
        ax.set_title(title, fontsize=9)
        ax.grid(axis="x", alpha=0.3)
        ax.legend(fontsize=8)
    path = folder / "throughput.png"
    figure.savefig(path, dpi=120, metadata={"Software": None})
    plt.close(figure)
    return path
