# %% [markdown]
# # Pre-train without labels, then learn from few
#
# Pictures are cheap and labels are not. A masked autoencoder (MAE, [arXiv
# 2111.06377](https://arxiv.org/abs/2111.06377)) learns from pictures alone: it sees a quarter of the patches and
# predicts the others. Then the same Vision Transformer learns the classes from a few labelled pictures, and is compared
# with one that starts from nothing.
#
# **Contents**: 1 Pictures, most without labels · 2 A small ViT · 3 Pre-training · 4 Reconstructions · 5 Few labels,
# from nothing · 6 Few labels, after pre-training · 7 What it brought · 8 Where to go from here
#
# It needs `keras_vit` with the extra `inspect`, scikit-learn, and one of TensorFlow, JAX and PyTorch; the environment
# variable `KERAS_BACKEND` chooses one.

# %%
import os
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import matplotlib.pyplot as plt
import numpy as np

import keras_vit
from keras_vit.pretraining import MAE, plot_reconstructions
from keras_vit.training import AdamW, WarmupDecay

# %matplotlib inline
# %config InlineBackend.print_figure_kwargs = {"bbox_inches": "tight", "dpi": 80}

QUICK = os.environ.get("KERAS_VIT_QUICK") == "1"
print("Keras", keras.__version__, "on", keras.backend.backend())

# %% [markdown]
# ## 1 Pictures, most without labels
#
# CIFAR-10: 50,000 photos of 32 x 32 pixels to train on. All of them are used without their labels, and 1,000 with. The
# file `cifar10.npz` holds the arrays `train_images`, `train_labels`, `test_images` and `test_labels`; it is searched in
# the inputs of a Kaggle notebook and in the folder that the environment variable `KERAS_VIT_SAMPLES` names. Without it,
# scikit-learn's handwritten digits take its place, 100 of 1,297 with labels.


# %%
def sample(name):
    """Finds a file or folder in the inputs of a Kaggle notebook or in the folder KERAS_VIT_SAMPLES; None if absent."""
    places = [*Path("/kaggle/input").glob("*"), Path(os.environ.get("KERAS_VIT_SAMPLES", "samples"))]
    paths = [place / folder / name for place in places for folder in ("", "weights")]
    return next((path for path in paths if path.exists()), None)


def read_digits():
    """Reads scikit-learn's digits, 8 x 8 pixels in 0..255, in the form of CIFAR-10."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = (digits.images[..., None] * (255 / 16)).astype("uint8")
    parts = {"train": slice(None, 1297), "test": slice(1297, None)}
    arrays = {f"{name}_images": images[part] for name, part in parts.items()}
    return arrays | {f"{name}_labels": digits.target[part] for name, part in parts.items()}


PHOTOS = sample("cifar10.npz") is not None
data = np.load(sample("cifar10.npz")) if PHOTOS else read_digits()
if PHOTOS:
    names = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
else:
    names = [str(digit) for digit in range(10)]

unlabelled = data["train_images"][: 1000 if QUICK else None]
test_images, test_labels = (data[f"test_{name}"][: 200 if QUICK else 5000] for name in ("images", "labels"))
labels_per_class = 100 if PHOTOS else 10
chosen = np.concatenate([np.flatnonzero(data["train_labels"] == k)[:labels_per_class] for k in range(10)])
labelled, labels = data["train_images"][chosen], data["train_labels"][chosen]
print(f"{len(unlabelled):,} pictures without labels, {len(labelled):,} with, {len(test_images):,} to test on")

# %% [markdown]
# ## 2 A small ViT
#
# 16 patches for each picture. The mean of the patches is the model's feature (`pooling="gap"`), and positions are fixed
# sines and cosines, as in MAE. With `include_preprocessing=True` the model takes pixels of 0 to 255.

# %%
side, _, channels = unlabelled.shape[1:]


def build():
    """Builds the ViT with new weights, the same each time."""
    keras.utils.set_random_seed(0)
    return keras_vit.ViT(
        "Ti/16",
        image_size=side,
        patch_size=side // 4,
        in_channels=channels,
        num_classes=10,
        class_names=names,
        hidden_dim=128,
        num_layers=4,
        num_heads=4,
        mlp_dim=256,
        pooling="gap",
        position_embedding="sincos2d",
        include_preprocessing=True,
    )


model = build()
print(f"{model.count_params():,} parameters, {model.config.grid} patches of {model.config.patch_size} pixels")

# %% [markdown]
# ## 3 Pre-training
#
# `MAE` wraps the model: the encoder reads the 4 visible patches of 16, and a small decoder predicts the pixels of the
# other 12. `compile` takes an optimizer and no loss, and `fit` takes pictures and no labels. The model is trained in
# place; its head is not touched.


# %%
def optimizer(learning_rate, number, batch_size, epochs):
    """AdamW, with a tenth of the steps as warm-up and a cosine decay."""
    steps = epochs * -(-number // batch_size)
    return AdamW(WarmupDecay(learning_rate, total_steps=steps, warmup_steps=steps // 10))


epochs = 1 if QUICK else 6 if PHOTOS else 100
mae = MAE(model, decoder_num_layers=1, seed=0)
mae.compile(optimizer(2e-3, len(unlabelled), 128, epochs))
history = mae.fit(unlabelled, batch_size=128, epochs=epochs, verbose=0).history
print("loss of the masked patches:", ", ".join(f"{loss:.4f}" for loss in history["loss"][:: max(1, epochs // 6)]))

# %% [markdown]
# ## 4 Reconstructions
#
# Test pictures, which the model has never seen, with 12 of 16 patches hidden. It was asked for the pixels of each patch
# relative to the patch's own mean and contrast, so that it learns shapes and not brightness; for the picture on the
# right, mean and contrast of the hidden patches are taken from the original, and the structure is the model's.

# %%
plot_reconstructions(mae.reconstruct(test_images[:6]))

# %% [markdown]
# ## 5 Few labels, from nothing
#
# First the comparison: new weights, and the labelled pictures alone. Mirrored photos count as further pictures.


# %%
def learn(model):
    """Fine-tunes all weights on the labelled pictures; returns the history with accuracies on the test pictures."""
    images, targets = labelled, labels
    if PHOTOS:
        images, targets = np.concatenate([images, images[:, :, ::-1]]), np.tile(targets, 2)
    epochs = 2 if QUICK else 20 if PHOTOS else 100
    model.compile(
        optimizer(1e-3, len(images), 50, epochs),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    keras.utils.set_random_seed(1)
    every = max(1, epochs // 5)
    tests = {"validation_data": (test_images, test_labels), "validation_freq": every, "validation_batch_size": 500}
    history = model.fit(images, targets, batch_size=50, epochs=epochs, verbose=0, **tests).history
    return history | {"epochs": range(every, epochs + 1, every)}


scratch = learn(build())
print(f"from nothing: test accuracy {scratch['val_accuracy'][-1]:.4f}")

# %% [markdown]
# ## 6 Few labels, after pre-training
#
# The same model, labels, optimizer and epochs, from the weights that MAE left.

# %%
pretrained = learn(mae.plain_model)
print(f"after pre-training: test accuracy {pretrained['val_accuracy'][-1]:.4f}")

# %% [markdown]
# ## 7 What it brought

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.4), layout="constrained")
for name, run, colour in (("from nothing", scratch, "#1f77b4"), ("after MAE", pretrained, "#ff7f0e")):
    left.plot(range(1, len(run["loss"]) + 1), run["loss"], color=colour, label=name)
    right.plot(run["epochs"], run["val_accuracy"], "o-", color=colour, label=f"{name}, {run['val_accuracy'][-1]:.3f}")
left.set(title="loss on the labelled pictures", xlabel="epoch")
right.set(title="accuracy on the test pictures", xlabel="epoch")
for axes in (left, right):
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)

# %%
gain = pretrained["val_accuracy"][-1] - scratch["val_accuracy"][-1]
error = 100 * np.sqrt(0.25 / len(test_labels))
print(f"{100 * gain:+.1f} points of accuracy; the standard error of each accuracy is below {error:.1f} points")

# %% [markdown]
# One run of each is an example, not a measurement. `benchmarks/pretraining.py` repeats the comparison on Fashion-MNIST
# with three seeds, 1,000 labels and 12 epochs of MAE on 60,000 pictures: 0.8144 ± 0.0036 after MAE, 0.7787 ± 0.0025
# from nothing.
#
# ## 8 Where to go from here
#
# - `SimMIM` and `MaskedPatchPrediction`, the ViT paper's own attempt, are used in the same way.
# - `mae.plain_model` is the model to save, or `keras_vit.save_weights(mae.backbone, "backbone.npz")`, which
#   `keras_vit.ViT(..., weights="backbone.npz")` reads, also with another head or image size.
# - `examples/pretrain.py` does this on the command line, on a folder of your own pictures.
# - If a published checkpoint fits your pictures, start from it: it has seen more of them than you can show.
