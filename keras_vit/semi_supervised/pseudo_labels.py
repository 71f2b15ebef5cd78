import dataclasses
import hashlib
import inspect
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_vit import arguments
from keras_vit.files import regular_file, replacing
from keras_vit.prediction.classes import ids_and_names, output_activation
from keras_vit.prediction.inputs import to_numpy
from keras_vit.prediction.outputs import check_all_read, image_batches, predict_batches
from keras_vit.weights.read.bounds import open_archive

_FORMAT = "keras_vit pseudo labels, version 1"
# Round probabilities to this many decimals, because the last bits depend on an image's position in the batch.
_DECIMALS = 4
_ARRAYS = ("indices", "labels", "confidences")


@dataclasses.dataclass(frozen=True, eq=False)
class PseudoLabels:
    """The labels that a teacher gave to selected images: the result of `pseudo_labels`.

    If the images are an array `images` and this object is `labels`, train on `images[labels.indices]` and
    `labels.labels`. Use `keras_vit.data.relabelled` for images in files or from TFDS.

    Args:
        indices: Int64 array (num_labels,), the positions of the selected images, in ascending order. An image that is
            used several times has several equal indices.
        labels: Hard labels, int32 (num_labels,), or soft labels, float32 (num_labels, num_classes).
        confidences: Float32 array (num_labels,), the teacher's largest probability for each image.
        class_names: Tuple of strings, the teacher's classes.
        class_counts: Tuple of ints, the number of different images that were selected for each class.
        settings: Dict of the arguments `kind`, `temperature`, `threshold` and `per_class` of `pseudo_labels`, and of
            `num_images`, the number of all images.
        teacher: Dict with the teacher's `name` and the `sha256` of its weights.
    """

    indices: np.ndarray
    labels: np.ndarray
    confidences: np.ndarray
    class_names: tuple[str, ...]
    class_counts: tuple[int, ...]
    settings: dict
    teacher: dict

    def __post_init__(self):
        soft = self.settings["kind"] == "soft"
        shape = (len(self.indices), len(self.class_names)) if soft else (len(self.indices),)
        if self.labels.shape != shape or self.confidences.shape != shape[:1]:
            received = f"{self.labels.shape} and {self.confidences.shape}"
            raise ValueError(f"Expected labels and confidences of shapes {shape} and {shape[:1]}. Received: {received}")

    def __len__(self):
        return len(self.indices)

    @property
    def empty_classes(self) -> tuple[str, ...]:
        """The names of the classes for which no image was selected."""
        return tuple(name for name, count in zip(self.class_names, self.class_counts, strict=True) if not count)

    def save(self, path: str | os.PathLike) -> None:
        """Writes the labels to an .npz file. If writing fails, an existing file stays unchanged."""
        facts = {key: getattr(self, key) for key in ("class_names", "class_counts", "settings", "teacher")}
        header = np.frombuffer(json.dumps({"format": _FORMAT, **facts}).encode(), "uint8")
        with replacing(path) as draft, open(draft, "wb") as file:
            np.savez(file, header=header, **{name: getattr(self, name) for name in _ARRAYS})
            file.flush()
            os.fsync(file.fileno())

    @classmethod
    def load(cls, path: str | os.PathLike) -> "PseudoLabels":
        """Reads a file that `save` wrote.

        Raises:
            FileNotFoundError: If the file does not exist.
            ValueError: If the file is damaged or of another format.
        """
        regular_file(path, "`path` to be a file of pseudo labels")
        try:
            with open_archive(path), np.load(path, allow_pickle=False) as file:
                members = dict(file)
            header = json.loads(members.pop("header").tobytes())
            if header.pop("format") != _FORMAT:
                raise ValueError("the file has another format")
            header |= {key: tuple(header[key]) for key in ("class_names", "class_counts")}
            return cls(**header, **members)
        # Catch all errors, because damaged files make zipfile and NumPy raise nearly any error.
        except Exception as error:
            raise ValueError(f"Cannot read the pseudo labels in {str(path)!r}: {error}") from None


def pseudo_labels(
    teacher: keras.Model,
    images: Any,
    *,
    kind: str = "soft",
    temperature: float = 1.0,
    threshold: float = 0.3,
    per_class: int | None = None,
    batch_size: int = 32,
    verbose: int = 1,
) -> PseudoLabels:
    """Labels images with a teacher, and selects the images with confident labels, as in Noisy Student.

    The confidence of an image is the teacher's largest probability for it, rounded to four decimals. The class of an
    image is the first class with this probability. The teacher predicts in inference mode, so give it images without
    augmentation. The selection does not depend on a random seed. Another batch size changes only rounding errors.

    Args:
        teacher: A `keras.Model` that takes images and returns logits or probabilities, (batch, num_classes).
        images: Images in the teacher's value range. They are an array or a finite iterable of batches, such as a
            `tf.data.Dataset`, a `keras.utils.PyDataset`, or a dataset of `keras_vit.data` with `labels="none"` and
            `training=False`. Batches must come in the same order each time. If a batch is a tuple, its first element is
            used.
        kind: "soft" (labels are probabilities) or "hard" (labels are classes).
        temperature: Float above 0, only used with "soft". The labels are `softmax(logits / temperature)`. If the
            teacher returns probabilities p, the labels are `p ** (1 / temperature)`, divided by their sum over the
            classes. If the temperature is near 0, the labels are nearly one-hot.
        threshold: Float in [0, 1). Images with a lower confidence are left out.
        per_class: Int of at least 1, the number of labels per class. The most confident images of each class are
            selected. If images are equally confident, earlier images are selected first. If a class has fewer images,
            its images are repeated, starting with the most confident. A class without images stays empty. None selects
            all images whose confidence is at least `threshold`.
        batch_size, verbose: As in `keras_vit.evaluation.predict`.

    Raises:
        ValueError: If an argument is out of range, the teacher is not a single-label classifier with one output, its
            outputs are not finite, an image could not be decoded, or no image is confident enough.

    Example:
    >>> teacher = keras_vit.ViT("Ti/16", image_size=32, num_layers=1, num_classes=2, head_init="glorot_uniform")
    >>> labels = pseudo_labels(teacher, np.zeros((3, 32, 32, 3)), per_class=2, verbose=0)
    >>> labels.indices.tolist(), labels.labels.shape, len(labels.empty_classes)
    ([0, 1], (2, 2), 1)

    Reference: [arXiv 1911.04252](https://arxiv.org/abs/1911.04252), section 2 and appendix A.1. The paper uses
    threshold 0.3 and 130,000 images per class. It does not describe which images are repeated.
    """
    settings = {
        "kind": arguments.choice("kind", kind, ("soft", "hard")),
        "temperature": arguments.positive_number("temperature", temperature),
        "threshold": arguments.rate("threshold", threshold),
        "per_class": arguments.optional(arguments.positive_int, "per_class", per_class),
    }
    activation = output_activation(arguments.model(teacher, "teacher"))
    names = tuple(name for _, name in ids_and_names(teacher))
    if activation == "sigmoid" or len(names) < 2:
        raise arguments.invalid("teacher", "a classifier of two or more classes that exclude each other", teacher.name)
    batches, steps = image_batches(images, batch_size, name="images")
    logits = predict_batches(teacher, batches, steps, verbose, name="images").astype("float64")
    check_all_read(images, len(logits), "images")
    if activation is None:
        # The tolerance allows for probabilities in half precision.
        if np.abs(logits.sum(axis=1) - 1).max() > 0.02:
            raise arguments.invalid("teacher", "logits, or probabilities that sum to 1", float(logits[0].sum()))
        logits = np.log(np.maximum(logits, np.finfo("float32").tiny))
    rounded = _softmax(logits).round(_DECIMALS)
    classes, confidences = rounded.argmax(axis=1), rounded.max(axis=1)
    chosen = _choose(classes, confidences, settings["threshold"], settings["per_class"])
    if not len(chosen):
        raise arguments.invalid("threshold", f"at most the largest confidence, {confidences.max()}", threshold)
    labels = classes.astype("int32") if kind == "hard" else _softmax(logits / temperature).astype("float32")
    counts = tuple(np.bincount(classes[np.unique(chosen)], minlength=len(names)).tolist())
    settings["num_images"], confidences = len(logits), confidences[chosen].astype("float32")
    return PseudoLabels(chosen, labels[chosen], confidences, names, counts, settings, described(teacher))


def described(model) -> dict:
    """Returns a dict of a model's name and the sha256 of its weights."""
    return {"name": model.name, "sha256": _digest(weight.value for weight in model.weights)}


def _digest(arrays):
    digest = hashlib.sha256()
    for value in map(to_numpy, arrays):
        digest.update(f"{value.shape} {value.dtype}".encode())
        digest.update(value.tobytes())
    return digest.hexdigest()


def _softmax(logits):
    # Use NumPy, in which the rounding of a row does not depend on the rest of the batch.
    exponentials = np.exp(logits - logits.max(axis=1, keepdims=True))
    return exponentials / exponentials.sum(axis=1, keepdims=True)


def _choose(classes, confidences, threshold, per_class):
    """Returns the indices of the selected images in ascending order. Repeated images have several equal indices."""
    kept = np.flatnonzero(confidences >= threshold)
    if per_class is None or not len(kept):
        return kept
    kept = kept[np.lexsort((kept, -confidences[kept], classes[kept]))]
    groups = np.split(kept, np.flatnonzero(np.diff(classes[kept])) + 1)
    return np.sort(np.concatenate([np.resize(group, per_class) for group in groups]))


def noisy_student(
    teacher: keras.Model,
    students: Sequence[Callable[[], keras.Model]],
    images: Any,
    train: Callable[[keras.Model, PseudoLabels, Path], Any],
    folder,
    *,
    seed: int = 0,
    **labelling: Any,
) -> keras.Model:
    """Trains students in rounds by Noisy Student. The student of each round is the teacher of the next round.

    In each round, the teacher labels `images` with `pseudo_labels`, a new student is built, and `train` trains it. Each
    round has a subfolder: `round_1`, `round_2` and so on. The subfolder contains the labels in `pseudo_labels.npz`, the
    trained student in `student.keras`, and the folder `checkpoints` for `train`. If the run is killed, repeat the same
    call. The new call reads the finished rounds. It repeats the interrupted round with the stored labels, a new student
    and the same folder of checkpoints. The noise of the student comes from its dropout and stochastic depth, and from
    augmentation such as RandAugment in the data that `train` reads.

    Args:
        teacher: The first teacher, a model that is already trained on the labelled images. It must be a model that
            `pseudo_labels` takes.
        students: List of functions without arguments, one for each round. Each builds a student that is not compiled.
            In the paper, each student is as large as its teacher or larger.
        images: The unlabelled images, in a form that `pseudo_labels` takes. Every student must take the same images.
        train: Function `train(student, labels, checkpoints)`. It compiles the student and trains it in place on the
            labelled images and on the images of `labels`, a `PseudoLabels`. `checkpoints` is the path of a folder.
            `keras_vit.data.with_pseudo_labels` makes batches with the paper's loss, and `keras_vit.training.fit`
            resumes from this folder.
        folder: Path of the run's folder. It is created if it does not exist.
        seed: Int of at least 0, the random seed of the run. The global seeds are set before each student is built.
        **labelling: Other arguments of `pseudo_labels`.

    Returns:
        The last student.

    Raises:
        ValueError: If an argument is invalid, the folder contains a run with another teacher, other images or other
            settings, or a file of labels is damaged.

    Example:
    >>> import tempfile
    >>> images, classes = np.random.default_rng(0).normal(size=(6, 8)), np.arange(6) % 2
    >>> build = lambda: keras.Sequential([keras.Input((8,)), keras.layers.Dropout(0.5), keras.layers.Dense(2)])
    >>> def train(student, labels, checkpoints):
    ...     student.compile("adam", keras.losses.CategoricalCrossentropy(from_logits=True))
    ...     pseudo = images[labels.indices], labels.labels
    ...     keras_vit.training.fit(student, pseudo, epochs=1, resume=checkpoints, verbose=0)
    >>> student = noisy_student(build(), [build, build], images, train, tempfile.mkdtemp())
    >>> student.output_shape
    (None, 2)

    Reference: [arXiv 1911.04252](https://arxiv.org/abs/1911.04252), algorithm 1. The paper uses dropout 0.5 before the
    classifier, stochastic depth with survival 0.8, RandAugment with 2 operations of magnitude 27, label smoothing 0.1,
    threshold 0.3 and balanced classes. The first teacher is EfficientNet-B7, and three students are EfficientNet-L2.
    Their batches contain 14, 14 and 28 times as many unlabelled as labelled images. This function does not include the
    paper's final training at a higher resolution.
    """
    arguments.path("folder", folder)
    arguments.function("train", train)
    arguments.non_negative_int("seed", seed)
    facts = {"seed": seed, "images": _digest(_sample(images))}
    for number, build in enumerate(arguments.several("students", students), 1):
        place = Path(folder) / f"round_{number}"
        place.mkdir(parents=True, exist_ok=True)
        labels = _labels(place / "pseudo_labels.npz", teacher, images, labelling, facts)
        file = place / "student.keras"
        if file.exists():
            teacher = keras.saving.load_model(file, compile=False)
            continue
        keras.utils.set_random_seed(int(np.random.SeedSequence([seed, number]).generate_state(1)[0] >> 1))
        student = build()
        train(student, labels, place / "checkpoints")
        with replacing(file) as draft:
            student.save(draft)
        teacher = student
    return teacher


def _sample(images):
    """Returns arrays that distinguish `images` from other images, without reading a whole dataset."""
    if hasattr(images, "shape"):
        return [np.array(images.shape), images[:: max(1, len(images) // 4096)]]
    names = "/".join(os.path.basename(path) for path in getattr(images, "file_paths", None) or ())
    # Do not read from an iterator, because that would remove its first batch.
    first = [] if hasattr(images, "__next__") else next(image_batches(images, 1, name="images")[0], [])
    return [np.frombuffer(names.encode(), "uint8"), first]


def _labels(path, teacher, images, labelling, facts):
    """Returns the stored labels of a round. If the file does not exist, the teacher labels the images first."""
    if not path.exists():
        labels = pseudo_labels(teacher, images, **labelling)
        dataclasses.replace(labels, settings=labels.settings | facts).save(path)
    labels = PseudoLabels.load(path)
    saved = {**labels.settings, "sha256": labels.teacher["sha256"]}
    here = {name: parameter.default for name, parameter in inspect.signature(pseudo_labels).parameters.items()}
    here |= {**labelling, **facts, "sha256": described(teacher)["sha256"]}
    if different := [key for key in here if key in saved and saved[key] != here[key]]:
        received = f"labels of a run that differs in {' and '.join(different)}"
        advice = f"Pass another `folder`, or delete {str(path.parent.parent)!r} to start over."
        raise ValueError(f"Expected the labels of this run in {str(path)!r}. Received: {received}. {advice}")
    return labels
