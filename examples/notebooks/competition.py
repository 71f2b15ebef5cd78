# %% [markdown]
# # A competition from train.csv to submission.csv
#
# The files are those of an image classification competition: `train.csv` with a file and a label per row, `test.csv`
# with files only, and a folder of images. This notebook cross-validates a Vision Transformer with mixed precision,
# MixUp, a learning rate schedule, an average of the weights (EMA) and early stopping, predicts the test images with
# test-time augmentation, averages the models of all folds, and writes `submission.csv`.
#
# **Contents**: 1 Install without a network · 2 The files · 3 Settings · 4 One model per fold · 5 Mistakes on held-out
# images · 6 submission.csv · 7 Several labels, or a number
#
# It needs `keras_vit` with the extras `data` and `inspect`, pandas, scikit-learn, and one of TensorFlow, JAX and
# PyTorch; the environment variable `KERAS_BACKEND` chooses one.
#
# ## 1 Install without a network
#
# Many competitions forbid a network connection. On a machine with one, in a clone of the repository, collect the
# package and all that it needs in a folder, and attach the folder as an input:
#
# ```
# pip wheel --wheel-dir wheels .
# ```
#
# Then this is the first line of the notebook; TensorFlow, pandas and matplotlib are already installed on Kaggle:
#
# ```
# !pip install --no-index --find-links /kaggle/input/wheels keras-vit
# ```

# %%
import os
import shutil
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import pandas as pd

import keras_vit

# %matplotlib inline
# %config InlineBackend.print_figure_kwargs = {"bbox_inches": "tight", "dpi": 76, "pil_kwargs": {"quality": 75}}
# %config InlineBackend.figure_formats = ["jpeg"]

QUICK = os.environ.get("KERAS_VIT_QUICK") == "1"
print("Keras", keras.__version__, "on", keras.backend.backend())

# %% [markdown]
# ## 2 The files
#
# In a Kaggle notebook, the competition and the weights are inputs, under `/kaggle/input`. If no input has a
# `train.csv`, a competition is made of the folder of images `flowers17` (Oxford 17 Flowers) in the folder that the
# environment variable `KERAS_VIT_SAMPLES` names, or else of scikit-learn's handwritten digits: a quarter of the images
# are the test images, and `solution.csv` keeps their labels.


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
        (folder / f"digit_{label}").mkdir(parents=True, exist_ok=True)
        image = np.repeat(image.reshape(8, 8, 1) * (255 / 16), 3, axis=-1)
        keras.utils.save_img(folder / f"digit_{label}" / f"{i:04d}.png", image, scale=False)
    return folder


def write_competition(images, folder):
    """Writes the files of a competition whose images are those of a folder with one folder per class."""
    rows = []
    for number, path in enumerate(sorted(images.glob("*/*"))):
        rows.append({"image": f"images/{number:05d}{path.suffix}", "label": path.parent.name})
        (folder / "images").mkdir(parents=True, exist_ok=True)
        shutil.copy(path, folder / rows[-1]["image"])
    table = pd.DataFrame(rows)
    test = table.groupby("label").sample(frac=0.25, random_state=0).index
    table.drop(test).to_csv(folder / "train.csv", index=False)
    table.loc[test, ["image"]].to_csv(folder / "test.csv", index=False)
    table.loc[test].to_csv(folder / "solution.csv", index=False)
    return folder


weights = sample("ViT-B_16-224.npz")
if sample("train.csv"):
    folder = sample("train.csv").parent
elif sample("flowers17") and weights:
    folder = write_competition(sample("flowers17"), Path("competition"))
else:
    folder, weights = write_competition(write_digits(Path("digits")), Path("competition")), None
train, test = pd.read_csv(folder / "train.csv"), pd.read_csv(folder / "test.csv")
if QUICK:
    train, test = train.groupby("label").head(8).reset_index(drop=True), test[:40]
names = sorted(train["label"].unique())
print(len(train), "labelled images of", len(names), "classes,", len(test), "to predict")
train.head(3)

# %% [markdown]
# ## 3 Settings
#
# These are for two CPU cores and a quarter of an hour. With a GPU, train all blocks (`blocks=None`) at 224 or 384
# pixels with five folds and more epochs. `mixed_float16` suits Kaggle's GPUs; newer ones and CPUs compute in bfloat16.

# %%
GPU = shutil.which("nvidia-smi") is not None
keras.config.set_dtype_policy("mixed_float16" if GPU else "mixed_bfloat16")
settings = {
    "num_folds": 2,
    "image_size": 160 if weights else 16,
    "blocks": 10 if weights else None,
    "epochs": 2 if weights or QUICK else 12,
    "learning_rate": 3e-4 if weights else 2e-3,
    "batch_size": 16,
    "augment": keras_vit.data.Policy(mixup=0.2),
}


def build():
    """Builds the model of one fold: a pretrained ViT with a new head, or a small one without weights."""
    head = {"num_classes": len(names), "class_names": names}
    if weights is None:
        sizes = {"patch_size": 4, "hidden_dim": 64, "num_layers": 4, "num_heads": 4, "mlp_dim": 128}
        return keras_vit.ViT("Ti/16", image_size=settings["image_size"], **sizes, **head)
    model = keras_vit.from_pretrained(weights, image_size=settings["image_size"], **head)
    if settings["blocks"]:
        keras_vit.training.freeze(model, blocks=settings["blocks"])
    return model


# %% [markdown]
# ## 4 One model per fold
#
# `folds` stratifies: each fold has its share of every class. MixUp makes one-hot labels, so the validation data has
# them too. `SwapEMAWeights` comes before `EarlyStopping`, which then judges and keeps the averaged weights.


# %%
def dataset(table, model, **options):
    """Makes the batches of a table's images."""
    return keras_vit.data.from_dataframe(
        table,
        directory=folder,
        path_column="image",
        class_names=names,
        labels="one_hot",
        preprocessing=model,
        batch_size=settings["batch_size"],
        **options,
    )


def fit(model, train, valid):
    """Trains one model, and returns the history."""
    steps = settings["epochs"] * len(train)
    rate = keras_vit.training.WarmupDecay(settings["learning_rate"], steps, steps // 10)
    optimizer = keras_vit.training.AdamW(rate, weight_decay=0.01, use_ema=True, ema_momentum=0.9)
    model.compile(optimizer, keras.losses.CategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    callbacks = [
        keras.callbacks.SwapEMAWeights(swap_on_epoch=True),
        keras.callbacks.EarlyStopping("val_loss", patience=2, restore_best_weights=True),
    ]
    # The dataset shuffles; Keras would warn that it cannot.
    options = {"epochs": settings["epochs"], "callbacks": callbacks, "shuffle": False, "verbose": 2}
    return model.fit(train, validation_data=valid, **options)


members, held_out = [], []
for fold, (train_rows, valid_rows) in enumerate(keras_vit.data.folds(train, settings["num_folds"])):
    keras.utils.set_random_seed(fold)
    print(f"fold {fold}: {len(train_rows['label'])} images to train on, {len(valid_rows['label'])} held out")
    model = build()
    training = dataset(
        train_rows, model, training=True, augment=settings["augment"], scale=(0.5, 1.0), flip=weights is not None
    )
    validation = dataset(valid_rows, model, training=False)
    history = fit(model, training, validation)
    held_out.append((pd.DataFrame(valid_rows), keras_vit.evaluation.predict(model, validation, verbose=0)))
    model.save(f"fold_{fold}.keras")
    members.append(f"fold_{fold}.keras")

# %% [markdown]
# ## 5 Mistakes on held-out images
#
# Each image was held out once, so the out-of-fold accuracy is that of all labelled images. These are the images whose
# label got the lowest probability: look here for wrong labels.

# %%
labelled = pd.concat([rows for rows, _ in held_out], ignore_index=True)
probabilities = np.concatenate([rows for _, rows in held_out])
truth = np.array([names.index(label) for label in labelled["label"]])
print(f"out-of-fold accuracy: {keras_vit.evaluation.top_k_accuracy(probabilities, truth):.4f}")
hardest = probabilities[np.arange(len(truth)), truth].argsort()[:8]
images = np.stack([keras_vit.read_image(folder / labelled["image"][i], model) for i in hardest])
keras_vit.inspection.plot_predictions(images, truth[hardest], probabilities[hardest], names)

# %% [markdown]
# ## 6 submission.csv
#
# `tta="flip"` averages the probabilities of each image and its mirror image, and `ensemble` those of all folds. The
# models are read from their files, so that this part can be a notebook of its own.

# %%
predictions = []
for path in members:
    model = keras.saving.load_model(path)
    tta = "flip" if weights else None
    predictions.append(keras_vit.predict_images(model, test, path_column="image", directory=folder, tta=tta, verbose=0))
submission = keras_vit.evaluation.ensemble(predictions).idxmax(axis=1).rename("label")
submission.to_csv("submission.csv")
pd.read_csv("submission.csv").head(3)

# %%
if (folder / "solution.csv").exists():
    solution = pd.read_csv(folder / "solution.csv", index_col="image")["label"]
    for name, guesses in [*zip(members, predictions, strict=True), ("ensemble", None)]:
        guesses = submission if guesses is None else guesses.idxmax(axis=1)
        print(f"{name}: accuracy on {len(guesses)} test images {(guesses == solution[guesses.index]).mean():.4f}")

# %% [markdown]
# ## 7 Several labels, or a number
#
# Not every competition has one class per image. The rest of the notebook stays as it is; the head, the labels and the
# loss change:
#
# - Several classes per image, as "cat dog" in one cell: `label_separator=" "` (or a list of 0/1 columns as
#   `label_column`), `task="multi_label"`, `BinaryCrossentropy`; predictions are a probability per class.
# - A number, such as an age: `labels="float"`, `task="regression"`, `MeanSquaredError`; predictions are the numbers.

# %%
keras.config.set_dtype_policy("float32")
paths = [str(folder / name) for name in train["image"][:4]]
table = {"path": paths, "tags": ["a b", "b", "a", "c"], "age": [3, 1, 4, 2]}
small = {"image_size": 16, "patch_size": 8, "hidden_dim": 32, "num_layers": 1, "num_heads": 2, "mlp_dim": 64}

tagger = keras_vit.ViT("Ti/16", **small, num_classes=3, class_names=["a", "b", "c"], task="multi_label")
tagged = keras_vit.data.from_dataframe(table, label_column="tags", label_separator=" ", preprocessing=tagger)
tagger.compile("adam", keras.losses.BinaryCrossentropy(from_logits=True))
tagger.fit(tagged, verbose=0, shuffle=False)
print(keras_vit.predict_images(tagger, paths, verbose=0).round(2).to_string(index=False))

# %%
regressor = keras_vit.ViT("Ti/16", **small, num_classes=1, task="regression")
aged = keras_vit.data.from_dataframe(table, label_column="age", labels="float", preprocessing=regressor)
regressor.compile("adam", "mse")
regressor.fit(aged, verbose=0, shuffle=False)
print(keras_vit.predict_images(regressor, paths, verbose=0).round(2).to_string(index=False))
