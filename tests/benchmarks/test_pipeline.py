import importlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("tensorflow")
pytestmark = pytest.mark.backends("tensorflow")
BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def pipeline(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    pipeline = importlib.import_module("pipeline")
    monkeypatch.setattr(pipeline, "BATCH", 4)
    monkeypatch.setattr(pipeline, "WARM_UP", 0)
    monkeypatch.setattr(pipeline, "TIMED", 1)
    return pipeline


@pytest.fixture
def folder(tmp_path):
    for i in range(8):
        path = tmp_path / "photos" / f"class{i % 2}" / f"{i}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((24, 32, 3), 20 * i, "uint8")).save(path)
    return tmp_path / "photos"


def test_each_side_gives_batches_in_one_range(pipeline, folder):
    for task, sides in pipeline.TASKS.items():
        for name, make in sides.items():
            try:
                images, labels = next(iter(make(folder)))[:2]
            except ImportError:
                continue
            images, labels = np.asarray(images), np.asarray(labels)
            assert sorted(images.shape) == [3, 4, 224, 224], (task, name)
            assert labels.shape == ((4,) if task == "crop" else (4, 2)), (task, name)
            # Erased pixels may be anything.
            assert -1.01 <= np.quantile(images, 0.3) <= np.quantile(images, 0.7) <= 1.01, (task, name)


def test_an_interrupted_run_goes_on(pipeline, folder, tmp_path, monkeypatch, capsys):
    def run(rounds):
        arguments = ["--data", folder, "--rounds", rounds, "--out", tmp_path / "a.json", "--enlarge-to", 30]
        monkeypatch.setattr("sys.argv", ["pipeline.py", *map(str, arguments), "--gpu", "2000"])
        pipeline.main()
        return capsys.readouterr().out

    assert "cores for 2,000 images/s" in run(1)
    made = []
    rates = pipeline.rates
    monkeypatch.setattr(pipeline, "rates", lambda *args: made.append(args) or rates(*args))
    run(2)
    # A warm-up and a round of each of three sides.
    assert len(made) == 6


def test_an_enlarged_copy(pipeline, folder, tmp_path):
    pipeline.enlarged(folder, 48, tmp_path / "large")
    with Image.open(tmp_path / "large" / "class1" / "3.jpg") as image:
        assert image.size == (64, 48)
