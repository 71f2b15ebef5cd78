import numpy as np
import pytest
from PIL import Image

pytestmark = pytest.mark.backends("tensorflow")


@pytest.fixture
def pipeline(script, monkeypatch):
    for name, value in {"BATCH": 4, "WARM_UP": 0, "TIMED": 1}.items():
        monkeypatch.setattr(script, name, value)
    return script


@pytest.fixture
def folder(tmp_path):
    for i in range(8):
        path = tmp_path / "photos" / f"class{i % 2}" / f"{i}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((24, 32, 3), 20 * i, "uint8")).save(path)
    return tmp_path / "photos"


@pytest.mark.long
def test_pipelines_give_equal_shapes_and_ranges(pipeline, folder):
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


def test_enlarged_copies_to_the_shorter_side(pipeline, folder, tmp_path):
    pipeline.enlarged(folder, 48, tmp_path / "large")
    with Image.open(tmp_path / "large" / "class1" / "3.jpg") as image:
        assert image.size == (64, 48)
