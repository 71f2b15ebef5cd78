import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_vit.files import replacing
from keras_vit.semi_supervised.pseudo_labels import PseudoLabels, described, pseudo_labels


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
    """Trains students in rounds. Each student learns from the labels of its teacher, and teaches the next student.

    A round labels `images` by `pseudo_labels`, builds a student and trains it by `train`. The folder gets a folder
    `round_1` and so on, with `pseudo_labels.npz`, `checkpoints` for `train` to use, and `student.keras`. The same call
    resumes a killed run: it reads the finished rounds, and calls `train` again for the interrupted round, with the
    stored labels, a new student and the same folder of checkpoints. The noise comes from the student's dropout and
    stochastic depth, and from RandAugment of the data that `train` reads.

    Args:
        teacher: The first teacher, trained on the labelled images; as for `pseudo_labels`.
        students: Functions without arguments, one for each round, that build a student, not compiled; in the paper each
            is as large as its teacher or larger.
        images: The unlabelled images, as for `pseudo_labels`. Every teacher must take them.
        train: Function of (student, labels, checkpoints) that compiles and trains the student in place, on labelled
            images and the images of the `PseudoLabels`, with its checkpoints in the folder `checkpoints`.
            `keras_vit.data.with_pseudo_labels` makes batches with the paper's loss; `keras_vit.training.fit` resumes.
        folder: Path of the run's folder, which is created.
        seed: Int of at least 0, from which the global random seeds are set before each student is built.
        **labelling: Other arguments of `pseudo_labels`.

    Returns:
        The last student.

    Raises:
        ValueError: If an argument is invalid, the folder has a run with another teacher or other settings, or a file of
            labels is damaged.

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

    Reference: [arXiv 1911.04252](https://arxiv.org/abs/1911.04252), algorithm 1: dropout 0.5 before the classifier,
    stochastic depth with survival 0.8, RandAugment with 2 operations of magnitude 27, label smoothing 0.1, threshold
    0.3 and balanced classes; three rounds of EfficientNet-L2 after B7, with 14, 14 and 28 times as many unlabelled as
    labelled images in a batch. The final training at a higher resolution is left to the user.
    """
    for number, build in enumerate(students, 1):
        place = Path(folder) / f"round_{number}"
        place.mkdir(parents=True, exist_ok=True)
        labels = _labels(place / "pseudo_labels.npz", teacher, images, labelling)
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


def _labels(path, teacher, images, labelling):
    """Returns the stored labels of a round; makes and stores them if there are none."""
    if not path.exists():
        pseudo_labels(teacher, images, **labelling).save(path)
    labels = PseudoLabels.load(path)
    saved = {**labels.settings, "sha256": labels.teacher["sha256"]}
    here = {name: parameter.default for name, parameter in inspect.signature(pseudo_labels).parameters.items()}
    here |= {**labelling, "sha256": described(teacher)["sha256"]}
    if different := [key for key in here if key in saved and saved[key] != here[key]]:
        advice = f"Give another `folder`, or delete {str(path.parent.parent)!r} to start over."
        raise ValueError(f"{str(path)!r} is of another run, with another {' and '.join(different)}. {advice}")
    return labels
