import keras
import numpy as np
import pytest

from keras_vit import data


def fill(folder, count, value):
    for name in ("cat", "dog"):
        (folder / name).mkdir(parents=True)
        for i in range(count):
            keras.utils.save_img(folder / name / f"{i}.png", np.full((8, 8, 3), value), scale=False)


def values(dataset):
    return sorted(float(v) for images, _ in dataset for v in images[:, 0, 0, 0])


OPTIONS = {"image_size": 8, "batch_size": 4, "normalize": False}


def test_a_folder_with_train_and_val_is_taken_as_it_is(tmp_path):
    fill(tmp_path / "train", 3, 10)
    fill(tmp_path / "val", 2, 20)
    make = data.splits(tmp_path, holdout=0.5)
    assert values(make("train", training=True, **OPTIONS)) == [10.0] * 6
    assert values(make("test", training=False, **OPTIONS)) == [20.0] * 4


def test_a_folder_of_classes_is_split_by_the_seed(tmp_path):
    fill(tmp_path, 5, 10)
    make = data.splits(tmp_path, holdout=0.4)
    files = [{part: make(part, seed=seed, **OPTIONS).file_paths for part in ("train", "test")} for seed in (0, 0, 1)]
    assert len(files[0]["train"]) == 6 and len(files[0]["test"]) == 4
    assert not set(files[0]["train"]) & set(files[0]["test"])
    assert files[0] == files[1] != files[2]


def test_neither_a_folder_nor_a_dataset(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        data.splits(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match="There is no folder 'cifar10'. As the name"):
        data.splits("cifar10", data_dir=tmp_path)("train", **OPTIONS)
    (tmp_path / "labels.csv").write_text("path,label")
    with pytest.raises(FileNotFoundError, match="labels.csv"):
        data.splits(tmp_path / "labels.csv")
    with pytest.raises(ValueError, match="`holdout` in"):
        data.splits(tmp_path, holdout=2)


def test_train_without_test_is_no_class(tmp_path):
    fill(tmp_path / "train", 1, 10)
    (tmp_path / "Test").mkdir()
    with pytest.raises(ValueError, match=r"Expected a folder test or val or .* beside .*train.*'Test'"):
        data.splits(tmp_path)
