import json
import os

import pytest

from keras_vit.prediction_files import as_json, find_images, write_csv

PREDICTIONS = [[("1", "dog", 0.75), ("0", "cat", 0.25)], []]


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "images" / "more").mkdir(parents=True)
    for name in ("b.png", "a.JPG", ".hidden.png", "more/c.webp", "notes.txt"):
        (tmp_path / "images" / name).write_bytes(b"")
    return tmp_path


def test_a_folder_stands_for_its_images(folder, capsys):
    header, found = find_images([folder / "images", folder / "images" / "b.png"])
    expected = [str(folder / "images" / name) for name in ("a.JPG", "b.png", "more/c.webp", "b.png")]
    assert header == "path" and found == [(path, path) for path in expected]
    assert "2 files" in capsys.readouterr().err


def test_a_table_stands_for_its_column_of_paths(folder):
    (folder / "test.csv").write_text("id,image\n7,images/b.png\n\n3,images/a.JPG\n")
    header, found = find_images([folder / "test.csv"], "image")
    assert header == "image"
    assert found == [(name, str(folder / name)) for name in ("images/b.png", "images/a.JPG")]
    (folder / "path.csv").write_text("\ufeffid,path\n7,images/b.png\n", encoding="utf-8")
    assert find_images([folder / "path.csv", folder / "images" / "b.png"])[0] == "path"


def test_bare_ids_are_completed(folder):
    (folder / "ids.csv").write_text("id,x\nb,1\n007,2\n")
    (folder / "images" / "007.png").write_bytes(b"")
    header, found = find_images([folder / "ids.csv"], "id", folder / "images", ".png")
    assert header == "id" and found == [(name, str(folder / "images" / f"{name}.png")) for name in ("b", "007")]


@pytest.mark.parametrize(
    ("text", "column", "message"),
    [
        ("id,image\n1,2\n", None, r"'path'.*--path-column.*\['id', 'image'\]"),
        ("image\n", None, "no rows"),
        ("image,x\nimages/b.png,1\n,2\n", "image", "row 2"),
        ("", None, "'path'"),
        ('image\n"open', None, "UTF-8"),
    ],
)
def test_a_table_that_names_no_images_is_refused(folder, text, column, message):
    (folder / "test.csv").write_text(text)
    with pytest.raises(ValueError, match=message):
        find_images([folder / "test.csv"], column)


def test_what_is_not_there_is_named(folder):
    (folder / "test.csv").write_text("path\nimages/b.png\nnowhere.png\n")
    (folder / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match=r"nowhere\.png"):
        find_images([folder / "test.csv"])
    with pytest.raises(FileNotFoundError, match=r"none\.csv"):
        find_images([folder / "none.csv"])
    with pytest.raises(ValueError, match="empty"):
        find_images([folder / "empty"])
    with pytest.raises(ValueError, match="Expected a CSV file"):
        find_images([folder / "images"], "image")


def test_a_name_that_is_not_utf8_is_written(tmp_path):
    write_csv(tmp_path / "a.csv", "id", [os.fsdecode(b"caf\xe9"), "y"], PREDICTIONS)
    assert (tmp_path / "a.csv").read_text(encoding="utf-8").splitlines()[1].startswith("caf\\udce9,dog")


def test_each_image_has_a_row_and_an_object(tmp_path):
    write_csv(tmp_path / "a.csv", "id", ["x", "y"], PREDICTIONS)
    lines = (tmp_path / "a.csv").read_text().splitlines()
    assert lines == ["id,label,probability,label_2,probability_2", "x,dog,0.75,cat,0.25", "y,,,,"]
    first, second = json.loads(as_json(["x", "y"], PREDICTIONS))
    assert first["classes"][0] == {"id": "1", "label": "dog", "probability": 0.75}
    assert second == {"path": "y", "classes": []}
