import os
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import numpy as np
from numpy.typing import ArrayLike

from keras_vit import arguments
from keras_vit.console import text_table
from keras_vit.evaluation.classification import top_k_accuracy
from keras_vit.evaluation.features import invalid, outputs_and_classes
from keras_vit.files import replacing
from keras_vit.images.figures import finish, literal, new_figure
from keras_vit.images.table import write_rows
from keras_vit.prediction.classes import distinct_names, ids_and_names, mean_probabilities, prediction_activation
from keras_vit.prediction.inputs import real_array, to_numpy
from keras_vit.prediction.outputs import check_all_read, image_batches
from keras_vit.prediction.preprocessing import require_normalization


def classification_report(
    model: keras.Model, data: Any, *, num_mistakes: int = 0, batch_size: int = 32, verbose: int = 1
) -> dict[str, Any]:
    """Measures a classifier's accuracy per class, its confusion matrix and its worst mistakes.

    Args:
        model: A model of this package, or a model that contains one. It must be a classifier whose classes exclude each
            other.
        data: Labeled test images, as in `extract_features`. Each label must be a class of the model, matched as in
            `accuracy`. If `num_mistakes` is above 0, the data is read twice and must have the same order each time.
        num_mistakes: Int of at least 0, the number of wrong predictions to return, highest probability first.

    Returns:
        A dict: "num_images"; "top_1", the accuracy, and "top_5" if there are at least five classes; "class_names", with
        ids for repeated names; "per_class", a list with the accuracy of each class, or None for a class without images;
        and "confusion_matrix", int64 (num_classes, num_classes). The matrix has a row per true class and a column per
        predicted class. If `num_mistakes` is above 0, the dict also contains "mistakes". This is a dict of "images" in
        [0, 255] (number, height, width, channels), "labels" (number,), "probabilities" (number, num_classes) and
        "indices", the images' positions in the data.

    Raises:
        ValueError: If an argument is out of range, a label is not a class of the model, or the model is a regression,
            single-output or multi-label model.

    Example:
    >>> model = keras_vit.ViT("Ti/16", image_size=32, num_layers=1, num_classes=2, class_names=["cat", "dog"])
    >>> images, labels = np.zeros((4, 32, 32, 3)), np.array([0, 1, 0, 0])
    >>> report = classification_report(model, (images, labels), verbose=0)  # a new head predicts class 0
    >>> report["top_1"], report["per_class"], report["confusion_matrix"].tolist()
    (0.75, [1.0, 0.0], [[3, 0], [1, 0]])
    """
    if arguments.non_negative_int("num_mistakes", num_mistakes) and isinstance(data, Iterator):
        expected = "data that can be read twice (arrays, a list or a dataset), or num_mistakes=0"
        raise arguments.invalid("data", expected, f"a {type(data).__name__}")
    names, activation = distinct_names(ids_and_names(model)), prediction_activation(model)
    if activation == "sigmoid" or len(names) < 2:
        raise arguments.invalid("model", "a classifier of two or more classes that exclude each other", model.name)
    outputs, labels = outputs_and_classes(model, data, batch_size, verbose)
    probabilities = mean_probabilities([outputs], activation)
    report = {"num_images": len(labels), "top_1": top_k_accuracy(probabilities, labels)}
    if len(names) >= 5:
        report["top_5"] = top_k_accuracy(probabilities, labels, k=5)
    predicted = probabilities.argmax(axis=1)
    matrix = np.zeros((len(names), len(names)), "int64")
    np.add.at(matrix, (labels, predicted), 1)
    counts = matrix.sum(axis=1)
    report["class_names"] = names
    report["per_class"] = [float(hits / n) if n else None for hits, n in zip(np.diag(matrix), counts, strict=True)]
    report["confusion_matrix"] = matrix
    if num_mistakes:
        wrong = np.flatnonzero(predicted != labels)
        places = _places(data, len(labels))
        worst = wrong[np.argsort(-probabilities[wrong, predicted[wrong]], kind="stable")][:num_mistakes]
        images = _images_at(model, data, worst, batch_size)
        parts = {"labels": labels[worst], "probabilities": probabilities[worst], "indices": places[worst]}
        report["mistakes"] = {"images": images, **parts}
    return report


def _places(data, count):
    """Returns the positions of the `count` readable images in `data`, which may also contain broken images."""
    broken = getattr(data, "broken", {})
    if not broken:
        return np.arange(count)
    places = np.flatnonzero([path not in broken for path in getattr(data, "file_paths", ())])
    if len(places) != count:
        check_all_read(data, count)
    return places


def _images_at(model, data, indices, batch_size):
    """Returns the images at `indices` of a dataset, in [0, 255]."""
    wanted, found, start = set(indices.tolist()), {}, 0
    # If the data is a tuple, it is (images, labels) as arrays, not a list of batches.
    images = data[0] if isinstance(data, tuple) else data
    for batch in image_batches(images, batch_size)[0] if wanted else ():
        found |= {i: batch[i - start] for i in wanted.intersection(range(start, start + len(batch)))}
        start += len(batch)
    if not wanted:
        return np.zeros((0, *(side or 0 for side in model.input_shape[1:])), "float32")
    return to_numpy(require_normalization(model).raw_images(np.stack([found[i] for i in indices.tolist()])))


def report_text(report):
    """Formats the result of `classification_report` as text, least accurate classes first."""
    rows = zip(report["class_names"], report["confusion_matrix"].sum(axis=1).tolist(), report["per_class"], strict=True)
    rows = sorted(rows, key=lambda row: (row[2] is None, row[2]))
    accuracies = ", ".join(f"{key} {report[key]:.4f}" for key in ("top_1", "top_5") if key in report)
    table = text_table(["class", "images", "accuracy"], rows, missing="-")
    return f"{report['num_images']} images: {accuracies}\n\n{table}"


def plot_confusion_matrix(
    matrix: ArrayLike, class_names: Sequence[str] | None = None, path: str | os.PathLike | None = None
):
    """Plots a confusion matrix with a row per true class, and returns the figure.

    The colour of a cell shows its count as a share of all images of the true class.

    Args:
        matrix: Counts, (num_classes, num_classes), from `classification_report`.
        class_names: The names of the classes. None shows the indices of the classes.
        path: Path of a .png file to write, in an existing folder, or None.

    Raises:
        ValueError: If the matrix is not square, or the names do not fit it.
        ImportError: If matplotlib is not installed.

    Example:
    >>> figure = plot_confusion_matrix([[3, 1], [0, 2]], ["cat", "dog"])
    >>> [text.get_text() for text in figure.axes[0].texts]
    ['3', '1', '0', '2']
    """
    matrix = _square(matrix)
    count = len(matrix)
    names = [literal(name) for name in arguments.class_names(class_names, count) or map(str, range(count))]
    side = 2.5 + 0.35 * min(count, 60)
    figure = new_figure(side + 1, side)
    axes = figure.subplots()
    shares = matrix / np.maximum(matrix.sum(axis=1, keepdims=True), 1)
    axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    axes.set(xlabel="predicted class", ylabel="true class")
    # With more than 60 classes, the class names would be too small to read.
    if count <= 60:
        axes.set_xticks(range(count), names, rotation=90, fontsize=8)
        axes.set_yticks(range(count), names, fontsize=8)
    for (row, column), share in np.ndenumerate(shares) if count <= 20 else ():
        colour = "white" if share > 0.5 else "black"
        axes.text(column, row, str(matrix[row, column]), ha="center", va="center", color=colour, fontsize=8)
    return finish(figure, path)


def _square(matrix):
    matrix = real_array("matrix", matrix)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or not matrix.size:
        raise invalid("matrix", "counts of shape (num_classes, num_classes)", f"shape {matrix.shape}")
    return matrix


def write_confusion_matrix(
    matrix: ArrayLike, class_names: Sequence[str], path: str | os.PathLike, *, escape_formulas: bool = False
) -> None:
    """Writes a confusion matrix as a CSV file: a row per true class, a column per predicted class.

    Args:
        matrix: Counts, (num_classes, num_classes).
        class_names: The names of the classes.
        path: Path of the file, in an existing folder.
        escape_formulas: Bool, whether to write ' before names that start with = + - or @. Spreadsheets would take such
            names for formulas.
    """
    matrix = _square(matrix)
    names = arguments.class_names(arguments.several("class_names", class_names), len(matrix))
    rows = [[name, *map(int, counts)] for name, counts in zip(names, matrix, strict=True)]
    with replacing(path) as draft:
        write_rows(draft, [["true \\ predicted", *names], *rows], escape_formulas)
