# %% [markdown]
# # Pre-train without labels, then learn from few
#
# Pictures are cheap, and labels are not. A masked autoencoder (MAE, [arXiv
# 2111.06377](https://arxiv.org/abs/2111.06377)) learns from pictures alone: it reads a quarter of the patches and
# predicts the hidden ones. Then the same Vision Transformer learns the classes from a few labelled pictures, and is
# compared with a model that starts from random weights.
#
# **Contents**: 1 Pictures, most without labels · 2 A small ViT · 3 Pre-training · 4 Reconstructions · 5 Few labels,
# from nothing · 6 Few labels, after pre-training · 7 What pre-training adds · 8 Where to go from here
#
# This notebook needs `keras_vit` with the extra `inspect`, and one of TensorFlow, JAX and PyTorch; the environment
# variable `KERAS_BACKEND` chooses one.
#
# ## 1 Pictures, most without labels
#
# CIFAR-10 has 50,000 photos of 32 x 32 pixels to train on. All of them are used without their labels, and 1,000 of them
# with their labels. `samples.py`, which lies beside this notebook in the repository, reads the photos from
# `cifar10.npz`. Without this file, scikit-learn's handwritten digits take their place; the texts below are about
# CIFAR-10. In Kaggle and Colab, upload `samples.py` and copy it to the working folder first. For your own pictures,
# replace the arrays. Then you need `samples.py` only for the first figure, which shows two labelled pictures per class.

# %%
import keras
import matplotlib.pyplot as plt
import numpy as np
import samples

import keras_vit
from keras_vit.pretraining import MAE, plot_reconstructions
from keras_vit.training import AdamW, WarmupDecay

data, names = samples.cifar10()
unlabelled = data["train_images"]
chosen = np.concatenate([np.flatnonzero(data["train_labels"] == k)[:100] for k in range(10)])
labelled, labels = data["train_images"][chosen], data["train_labels"][chosen]
test_images, test_labels = data["test_images"][:5000], data["test_labels"][:5000]
print(f"{len(unlabelled):,} pictures without labels, {len(labelled):,} with, {len(test_images):,} to test on")
samples.show(labelled[::50], [names[label] for label in labels[::50]], columns=10)

# %% [markdown]
# ## 2 A small ViT
#
# The model cuts each picture into 16 patches. The mean of the patches is the model's feature (`pooling="gap"`), and
# positions are fixed sines and cosines, as in MAE. With `include_preprocessing=True`, the model takes pixels of 0 to
# 255.


# %%
def build():
    """Builds the ViT with new weights, the same each time."""
    keras.utils.set_random_seed(0)
    return keras_vit.ViT(
        "Ti/16",
        image_size=32,
        patch_size=8,
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
# `MAE` wraps the model, which becomes the encoder. 12 of the 16 patches are hidden. The encoder reads the 4 visible
# patches, and a small decoder predicts the pixels of the hidden ones. `compile` takes an optimizer and no loss, and
# `fit` takes pictures and no labels. `fit` trains the model in place, except for its head.


# %%
def optimizer(learning_rate, number, batch_size, epochs):
    """Returns AdamW with a warm-up of a tenth of the steps and a cosine decay."""
    steps = epochs * -(-number // batch_size)
    return AdamW(WarmupDecay(learning_rate, total_steps=steps, warmup_steps=steps // 10))


epochs = 6
mae = MAE(model, decoder_num_layers=1, seed=0)
mae.compile(optimizer(2e-3, len(unlabelled), 128, epochs))
history = mae.fit(unlabelled, batch_size=128, epochs=epochs, verbose=0).history
print("loss of the masked patches:", ", ".join(f"{loss:.4f}" for loss in history["loss"]))

# %% [markdown]
# ## 4 Reconstructions
#
# These test pictures are new to the model, and 12 of their 16 patches are hidden. `MAE` predicts the pixels of each
# patch relative to the mean and contrast of this patch, so that the model learns shapes and not brightness. In the
# pictures on the right, the hidden patches have the mean and contrast of the original, and the structure that the model
# predicted.

# %%
plot_reconstructions(mae.reconstruct(test_images[:6]))

# %% [markdown]
# ## 5 Few labels, from nothing
#
# For comparison, a model with new weights learns only from the labelled pictures and their mirror images.


# %%
def learn(model):
    """Fine-tunes all weights on the labelled pictures; returns the history with accuracies on the test pictures."""
    images, targets = np.concatenate([labelled, labelled[:, :, ::-1]]), np.tile(labels, 2)
    epochs, every = 20, 4
    model.compile(
        optimizer(1e-3, len(images), 50, epochs),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    keras.utils.set_random_seed(1)
    tests = {"validation_data": (test_images, test_labels), "validation_freq": every, "validation_batch_size": 500}
    history = model.fit(images, targets, batch_size=50, epochs=epochs, verbose=0, **tests).history
    return history | {"epochs": range(every, epochs + 1, every)}


scratch = learn(build())
print(f"from nothing: test accuracy {scratch['val_accuracy'][-1]:.4f}")

# %% [markdown]
# ## 6 Few labels, after pre-training
#
# Model, labels, optimizer and epochs are the same, but the training starts from the weights that MAE learned.

# %%
pretrained = learn(mae.plain_model)
print(f"after pre-training: test accuracy {pretrained['val_accuracy'][-1]:.4f}")

# %% [markdown]
# ## 7 What pre-training adds

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
# One run of each training is an example, not a measurement. `benchmarks/pretraining.py` repeats the comparison on
# Fashion-MNIST with three seeds, 1,000 labels and 12 epochs of MAE on 60,000 pictures. In this benchmark, the test
# accuracy is 0.8144 ± 0.0036 after MAE, and 0.7787 ± 0.0025 for a model that starts from random weights.
#
# ## 8 Where to go from here
#
# - `SimMIM` and `MaskedPatchPrediction`, the method of the ViT paper, are used in the same way.
# - `mae.plain_model` is the model to save. For another head or image size, write
#   `keras_vit.save_weights(mae.backbone, "backbone.npz")`, and read the file with
#   `keras_vit.ViT(..., weights="backbone.npz")`.
# - `examples/pretrain.py` pre-trains on the command line, on a folder of your own pictures.
# - If a published checkpoint fits your pictures, start from it. It has learned from more pictures than you have.
