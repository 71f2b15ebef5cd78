# %% [markdown]
# # From train.csv to submission.csv
#
# An image classification competition from beginning to end, without the internet: a table of labels, folds, a Vision
# Transformer that is fine-tuned once per fold, test-time augmentation, and the mean of all folds as the submission.
#
# **Contents**: 1 Install offline · 2 Data · 3 Folds and pipelines · 4 Model and training · 5 Train the folds ·
# 6 Submission · 7 What next
#
# It needs `keras_vit` with the extras `data` and `inspect`, pandas, and one of TensorFlow, JAX and PyTorch; the
# environment variable `KERAS_BACKEND` chooses one. With Oxford 17 Flowers and `ViT-B_16-224.npz` it takes some minutes
# on two CPU cores.

# %% [markdown]
# ## 1 Install offline
#
# Many competitions run notebooks without the internet. On a machine that has it, with Kaggle's version of Python, this
# makes a folder with the wheels of `keras_vit` and of what it needs, in a clone of its repository:
#
# ```
# pip wheel --wheel-dir keras-vit-wheels .
# ```
#
# Upload the folder as a dataset named `keras-vit-wheels`, and add it to the notebook's inputs, with the images and a
# checkpoint. Keras and a backend are already installed on Kaggle; pip takes only what is missing. Where the folder does
# not exist, the cell does nothing.

# %%
import subprocess
import sys
from pathlib import Path

WHEELS = Path("/kaggle/input/keras-vit-wheels")
if WHEELS.is_dir():
    command = ["pip", "install", "--quiet", "--no-index", "--find-links", str(WHEELS), "keras_vit"]
    subprocess.run([sys.executable, "-m", *command], check=True)

# %%
import os
import shutil
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import pandas as pd

import keras_vit
from keras_vit.evaluation import ensemble, top_k_accuracy

# %matplotlib inline
# %config InlineBackend.print_figure_kwargs = {"bbox_inches": "tight", "dpi": 76, "pil_kwargs": {"quality": 75}}
# %config InlineBackend.figure_formats = ["jpeg"]

QUICK = os.environ.get("KERAS_VIT_QUICK") == "1"
started = time.time()
print("Keras", keras.__version__, "on", keras.backend.backend())

# %% [markdown]
# ## 2 Data
#
# A competition brings `train.csv` (id, label), `test.csv` (id) and a folder of images. Here they are made from a folder
# with one folder of images per class: Oxford 17 Flowers, of which half of each class is the test set, whose labels are
# only used for the score at the end. Without the flowers or the checkpoint, scikit-learn's handwritten digits take
# their place, and a small ViT is trained from scratch. For your competition, leave this cell out, and set `IMAGES`,
# `train` and `test` from its files.


# %%
def sample(name):
    """Finds a file or folder in the inputs of a Kaggle notebook or in the folder KERAS_VIT_SAMPLES; None if absent."""
    places = [Path("/kaggle/input"), *Path("/kaggle/input").glob("*"), Path(os.environ.get("KERAS_VIT_SAMPLES", "."))]
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


flowers, weights = sample("flowers17"), sample("ViT-B_16-224.npz")
REAL = None not in (flowers, weights)
IMAGES, EXTENSION = Path("images"), ".jpg" if REAL else ".png"
IMAGES.mkdir(exist_ok=True)
files = sorted((flowers if REAL else write_digits(Path("digits"))).glob("*/*"))
files = files[:: 10 if REAL else 3] if QUICK else files
rows = []
# The ids do not tell the classes.
for number, i in enumerate(np.random.default_rng(0).permutation(len(files))):
    shutil.copy(files[i], IMAGES / f"{number:05d}{EXTENSION}")
    rows.append({"id": f"{number:05d}", "label": files[i].parent.name})
everything = pd.DataFrame(rows)
hidden = everything.groupby("label").sample(frac=0.5, random_state=0).sort_index()
everything.drop(hidden.index).to_csv("train.csv", index=False)
hidden[["id"]].to_csv("test.csv", index=False)

# %%
train, test = (pd.read_csv(path, dtype=str) for path in ("train.csv", "test.csv"))
names = sorted(set(train["label"]))
print(len(train), "images of", len(names), "classes to train on,", len(test), "to predict")
train.head(3)

# %% [markdown]
# ## 3 Folds and pipelines
#
# `folds` splits the table so that each fold has as many images of each class, and `from_dataframe` makes a dataset of a
# part. `preprocessing=model` takes the image size, the resizing and the scaling from the model.
#
# Training images are resized to 8/7 of the size, cropped at random and mirrored; MixUp blends pairs of images and of
# labels, which are therefore one-hot. Mirrored digits would be no digits.

# %%
FOLDS = 2
FILES = {"directory": IMAGES, "path_column": "id", "extension": EXTENSION}
TTA = "flip" if REAL else "five_crop"


def datasets(model, training, validation):
    """Returns the datasets of a fold."""
    options = {**FILES, "preprocessing": model, "class_names": names, "batch_size": 16}
    policy = keras_vit.data.Policy(mixup=0.2)
    return (
        keras_vit.data.from_dataframe(training, crop="finetune", flip=REAL, policy=policy, **options),
        keras_vit.data.from_dataframe(validation, training=False, labels="one_hot", **options),
    )


# %% [markdown]
# ## 4 Model and training
#
# `from_pretrained` reads the checkpoint, adds a head of zeros for the classes, and interpolates the position embeddings
# for other image sizes. The lower blocks stay frozen: edges and textures are the same in all pictures, and a step is
# shorter. On a CPU, images of 160 pixels take half of the time of 224, and only two blocks and the head are trained.
#
# - **Mixed precision**: `"mixed_float16"` on a GPU; Keras scales the loss by itself. TPUs take `"mixed_bfloat16"`, and
#   so do CPUs that multiply in bfloat16; on others it is slower than float32.
# - **Schedule**: the learning rate rises for a tenth of the steps, then falls along a cosine to 0.
# - **EMA**: `use_ema` keeps a moving average of the weights, and `SwapEMAWeights` puts it into the model for each
#   validation, so that `EarlyStopping` judges and restores averaged weights. It has to be the first of the two.


# %%
CPU = shutil.which("nvidia-smi") is None
EPOCHS = 2 if QUICK or REAL else 30
SIZE, FROZEN, DTYPE = (160, 10, "float32") if CPU else (224, 6, "mixed_float16")


def build():
    """Builds the model of a fold, with frozen lower layers."""
    options = {"num_classes": len(names), "class_names": names, "include_preprocessing": True, "dtype": DTYPE}
    if REAL:
        model = keras_vit.from_pretrained(weights, image_size=SIZE, **options)
        keras_vit.training.freeze(model, blocks=FROZEN)
        return model
    sizes = {"image_size": 16, "patch_size": 4, "hidden_dim": 64, "num_layers": 4, "num_heads": 4, "mlp_dim": 128}
    return keras_vit.ViT("Ti/16", **sizes, **options)


def fit(model, training, validation):
    """Trains the model of a fold; returns the history."""
    steps = EPOCHS * len(training)
    schedule = keras_vit.training.WarmupDecay(0.02 if REAL else 0.1, steps, warmup_steps=steps // 10)
    model.compile(
        optimizer=keras_vit.training.sgd(schedule, global_clipnorm=1.0, use_ema=True, ema_momentum=0.9),
        loss=keras.losses.CategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    keras_vit.training.preflight(model, training, validation_data=validation, epochs=EPOCHS)
    callbacks = [
        keras.callbacks.SwapEMAWeights(swap_on_epoch=True),
        keras.callbacks.EarlyStopping("val_loss", patience=2, restore_best_weights=True),
    ]
    options = {"epochs": EPOCHS, "callbacks": callbacks, "verbose": 2}
    # The dataset shuffles; Keras would warn that it cannot.
    return model.fit(training, validation_data=validation, shuffle=False, **options)


# %% [markdown]
# ## 5 Train the folds
#
# Each fold's model predicts the images that it did not see in training. Together these out-of-fold predictions are an
# honest score of all training images: the one to compare ideas by, instead of the public leaderboard. Then the model
# predicts the test images, with test-time augmentation: the mean of the probabilities of an image and its mirror image.

# %%
truth = np.array([names.index(label) for label in train["label"]])
out_of_fold = pd.DataFrame(np.nan, index=train["id"], columns=names)
tests, histories = [], []
for fold, (training, validation) in enumerate(keras_vit.data.folds(train, FOLDS, seed=0)):
    keras.utils.set_random_seed(fold)
    model = build()
    histories.append(fit(model, *datasets(model, training, validation)))
    held_out = keras_vit.predict_images(model, validation, **FILES, verbose=0)
    out_of_fold.loc[held_out.index] = held_out
    tests.append(keras_vit.predict_images(model, test, **FILES, tta=TTA, verbose=0))
    correct = held_out.idxmax(axis=1).to_numpy() == np.array(validation["label"])
    print(
        f"fold {fold}: accuracy {correct.mean():.4f} on {len(correct)} images, {(time.time() - started) / 60:.1f} min"
    )
print(f"out of fold: accuracy {top_k_accuracy(out_of_fold.to_numpy(), truth):.4f}")

# %%
keras_vit.inspection.plot_history(histories[-1])

# %% [markdown]
# The training images that the models understand least: wrong labels, odd pictures, and classes that look alike.

# %%
hardest = out_of_fold.to_numpy()[np.arange(len(truth)), truth].argsort()[:12]
pictures = np.stack([keras_vit.read_image(IMAGES / f"{train['id'][i]}{EXTENSION}", model) for i in hardest])
keras_vit.inspection.plot_predictions(pictures, truth[hardest], out_of_fold.to_numpy("float64")[hardest], names)

# %% [markdown]
# ## 6 Submission
#
# `ensemble` averages the predictions of the folds. Competitions that ask for a probability per class take
# `mean.to_csv("submission.csv")`.

# %%
mean = ensemble(tests)
mean.idxmax(axis=1).rename("label").to_csv("submission.csv")
submission = pd.read_csv("submission.csv", dtype=str)
submission.head()

# %%
for title, frame in [*((f"fold {fold}", frame) for fold, frame in enumerate(tests)), ("ensemble", mean)]:
    print(f"{title}: {(frame.idxmax(axis=1).to_numpy() == hidden['label'].to_numpy()).mean():.4f} of the test images")
print(f"{(time.time() - started) / 60:.1f} minutes, {time.process_time() / 60:.1f} minutes of CPU time")

# %% [markdown]
# ## 7 What next
#
# - In a competition, train and predict in two notebooks: `keras_vit.save_weights(model, "fold_0.npz")` here,
#   `keras_vit.from_pretrained("fold_0.npz")` there.
# - `keras_vit.training.Resume` continues a training that was stopped with the session.
# - `ensemble([model_0, model_1])` makes one model of several, to export or to serve.
# - For several labels per image, pass `label_separator=` or a list of 0/1 columns to `from_dataframe`, and
#   `multi_label=True` to `from_pretrained`; for numbers, `labels="float"` and `regression=True`.
