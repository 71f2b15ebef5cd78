import json
import os

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.evaluation import ensemble, predict
from keras_vit.prediction.classify import classify
from keras_vit.prediction.files import as_json, find_images, predict_images, write_csv
from tests.errors import not_found, refuses
from tests.tiny import build, randomize

PREDICTIONS = [[("1", "dog", 0.75), ("0", "cat", 0.25)], []]
REFUSED = [("id,image\n1,2\n", None, r"'path'.*\['id', 'image'\].*--path-column"), ("image\n", None, "no rows")]
REFUSED += [("image,x\nimages/b.png,1\n,2\n", "image", "row 2"), ("", None, "'path'")]
REFUSED += [('image\n"open', None, "UTF-8")]


@pytest.fixture
def folder(tmp_path):
    for name in ("b.png", "a.JPG", ".hidden.png", ".checkpoints/d.png", "more/c.webp", "film.mpg"):
        (tmp_path / "images" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "images" / name).write_bytes(b"")
    (tmp_path / "images" / "z").symlink_to(tmp_path / "images" / "more")
    (tmp_path / "images" / "more" / "up").symlink_to(tmp_path / "images")  # a circle
    return tmp_path


def test_find_images_lists_a_folder(folder, capsys):
    header, found = find_images([folder / "images", folder / "images" / "b.png"])
    expected = [str(folder / "images" / name) for name in ("a.JPG", "b.png", "more/c.webp", "z/c.webp", "b.png")]
    assert header == "path" and found == [(path, path) for path in expected]
    assert "1 files" in capsys.readouterr().err


def test_find_images_reads_the_path_column(folder):
    (folder / "test.csv").write_text("id,image\n7,images/b.png\n\n3,images/a.JPG\n")
    header, found = find_images([folder / "test.csv"], "image")
    assert header == "image"
    assert found == [(name, str(folder / name)) for name in ("images/b.png", "images/a.JPG")]
    (folder / "path.csv").write_text("\ufeffid,path\n7,images/b.png\n", encoding="utf-8")
    assert find_images([folder / "path.csv", folder / "images" / "b.png"])[0] == "path"


@pytest.mark.parametrize("text, column, message", REFUSED)
def test_table_without_images_is_refused(folder, text, column, message):
    (folder / "test.csv").write_text(text)
    refuses(message, find_images, [folder / "test.csv"], column)


def test_missing_images_are_named(folder):
    (folder / "test.csv").write_text("path\nimages/b.png\nnowhere.png\n")
    (folder / "empty").mkdir()
    not_found(r"nowhere\.png", find_images, [folder / "test.csv"])
    not_found(r"none\.csv", find_images, [folder / "none.csv"])
    refuses("empty", find_images, [folder / "empty"])
    refuses("Expected a table of paths", find_images, [folder / "images"], "image")


def test_csv_and_json_have_a_row_for_each_image(tmp_path):
    write_csv(tmp_path / "a.csv", "id", [os.fsdecode(b"caf\xe9"), "y"], PREDICTIONS)
    assert (tmp_path / "a.csv").read_text(encoding="utf-8").splitlines()[1].startswith("caf\\udce9,dog")
    write_csv(tmp_path / "a.csv", "id", ["x", "y"], PREDICTIONS)
    lines = (tmp_path / "a.csv").read_text().splitlines()
    assert lines == ["id,label,probability,label_2,probability_2", "x,dog,0.75,cat,0.25", "y,,,,"]
    first, second = json.loads(as_json(["x", "y"], PREDICTIONS))
    assert first["classes"][0] == {"id": "1", "label": "dog", "probability": 0.75}
    assert second == {"path": "y", "classes": []}


@pytest.fixture
def photos(tmp_path):
    """A folder of three noisy pictures of different sizes."""
    rng = np.random.default_rng(0)
    (tmp_path / "photos").mkdir()
    for i in range(3):
        image = rng.integers(0, 256, (20 + 4 * i, 24, 3))
        keras.utils.save_img(tmp_path / "photos" / f"{7 + i}.png", image, scale=False)
    return tmp_path / "photos"


def test_predict_images_agrees_with_classify_and_predict(photos):
    pytest.importorskip("pandas")
    model = randomize(build(class_names=list("abcde")))
    frame = predict_images(model, photos, verbose=0)
    paths = [str(photos / f"{i}.png") for i in (7, 8, 9)]
    assert list(frame.index) == paths and frame.index.name == "path" and list(frame.columns) == list("abcde")
    assert set(frame.dtypes) == {np.dtype("float32")}
    for path, (found,) in zip(paths, classify(model, paths, top=1), strict=True):
        assert frame.loc[path].idxmax() == found[1] and frame.loc[path].max() == pytest.approx(found[2], abs=1e-6)
    images = np.stack([keras_vit.read_image(path, model) for path in paths])
    mirrored = predict(model, keras_vit.preprocess_input(images, model), tta="flip", verbose=0)
    np.testing.assert_allclose(predict_images(model, paths, tta="flip", verbose=0), mirrored, atol=1e-5)


def test_predict_images_keeps_ids_of_tables(photos):
    pandas = pytest.importorskip("pandas")
    model = randomize(build())
    table = pandas.DataFrame({"id": [9, 7]}, index=[3, 4])
    options = {"path_column": "id", "directory": photos, "extension": ".png", "verbose": 0}
    frame = predict_images(model, table, **options)
    assert list(frame.index) == [9, 7] and frame.index.name == "id" and list(frame.columns) == list("01234")
    table.to_csv(photos / "test.csv", index=False)
    pandas.testing.assert_frame_equal(
        predict_images(model, photos / "test.csv", **options), frame.rename(index=str), check_index_type=False
    )
    pandas.testing.assert_frame_equal(predict_images(model, {"id": [9, 7]}, **options), frame)
    # This path has the extension already.
    (alone,) = predict_images(model, {"id": ["9.png"]}, **options).to_numpy()
    np.testing.assert_allclose(alone, frame.loc[9], atol=1e-6)
    both = ensemble([frame, predict_images(model, table, tta="flip", **options)])
    assert list(both.index) == [9, 7] and both.index.name == "id"
    with pytest.raises(ValueError, match="column 'path' of paths in the table.*'id', 'x'"):
        predict_images(model, {"id": [9], "x": [1]}, directory=photos)
    refuses("row 2 after the header", predict_images, model, {"id": ["9", None]}, **options)
    refuses("Received: none", predict_images, model, [])


def test_five_crops_come_from_larger_images(photos):
    pytest.importorskip("pandas")
    model = randomize(build(image_size=14))
    large = build(image_size=16)
    images = np.stack([keras_vit.read_image(path, large) for path in sorted(photos.iterdir())])
    expected = predict(model, keras_vit.preprocess_input(images, model), tta="five_crop", verbose=0)
    np.testing.assert_allclose(predict_images(model, photos, tta="five_crop", verbose=0), expected, atol=1e-5)


def test_broken_file_has_a_row_of_nan(photos, caplog):
    pytest.importorskip("pandas")
    (photos / "8.png").write_text("no image")
    model = randomize(build(num_classes=2, task="regression", class_names=["height", "width"]))
    frame = predict_images(model, photos, verbose=0)
    assert frame.isna().all(axis=1).tolist() == [False, True, False] and list(frame.columns) == ["height", "width"]
    assert "8.png" in caplog.text
    image = keras_vit.preprocess_input(keras_vit.read_image(photos / "7.png", model)[None], model)
    np.testing.assert_allclose(frame.iloc[0], model.predict(image, verbose=0)[0], rtol=1e-4)
