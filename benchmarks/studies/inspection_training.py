"""What a ViT and a hybrid look at while they learn (arXiv 2010.11929, figures 7, 10 and 11).

A small ViT and a small hybrid are trained on CIFAR-10. At some updates, and before the first, this measures each head's
attention distance (figure 11), the similarity of position embeddings (figures 7 centre and 10), and the principal
components of the patch embedding (figure 7 left). If the folder of images has ViT-B_16-224.npz, the same is measured on
the real weights.

    KERAS_BACKEND=torch python benchmarks/studies/inspection_training.py --data ~/images
"""

from pathlib import Path

import keras
import numpy as np
from study import Study, main
from training import accuracy, cifar10, fit, flowers, hybrid, vit

import keras_vit
from keras_vit.inspection import attention_distance, embedding_filters, position_similarity

# The corners and the middle of a grid, whose similarities are drawn.
PLACES = ((0, 0), (3, 3), (6, 1))
FILTERS = 12


def measure(model, images, pictures):
    """Returns the attention distances of a model at this moment, and how much alike its nearby positions are.

    `pictures` adds the similarities of some positions to all, and the filters as pixels of 0 to 255.
    """
    similarity = position_similarity(model)
    rows, columns = similarity.shape[:2]
    grid = np.stack(np.meshgrid(np.arange(rows), np.arange(columns), indexing="ij"), -1).reshape(-1, 2)
    distance = np.linalg.norm(grid[:, None] - grid[None], axis=-1)
    others = distance > 0
    flat = similarity.reshape(rows * columns, -1)
    found = {
        "attention_distance": attention_distance(model, images).tolist(),
        "similarity_and_distance": float(np.corrcoef(flat[others], distance[others])[0, 1]),
    }
    if pictures:
        filters = embedding_filters(model, FILTERS)
        pixels = (filters - filters.min()) / (filters.max() - filters.min()) * 255
        found["filters"] = pixels.round().astype(int).tolist()
        chosen = [similarity[row * rows // 8, column * columns // 8] for row, column in PLACES]
        found["similarities"] = np.round(chosen, 3).tolist()
    return found


class Measure(keras.callbacks.Callback):
    """Measures a model before training and after some updates."""

    def __init__(self, network, images, updates, pictures):
        super().__init__()
        self.network, self.updates, self.found = network, updates, {}
        self.settings = images, pictures

    def on_train_begin(self, logs=None):
        self.found[0] = measure(self.network, *self.settings)

    def on_train_batch_end(self, batch, logs=None):
        if batch + 1 in self.updates:
            _ = self.model  # On JAX, reading `self.model` writes the training state to the variables.
            self.found[batch + 1] = measure(self.network, *self.settings)


def run(data, seed, *, model, updates, points, num_images):
    if model == "ViT-B/16":
        path = data and Path(data) / "ViT-B_16-224.npz"
        if seed or path is None or not path.exists():
            return {"points": {}}  # This case does not depend on the seed.
        network = keras_vit.from_pretrained(path, include_preprocessing=True)
        images = flowers(data, 224)["test"][0][:: 680 // min(num_images, 17)]
        # The network has the classes of ImageNet.
        return {"points": {"trained": measure(network, images.astype("float32"), True)}}
    parts = cifar10(data)
    network = vit(hidden_dim=64, num_layers=6) if model == "ViT" else hybrid(hidden_dim=64, num_layers=6)
    images = parts["test"][0][:num_images].astype("float32")
    chosen = sorted({max(1, updates * share // 100) for share in points})
    # The patches of a hybrid are single positions of its ResNet, so there are no filters to show.
    watch = Measure(network, images, chosen, pictures=seed == 0 and model == "ViT")
    fit(network, *parts["train"], updates=updates, seed=seed, callbacks=[watch])
    return {"accuracy": accuracy(network, *parts["test"]), "points": {str(k): v for k, v in watch.found.items()}}


def draw(figure, runs):
    trained = {case: [row for row in rows if row["points"]] for case, rows in runs.items()}
    trained = {case: rows for case, rows in trained.items() if rows}
    upper, lower = figure.subfigures(2, 1)
    for axes, (case, rows) in zip(np.atleast_1d(upper.subplots(1, len(trained))), trained.items(), strict=True):
        for number, update in enumerate(rows[0]["points"]):
            mean = np.mean([np.mean(row["points"][update]["attention_distance"], axis=1) for row in rows], axis=0)
            axes.plot(mean, "-", color=f"C{number}", label=f"update {update}" if update != "trained" else update)
            for row in rows:
                heads = np.array(row["points"][update]["attention_distance"])
                depth = np.repeat(np.arange(len(heads)), heads.shape[1])
                axes.plot(depth, heads.reshape(-1), ".", color=f"C{number}", alpha=0.3, ms=3)
        axes.set(title=case, xlabel="block", ylabel="attention distance in pixels")
        axes.legend(fontsize="x-small")
        axes.grid(alpha=0.3)
    points = [(case, *pair) for case, rows in trained.items() for pair in rows[0]["points"].items()]
    points = [(f"{case}, {update}", point) for case, update, point in points if "filters" in point]
    for column, (title, point) in enumerate(points):
        above, below = (lower.add_subplot(2, len(points), 1 + row * len(points) + column) for row in (0, 1))
        # Two rows, with white lines between them.
        framed = np.pad(point["filters"], ((0, 0), (0, 1), (0, 1), (0, 0)), constant_values=255)
        above.imshow(np.hstack([np.vstack(framed[i : i + 2]) for i in range(0, len(framed), 2)]))
        above.set_title(title, fontsize="small")
        below.imshow(np.hstack([np.array(part) for part in point["similarities"]]), vmin=-1, vmax=1)
        below.set_title(f"r = {point['similarity_and_distance']:.2f}", fontsize="small")
        above.axis("off")
        below.axis("off")


STUDY = Study(
    name="inspection_training",
    cases={name: {"model": name} for name in ("ViT", "hybrid", "ViT-B/16")},
    common={"updates": 600, "points": (2, 10, 30, 100), "num_images": 64},
    run=run,
    draw=draw,
    score="accuracy",
    quick={"updates": 2, "num_images": 2},
    quick_cases=("ViT",),
    figure_size=(13.0, 7.0),
)

if __name__ == "__main__":
    main(STUDY)
