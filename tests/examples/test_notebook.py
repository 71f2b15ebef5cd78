"""A whole notebook of a user's, in a process of its own, without a warning that is not the user's fault."""

import csv
import os
import re
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest

import keras_vit
from tests.tiny import build

pytest.importorskip("tensorflow", reason="the pipelines are tf.data on every backend")
COLOURS = {"iris": (60, 60, 200), "rose": (200, 60, 60), "tulip": (200, 200, 60)}


@pytest.fixture
def folder(tmp_path):
    """Noisy images of one colour a class, by id, with a table for training and one for testing."""
    rng = np.random.default_rng(0)
    (tmp_path / "images").mkdir()
    rows = {"train": [], "test": []}
    for number in range(45):
        name = list(COLOURS)[number % 3]
        image = np.clip(np.array(COLOURS[name]) + rng.integers(-60, 60, (20, 24, 3)), 0, 255)
        keras.utils.save_img(tmp_path / "images" / f"{number:03d}.png", image, scale=False)
        rows["train" if number < 36 else "test"].append([f"{number:03d}", name])
    for part, columns in (("train", ("id", "label")), ("test", ("id",))):
        with open(tmp_path / f"{part}.csv", "w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([columns, *(row[: len(columns)] for row in rows[part])])
    keras_vit.save_weights(build(), tmp_path / "weights.npz")
    return tmp_path


def test_a_competition_from_table_to_submission(folder):
    script = Path(__file__).with_name("notebook.py")
    paths = [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", "-W", "error::RuntimeWarning", script, folder],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    # What was loaded is said, since the head is new; nothing else is. TensorFlow says which libraries it found.
    said = re.sub(r"^(I0000|WARNING: All log messages before absl).*\n", "", done.stderr, flags=re.MULTILINE)
    assert re.fullmatch(r"Loaded weights\.npz .*\n(  (loaded|skipped|kept) .*\n)+", said), done.stderr
    with open(folder / "submission.csv", newline="", encoding="utf-8") as file:
        answers = {row["id"]: row["label"] for row in csv.DictReader(file)}
    assert list(answers) == [f"{number:03d}" for number in range(36, 45)]
    assert set(answers.values()) <= set(COLOURS)
    assert sorted(path.name for path in (folder / "all").iterdir()) and (folder / "head.keras").exists()
