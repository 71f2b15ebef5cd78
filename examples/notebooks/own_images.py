# %% [markdown]
# # Your own images in twenty lines
#
# A folder with one folder of images per class is all that this notebook needs:
#
# ```
# flowers17/
#     bluebell/    0001.jpg  0002.jpg ...
#     buttercup/   0241.jpg ...
# ```
#
# It fine-tunes a Vision Transformer that was trained on ImageNet, looks at what it learned, and names the classes of
# new files.
#
# **Contents**: 1 Find images and weights · 2 Twenty lines · 3 How it went · 4 New files
#
# It needs `keras_vit` with the extras `data` and `inspect`, pandas, scikit-learn, and one of TensorFlow, JAX and
# PyTorch; the environment variable `KERAS_BACKEND` chooses one.

# %%
import os
import shutil
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np

import keras_vit

# %matplotlib inline
# %config InlineBackend.print_figure_kwargs = {"bbox_inches": "tight", "dpi": 76, "pil_kwargs": {"quality": 75}}
# %config InlineBackend.figure_formats = ["jpeg"]

QUICK = os.environ.get("KERAS_VIT_QUICK") == "1"
print("Keras", keras.__version__, "on", keras.backend.backend())

# %% [markdown]
# ## 1 Find images and weights
#
# In a Kaggle notebook, the images and the weights are inputs, under `/kaggle/input`. Elsewhere, the environment
# variable `KERAS_VIT_SAMPLES` names a folder that holds them. Without either, scikit-learn's handwritten digits are
# written as PNG files, and a small ViT learns them from scratch.
#
# For your own images, replace `folder` by the path of your folder. The weights can be any checkpoint that
# `from_pretrained` reads, also from a hub: `"hf://google/vit-base-patch16-224"`.


# %%
def sample(name):
    """Finds a file or folder in the inputs of a Kaggle notebook or in the folder KERAS_VIT_SAMPLES; None if absent."""
    places = [*Path("/kaggle/input").glob("*"), Path(os.environ.get("KERAS_VIT_SAMPLES", "samples"))]
    paths = [place / folder / name for place in places for folder in ("", "weights")]
    return next((path for path in paths if path.exists()), None)


def write_digits(folder):
    """Writes scikit-learn's 1,797 handwritten digits as PNG files, with one folder per class."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    for i, (image, label) in enumerate(zip(images, labels, strict=True)):
        (folder / str(label)).mkdir(parents=True, exist_ok=True)
        image = np.repeat(image.reshape(8, 8, 1) * (255 / 16), 3, axis=-1)
        keras.utils.save_img(folder / str(label) / f"{i:04d}.png", image, scale=False)
    return folder


folder, weights = sample("flowers17"), sample("ViT-B_16-224.npz")
REAL = None not in (folder, weights)
if not REAL:
    folder = write_digits(Path("digits"))
if QUICK:
    # Only the first few images of each class.
    for path in [path for part in folder.iterdir() for path in sorted(part.iterdir())[:8]]:
        Path("few", path.parent.name).mkdir(parents=True, exist_ok=True)
        shutil.copy(path, Path("few", path.parent.name))
    folder = Path("few")
print(len(list(folder.glob("*/*"))), "images of", len(list(folder.glob("*"))), "classes in", folder.name)

# %% [markdown]
# ## 2 Twenty lines
#
# `from_pretrained` builds the model that the file contains, with a new head for your classes. `preprocessing=model`
# resizes and scales the images as that model wants them. A fifth of the images is held out.
#
# Only the last two of the twelve blocks and the head are trained, and the images have 160 pixels instead of 224: both
# save time on a CPU. `preflight` checks images, labels, loss and model before the training starts, and prints a
# summary.

# %%
keras.utils.set_random_seed(0)
names = sorted(path.name for path in folder.iterdir())
epochs = 1 if REAL else 2 if QUICK else 20
if REAL:
    options = {"num_classes": len(names), "class_names": names, "include_preprocessing": True}
    model = keras_vit.from_pretrained(weights, image_size=160, **options)
    keras_vit.training.freeze(model, blocks=10)
else:
    sizes = {"image_size": 16, "patch_size": 4, "hidden_dim": 64, "num_layers": 4, "num_heads": 4, "mlp_dim": 128}
    model = keras_vit.ViT("Ti/16", **sizes, num_classes=len(names), class_names=names, include_preprocessing=True)
train, valid = keras_vit.data.from_directory(
    folder, validation_split=0.2, subset="both", preprocessing=model, scale=(0.5, 1.0), flip=REAL, batch_size=16
)
steps = epochs * len(train)
optimizer = keras_vit.training.AdamW(keras_vit.training.WarmupDecay(3e-4 if REAL else 2e-3, steps, steps // 10), 0.01)
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(optimizer, loss, metrics=["accuracy"])
keras_vit.training.preflight(model, train, validation_data=valid, epochs=epochs)
# The dataset shuffles; Keras would warn that it cannot.
history = model.fit(train, validation_data=valid, epochs=epochs, shuffle=False, verbose=2)
model.save("my_images.keras")

# %% [markdown]
# ## 3 How it went
#
# `predict` returns the probabilities of the held-out images, in the order of `file_paths`. These are the ones whose
# true class got the lowest probability: with your own images, this is where wrong labels and odd pictures are found.

# %%
truth = np.array(valid.file_labels)
probabilities = keras_vit.evaluation.predict(model, valid, verbose=0)
print(f"accuracy on {len(truth)} held-out images: {keras_vit.evaluation.top_k_accuracy(probabilities, truth):.4f}")
keras_vit.inspection.plot_history(history)

# %%
hardest = probabilities[np.arange(len(truth)), truth].argsort()[:12]
images = np.stack([keras_vit.read_image(valid.file_paths[i], model) for i in hardest])
keras_vit.inspection.plot_predictions(images, truth[hardest], probabilities[hardest], names)

# %% [markdown]
# ## 4 New files
#
# The saved model is complete: weights, class names and preprocessing. `predict_images` takes files, folders, CSV files
# and DataFrames, and returns a DataFrame with a row per image and a column per class. `tta="flip"` averages the
# predictions of each image and its mirror image, which mirrored digits would not help.

# %%
saved = keras.saving.load_model("my_images.keras")
new = {"file": [str(Path(path).relative_to(folder)) for path in valid.file_paths[:: len(truth) // 6]]}
table = keras_vit.predict_images(saved, new, directory=folder, tta="flip" if REAL else None, verbose=0)
table.agg(["idxmax", "max"], axis=1).rename(columns={"idxmax": "class", "max": "probability"})

# %% [markdown]
# The same from a terminal, for a folder `photos`, and the whole training as one command:
#
# ```
# keras-vit predict photos --weights my_images.keras --csv predictions.csv
# keras-vit train --data flowers17 --weights ViT-B_16-224.npz --out runs/flowers
# ```
