"""Sample pictures and weights for the notebooks of this folder.

The notebooks look for the files in the inputs of a Kaggle notebook, then in the folder that the environment variable
KERAS_VIT_SAMPLES contains. If the files are not found, the notebooks use scikit-learn's handwritten digits and a small
ViT instead. With KERAS_VIT_QUICK=1, the notebooks use only a few digits and blocks.
"""

import itertools
import os
import shutil
from pathlib import Path

import keras
import matplotlib.pyplot as plt
import numpy as np

import keras_vit

QUICK = os.environ.get("KERAS_VIT_QUICK") == "1"
CIFAR10 = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
DIGITS = [f"digit_{digit}" for digit in range(10)]
SMALL = {"image_size": 64, "patch_size": 16, "hidden_dim": 48, "num_heads": 4, "mlp_dim": 96}
SMALL["num_layers"] = 3 if QUICK else 12
# The number of digits that the notebooks show. The small ViT is trained on later digits, so that these are new to it.
NUM_SHOWN = 160 if QUICK else 1000


def find(name):
    """Returns the path of a sample file or folder, or None if it does not exist."""
    folders = [*Path("/kaggle/input").glob("*"), Path(os.environ.get("KERAS_VIT_SAMPLES", "samples"))]
    paths = [folder / part / name for folder in folders for part in ("", "weights")]
    return next((path for path in paths if path.exists() and not QUICK), None)


def digits(side):
    """Returns scikit-learn's 1,797 digits as RGB images in [0, 255] of `side` x `side` pixels, and their labels.

    `side` must be a multiple of 8.
    """
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    images = np.repeat(images.reshape(-1, 8, 8, 1) * (255 / 16), 3, axis=-1)
    return np.kron(images, np.ones((1, side // 8, side // 8, 1))).astype("uint8"), labels


def image_folder():
    """Returns a folder with one folder of images per class: Oxford 17 Flowers, or digits."""
    folder = find("flowers17")
    if folder is None:
        folder = Path("digits")
        for i, (image, label) in enumerate(zip(*(values[:NUM_SHOWN] for values in digits(64)), strict=True)):
            (folder / DIGITS[label]).mkdir(parents=True, exist_ok=True)
            keras.utils.save_img(folder / DIGITS[label] / f"{i:04d}.png", image, scale=False)
    return folder


def weights():
    """Returns the path of Google's ViT-B/16. If it is not found, trains a small ViT on digits and returns its path."""
    path = find("ViT-B_16-224.npz")
    if path is None:
        path = Path("small_vit.npz")
        images, labels = (values[NUM_SHOWN : 2 * NUM_SHOWN] for values in digits(SMALL["image_size"]))
        keras.utils.set_random_seed(0)
        model = keras_vit.ViT("Ti/16", **SMALL, num_classes=10, class_names=DIGITS)
        model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        model.fit(keras_vit.preprocess_input(images, model), labels, epochs=2 if QUICK else 20, verbose=0)
        keras_vit.save_weights(model, path)
    return path


def photos():
    """Returns the paths of 32 images and their class names. The images show cats and daisies, or digits."""
    cats, flowers = find("coco_cats.png"), find("flowers17")
    if cats is None or flowers is None:
        paths = sorted(image_folder().glob("*/*"), key=lambda path: path.name)[:32]
        return paths, [path.parent.name for path in paths]
    daisies = sorted((flowers / "daisy").iterdir())
    return [cats, daisies[6], daisies[2], *daisies[10:39]], ["Egyptian_cat"] + ["daisy"] * 31


def competition():
    """Returns a folder with a competition: train.csv, test.csv, images, and solution.csv with the test labels."""
    import pandas as pd

    folder = Path("competition")
    (folder / "images").mkdir(parents=True, exist_ok=True)
    rows = []
    for number, path in enumerate(sorted(image_folder().glob("*/*"))):
        rows.append({"image": f"images/{number:05d}{path.suffix}", "label": path.parent.name})
        shutil.copy(path, folder / rows[-1]["image"])
    table = pd.DataFrame(rows)
    test = table.groupby("label").sample(frac=0.25, random_state=0).index
    table.drop(test).to_csv(folder / "train.csv", index=False)
    table.loc[test, ["image"]].to_csv(folder / "test.csv", index=False)
    table.loc[test].to_csv(folder / "solution.csv", index=False)
    return folder


def cifar10():
    """Returns a dict of the arrays train_images, train_labels, test_images and test_labels, and the class names.

    The arrays come from the file `cifar10.npz`. Without the file, they contain digits.
    """
    if path := find("cifar10.npz"):
        return np.load(path), CIFAR10
    images, labels = digits(32)
    images, labels, test = images[:1297], labels[:1297], {"test_images": images[1297:], "test_labels": labels[1297:]}
    if QUICK:
        return {"train_images": images[:100], "train_labels": labels[:100], **test}, DIGITS
    # Add shifted copies of the digits as further training images.
    shifts = list(itertools.product((0, -4, 4), repeat=2))
    images = np.concatenate([np.roll(images, shift, axis=(1, 2)) for shift in shifts])
    return {"train_images": images, "train_labels": np.tile(labels, len(shifts)), **test}, DIGITS


def show(images, titles, columns=8):
    """Plots images with titles. The images are arrays in [0, 255] or paths of files."""
    rows = -(-len(images) // columns)
    panels = plt.subplots(rows, columns, figsize=(10, 1.55 * rows), layout="constrained", squeeze=False)[1]
    for axes in panels.flat:
        axes.set_axis_off()
    for axes, image, title in zip(panels.flat, images, titles, strict=False):
        if isinstance(image, Path):
            image = keras.utils.load_img(image, target_size=(128, 128), keep_aspect_ratio=True)
        axes.imshow(np.asarray(image, "uint8"))
        axes.set_title(title, fontsize=9)
