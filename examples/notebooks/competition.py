# %% [markdown]
# # A competition from train.csv to submission.csv
#
# An image classification competition usually has three parts: `train.csv` with the name of an image and its label in
# each row, `test.csv` with names of images only, and a folder of images. This notebook cross-validates a Vision
# Transformer. It trains one model per fold with mixed precision, MixUp, a learning rate schedule, an average of the
# weights (EMA) and early stopping. Then it predicts the test images with test-time augmentation, averages the
# predictions of all models, and writes `submission.csv`.
#
# **Contents**: 1 The files · 2 Settings · 3 One model per fold · 4 Mistakes on held-out images · 5 Attention ·
# 6 submission.csv · 7 Several labels, or a number
#
# This notebook needs `keras_vit` with the extras `data` and `inspect`, pandas, scikit-learn, and one of TensorFlow, JAX
# and PyTorch; the environment variable `KERAS_BACKEND` chooses one.
#
# ## 1 The files
#
# `samples.py`, which lies beside this notebook in the repository, makes a competition from the images of Oxford 17
# Flowers, or from handwritten digits. A quarter of the images are the test images, and `solution.csv` contains their
# labels.
#
# Many competitions on Kaggle forbid a network connection. For these, run the following command in a clone of the
# repository, on a machine with a network. It puts the package and `samples.py` into the folder `inputs`. Attach this
# folder and a checkpoint as inputs of the notebook:
#
# ```
# pip wheel --no-deps --wheel-dir inputs . && cp examples/notebooks/samples.py inputs
# ```
#
# Begin the notebook with the following lines. In the next cell, replace `samples.competition()` by the path of the
# competition and `samples.weights()` by the path of the checkpoint:
#
# ```
# !pip install --no-index --no-deps /kaggle/input/inputs/keras_vit-*.whl
# !cp /kaggle/input/inputs/samples.py .
# ```

# %%
import keras
import pandas as pd
import samples

import keras_vit

folder, weights = samples.competition(), samples.weights()
train, test = (pd.read_csv(folder / name, dtype=str) for name in ("train.csv", "test.csv"))
names = sorted(train["label"].unique())
print(f"{len(train)} labelled images of {len(names)} classes, {len(test)} images to predict")
first = train.groupby("label").first()[:16]
samples.show([folder / path for path in first["image"]], first.index)

# %%
train.head(3)

# %% [markdown]
# ## 2 Settings
#
# With these settings, the notebook takes a quarter of an hour on two CPU cores. With a GPU, train all blocks at 224 or
# 384 pixels with five folds and more epochs. `mixed_bfloat16` suits CPUs and newer GPUs; for Kaggle's GPUs, set
# `mixed_float16`.

# %%
keras.config.set_dtype_policy("mixed_bfloat16")
num_folds, image_size, trained_blocks, epochs, learning_rate, batch_size = 2, 160, 2, 2, 3e-4, 16


def build():
    """Builds the model of one fold: a pretrained ViT with a new head."""
    model = keras_vit.from_pretrained(weights, image_size=image_size, num_classes=len(names), class_names=names)
    keras_vit.training.freeze(model, blocks=len(model.blocks) - trained_blocks)
    return model


# %% [markdown]
# ## 3 One model per fold
#
# `folds` stratifies: each fold has its share of every class. MixUp mixes one-hot labels, so the validation data also
# has one-hot labels. `SwapEMAWeights` comes before `EarlyStopping`, so that `EarlyStopping` compares and keeps the
# averaged weights.


# %%
def dataset(table, model, **options):
    """Returns a dataset of the images in a table."""
    return keras_vit.data.from_dataframe(
        table,
        directory=folder,
        path_column="image",
        class_names=names,
        labels="one_hot",
        preprocessing=model,
        batch_size=batch_size,
        **options,
    )


def fit(model, train, valid):
    """Trains one model."""
    steps = epochs * len(train)
    rate = keras_vit.training.WarmupDecay(learning_rate, steps, steps // 10)
    optimizer = keras_vit.training.AdamW(rate, weight_decay=0.01, use_ema=True, ema_momentum=0.9)
    model.compile(optimizer, keras.losses.CategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    callbacks = [
        keras.callbacks.SwapEMAWeights(swap_on_epoch=True),
        keras.callbacks.EarlyStopping("val_loss", patience=2, restore_best_weights=True),
    ]
    # The dataset already shuffles. With shuffle=True, Keras would warn that it cannot shuffle a dataset.
    model.fit(train, validation_data=valid, epochs=epochs, callbacks=callbacks, shuffle=False, verbose=2)


members, held_out = [], []
for fold, (train_rows, valid_rows) in enumerate(keras_vit.data.folds(train, num_folds)):
    keras.utils.set_random_seed(fold)
    print(f"fold {fold}: {len(train_rows['label'])} images to train on, {len(valid_rows['label'])} held out")
    model = build()
    mixup = keras_vit.data.Policy(mixup=0.2)
    training = dataset(train_rows, model, training=True, augment=mixup, scale=(0.5, 1.0), flip=True)
    validation = dataset(valid_rows, model, training=False)
    fit(model, training, validation)
    held_out.append((pd.DataFrame(valid_rows), keras_vit.evaluation.predict(model, validation, verbose=0)))
    model.save(f"fold_{fold}.keras")
    members.append(f"fold_{fold}.keras")

# %% [markdown]
# ## 4 Mistakes on held-out images
#
# Each image was held out once, so one of the models predicted its class without having seen the image. The out-of-fold
# accuracy of these predictions covers all labelled images. In the confusion matrix, rows are the true classes and
# columns the predicted ones.

# %%
import numpy as np
from sklearn.metrics import confusion_matrix

labelled = pd.concat([rows for rows, _ in held_out], ignore_index=True)
probabilities = np.concatenate([values for _, values in held_out])
truth = np.array([names.index(label) for label in labelled["label"]])
print(f"out-of-fold accuracy: {keras_vit.evaluation.top_k_accuracy(probabilities, truth):.4f}")
keras_vit.evaluation.plot_confusion_matrix(confusion_matrix(truth, probabilities.argmax(axis=1)), names)

# %% [markdown]
# These are the images whose label got the lowest probability. Check them for wrong labels.

# %%
hardest = probabilities[np.arange(len(truth)), truth].argsort()[:12]
images = np.stack([keras_vit.read_image(folder / labelled["image"][i], model) for i in hardest])
keras_vit.inspection.plot_predictions(images, truth[hardest], probabilities[hardest], names)

# %% [markdown]
# ## 5 Attention
#
# The figure shows one held-out image of each class: the image for which the last model gives this class the highest
# probability. The bright patches contributed to this probability: `gradient_rollout` weights the attention of all
# blocks by the gradient of the class.

# %%
rows, values = held_out[-1]
images = np.stack([keras_vit.read_image(folder / rows["image"].iloc[i], model) for i in values.argmax(axis=0)])
inputs = keras_vit.preprocess_input(images, model)
attention = keras_vit.inspection.gradient_rollout(model, inputs, classes=np.arange(len(names)))
samples.show(keras_vit.inspection.attention_overlay(images, attention), names, columns=6)

# %% [markdown]
# ## 6 submission.csv
#
# `tta="flip"` averages the probabilities for an image and for its mirror image, and `ensemble` averages the predictions
# of all models. The models are read from their files, so that this part can also run in a separate notebook. The row of
# an unreadable image is NaN, and `fillna(0)` gives this image the first class.

# %%
predictions = []
for path in members:
    model = keras.saving.load_model(path)
    options = {"path_column": "image", "directory": folder, "tta": "flip", "verbose": 0}
    predictions.append(keras_vit.predict_images(model, test, **options))
submission = keras_vit.evaluation.ensemble(predictions).fillna(0).idxmax(axis=1).rename("label")
submission.to_csv("submission.csv")
pd.read_csv("submission.csv").head(3)

# %%
if (folder / "solution.csv").exists():
    solution = pd.read_csv(folder / "solution.csv", index_col="image", dtype=str)["label"]
    for name, guesses in [*zip(members, predictions, strict=True), ("ensemble", None)]:
        guesses = submission if guesses is None else guesses.fillna(0).idxmax(axis=1)
        print(f"{name}: accuracy on {len(guesses)} test images {(guesses == solution[guesses.index]).mean():.4f}")

# %% [markdown]
# ## 7 Several labels, or a number
#
# Not every competition has one class per image. For other competitions, change only the head, the labels and the loss:
#
# - If an image has several classes, such as "cat dog" in one cell, pass `label_separator=" "` (or a list of 0/1 columns
#   as `label_column`) and `task="multi_label"`, and use `BinaryCrossentropy`. The predictions are a probability per
#   class.
# - If the label is a number, such as an age, pass `labels="float"` and `task="regression"`, and use `MeanSquaredError`.
#   The predictions are numbers.

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
