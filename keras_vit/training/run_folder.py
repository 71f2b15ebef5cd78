"""The folder of a run: what it holds, and whose it is."""

import csv
import dataclasses
import hashlib
import importlib.util
import json

import keras

from keras_vit.files import replacing
from keras_vit.training.settings import TEXTS


def logs(out):
    """The callbacks that log each epoch."""
    yield _HistoryFile(out / "history.csv")
    # TensorFlow does not install it.
    if importlib.util.find_spec("tensorboard"):
        yield keras.callbacks.TensorBoard(out / "tensorboard")


class _HistoryFile(keras.callbacks.Callback):
    """Writes all epochs to a CSV file after each. `keras.callbacks.CSVLogger` would repeat some after a kill."""

    def __init__(self, path):
        super().__init__()
        self.path = path

    def on_epoch_end(self, epoch, logs=None):
        # This epoch is not in the history yet; those before the last start are.
        columns = {"epoch": [*self.model.history.epoch, epoch]}
        columns |= {name: [*self.model.history.history.get(name, []), value] for name, value in (logs or {}).items()}
        with replacing(self.path) as draft, open(draft, "w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(columns)
            writer.writerows(zip(*columns.values(), strict=False))


def identity(recipe, train, test):
    """What two runs have in common of which one goes on with the other: the settings and the images."""
    files = [getattr(dataset, "file_paths", []) for dataset in (train, test)]
    return {
        **{key: value for key, value in dataclasses.asdict(recipe).items() if key not in TEXTS},
        "train_images": train.num_images,
        "test_images": test.num_images,
        "class_names": hashlib.sha256(repr(train.class_names).encode()).hexdigest()[:16],
        "files": hashlib.sha256(repr(files).encode()).hexdigest()[:16],
    }


def refuse_another(out, facts, resume):
    """Raises if a folder holds the checkpoints of another run than the one of these facts."""
    path, facts = out / "recipe.json", _plain(facts)
    if path.exists() and resume.checkpoints.paths():
        other = json.loads(path.read_text(encoding="utf-8"))
        # A setting that the recipe did not have then had no other value.
        if different := sorted(key for key in facts if facts[key] != other.get(key, facts[key])):
            raise ValueError(
                f"Expected `out` to be a new folder, or that of the same run. {str(out)!r} holds one with "
                + ", ".join(f"{key}={other[key]!r} and not {facts[key]!r}" for key in different)
            )


def claim(out, facts):
    """Makes the folder of a run, and writes whose it is."""
    out.mkdir(parents=True, exist_ok=True)
    for leftover in out.glob(".*.model.keras"):
        leftover.unlink(missing_ok=True)
    write(out / "recipe.json", _plain(facts))


def write(path, facts):
    """Writes facts as JSON."""
    with replacing(path) as draft:
        draft.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")


def _plain(facts):
    return json.loads(json.dumps(facts))
