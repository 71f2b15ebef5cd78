"""Augmentation and regularisation, by model size and by data size (arXiv 2106.10270, figure 4).

Two sizes of ViT are trained on 2,000 and on 20,000 images of CIFAR-10, with no, light and medium augmentation
(RandAugment and MixUp, "light2" and "medium2" of the paper) and without regularisation, with dropout, or with
stochastic depth, each at a rate of 0.1. All take the same number of updates. The accuracy is that of the test images.

    KERAS_BACKEND=torch python benchmarks/studies/augmentation.py --data ~/images
"""

import keras
import numpy as np
import tensorflow as tf
from study import Study, main, mean_and_deviation
from training import accuracy, cifar10, schedule, vit

import keras_vit
from keras_vit.training import AdamW

MODELS = {"S": {"hidden_dim": 48, "num_layers": 3}, "L": {"hidden_dim": 64, "num_layers": 4}}
POLICIES = {"none": "none", "light": "light2", "medium": "medium2"}
REGULARISATION = {"none": {}, "dropout": {"dropout_rate": 0.1}, "depth": {"drop_path_rate": 0.1}}
IMAGES = (2_000, 20_000)
BATCH = 100


def batches(images, labels, policy, updates, seed):
    """Makes the batches of `keras_vit.data`'s augmentation of some images."""
    encoded = [tf.io.encode_png(image).numpy() for image in images]
    records = {"name": [str(i) for i in range(len(labels))], "image": encoded, "label": labels.astype("int32")}
    source = keras_vit.data.Source(
        tf.data.Dataset.from_tensor_slices(records),
        num_images=len(labels),
        files=False,
        labels="int",
        class_names=(),
        num_classes=10,
    )
    options = {"crop": "pad", "augment": policy, "labels": "one_hot", "normalize": False, "image_size": 32}
    return keras_vit.data.pipeline(
        source, **options, batch_size=BATCH, repeat=True, num_batches=updates, seed=seed, num_parallel_calls=1
    )


def run(data, seed, *, model, images, policy, regularisation, updates):
    parts = cifar10(data)
    chosen = np.random.default_rng(seed).permutation(len(parts["train"][1]))[:images]
    network = vit(**MODELS[model], **REGULARISATION[regularisation])
    loss = keras.losses.CategoricalCrossentropy(from_logits=True)
    network.compile(AdamW(schedule(1e-3, updates), weight_decay=0.05), loss)
    examples = (part[chosen] for part in parts["train"])
    network.fit(batches(*examples, POLICIES[policy], updates, seed), verbose=0, shuffle=False)
    return {"accuracy": accuracy(network, *parts["test"])}


def draw(figure, runs):
    panels = figure.subplots(len(MODELS), len(IMAGES))
    for row, model in enumerate(MODELS):
        for column, images in enumerate(IMAGES):
            axes, grid = panels[row, column], np.full((len(POLICIES), len(REGULARISATION)), np.nan)
            for y, policy in enumerate(POLICIES):
                for x, kind in enumerate(REGULARISATION):
                    if rows := runs.get(f"{model} {images} {policy} {kind}"):
                        grid[y, x], spread = mean_and_deviation([result["accuracy"] for result in rows])
                        axes.text(x, y, f"{grid[y, x]:.3f}\n± {spread:.3f}", ha="center", va="center", color="white")
            # A range wide enough to read white text.
            axes.imshow(grid, cmap="viridis", vmin=0.1, vmax=0.45)
            axes.set_xticks(range(len(REGULARISATION)), list(REGULARISATION))
            axes.set_yticks(range(len(POLICIES)), list(POLICIES))
            axes.set(title=f"ViT-{model}, {images:,} images", ylabel="augmentation")


STUDY = Study(
    name="augmentation",
    cases={
        f"{model} {images} {policy} {kind}": {
            "model": model,
            "images": images,
            "policy": policy,
            "regularisation": kind,
        }
        for model in MODELS
        for images in IMAGES
        for policy in POLICIES
        for kind in REGULARISATION
    },
    common={"updates": 200},
    run=run,
    draw=draw,
    score="accuracy",
    quick={"updates": 2},
    quick_cases=("S 2000 medium dropout",),
    figure_size=(9.0, 7.0),
)

if __name__ == "__main__":
    main(STUDY)
