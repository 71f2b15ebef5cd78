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
# The notebook fine-tunes a Vision Transformer that was trained on ImageNet, shows what the model learned, and predicts
# the classes of new files.
#
# **Contents**: 1 Twenty lines · 2 How it went · 3 New files
#
# This notebook needs `keras_vit` with the extras `data` and `inspect`, pandas, and one of TensorFlow, JAX and PyTorch;
# the environment variable `KERAS_BACKEND` chooses one.
#
# The next cell prepares sample images. **For your own images, replace it by this code; nothing else changes:**
#
# ```python
# from pathlib import Path
#
# folder, weights = Path("flowers17"), "hf://google/vit-base-patch16-224"
# ```
#
# `weights` is a file or a name that `from_pretrained` reads. In a Kaggle notebook, your images are in a folder in
# `/kaggle/input`. The sample images need `samples.py`, which lies beside this notebook in the repository; in Kaggle and
# Colab, upload `samples.py` and copy it to the working folder.

# %%
import samples

folder, weights = samples.image_folder(), samples.weights()
paths = [min(path.iterdir()) for path in sorted(folder.iterdir())[:16]]
samples.show(paths, [path.parent.name for path in paths])

# %% [markdown]
# ## 1 Twenty lines
#
# `from_pretrained` builds the model that the file contains, with a new head for your classes. `preprocessing=model`
# resizes and scales the images as that model expects them. A fifth of the images is held out.
#
# Only the last two of the twelve blocks and the head are trained, and the images have a side of 128 pixels instead of
# 224. Both save time on a CPU. `preflight` checks images, labels, loss and model before the training starts, and prints
# a summary. The dataset shuffles, so `fit` must not.

# %%
import keras

import keras_vit

keras.utils.set_random_seed(0)
names = sorted(path.name for path in folder.iterdir() if path.is_dir() and path.name[0] != ".")
model = keras_vit.from_pretrained(
    weights, image_size=128, num_classes=len(names), class_names=names, include_preprocessing=True
)
keras_vit.training.freeze(model, blocks=len(model.blocks) - 2)
train, valid = keras_vit.data.from_directory(
    folder, validation_split=0.2, subset="both", preprocessing=model, scale=(0.5, 1.0), flip=True, batch_size=16
)
schedule = keras_vit.training.WarmupDecay(3e-4, total_steps=len(train), warmup_steps=len(train) // 10)
model.compile(
    keras_vit.training.AdamW(schedule, weight_decay=0.01),
    keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)
keras_vit.training.preflight(model, train, validation_data=valid)
model.fit(train, validation_data=valid, shuffle=False, verbose=2)
model.save("my_images.keras")

# %% [markdown]
# ## 2 How it went
#
# `classification_report` predicts the held-out images. In the confusion matrix, rows are the true classes and columns
# the predicted ones.

# %%
report = keras_vit.evaluation.classification_report(model, valid, verbose=0)
print(f"accuracy on {report['num_images']} held-out images: {report['top_1']:.4f}")
keras_vit.evaluation.plot_confusion_matrix(report["confusion_matrix"], names)

# %% [markdown]
# These are the held-out images whose true class got the lowest probability. With your own images, look here for wrong
# labels and unusual pictures.

# %%
from pathlib import Path

import numpy as np

truth = np.array(valid.file_labels)
probabilities = keras_vit.evaluation.predict(model, valid, verbose=0)
hardest = probabilities[np.arange(len(truth)), truth].argsort()[:12]
images = np.stack([keras_vit.read_image(valid.file_paths[i], model) for i in hardest])
keras_vit.inspection.plot_predictions(images, truth[hardest], probabilities[hardest], names)

# %% [markdown]
# ## 3 New files
#
# The saved model contains the weights, the class names and the preprocessing. `predict_images` takes files, folders,
# CSV files and DataFrames, and returns a DataFrame with a row per image and a column per class. `tta="flip"` averages
# the predictions for an image and for its mirror image.

# %%
saved = keras.saving.load_model("my_images.keras")
new = {"file": [str(Path(path).relative_to(folder)) for path in valid.file_paths[:: max(1, len(truth) // 6)]]}
table = keras_vit.predict_images(saved, new, directory=folder, tta="flip", verbose=0)
table.agg(["idxmax", "max"], axis=1).rename(columns={"idxmax": "class", "max": "probability"})

# %% [markdown]
# These commands do the same in a terminal. The first one predicts the classes of the images in a folder `photos`, and
# the second one does the whole training:
#
# ```
# keras-vit predict photos --weights my_images.keras --csv predictions.csv
# keras-vit train --data flowers17 --weights ViT-B_16-224.npz --out runs/flowers
# ```
