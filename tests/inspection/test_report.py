import base64
import contextlib
import html.parser
import io
import os
import re

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit import cli
from keras_vit.inspection import write_report
from tests.inspection import reference

matplotlib = pytest.importorskip("matplotlib", reason="plots need matplotlib")


# All that the page shows has tests on each backend.
class Page(html.parser.HTMLParser):
    """What a browser would make of a page: its headings, pictures and text, and the addresses that it asks for."""

    def __init__(self, path):
        super().__init__()
        self.tags, self.pictures, self.addresses, self.text = [], [], [], []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        attributes = dict(attributes)
        for name in ("src", "href"):
            address = attributes.get(name)
            if address is not None and address.startswith("data:image/png;base64,"):
                data = base64.b64decode(address.partition(",")[2])
                self.pictures.append((attributes["alt"], matplotlib.image.imread(io.BytesIO(data))))
            elif address is not None:
                self.addresses.append(address)

    def handle_data(self, data):
        self.text.append(data)


@pytest.fixture
def images(tmp_path):
    rng = np.random.default_rng(0)
    paths = [tmp_path / "a<b>&c.png", tmp_path / "second.png"]
    for path in paths:
        keras.utils.save_img(path, rng.integers(0, 256, (20, 30, 3)), scale=False)
    # A name that is not UTF-8.
    with contextlib.suppress(OSError):
        paths[1] = paths[1].rename(tmp_path / os.fsdecode(b"caf\xe9 second.png"))
    return paths


def test_the_page_holds_all_and_asks_for_nothing(images, tmp_path):
    model, _ = reference.build()
    path = write_report(model, images, tmp_path / "report.html", title="<script>alert(1)</script>", notes="1 < 2 & 3")
    page = Page(path)
    text = "".join(page.text)
    # Three an image, and distance, positions and filters.
    assert len(page.pictures) == 9 and all(picture.std() > 0.01 for _, picture in page.pictures)
    assert all(alt for alt, _ in page.pictures)
    assert page.addresses == [] and "script" not in page.tags and not re.search(r"url\(|@import", text)
    assert "<script>alert(1)</script>" in text and "a<b>&c.png" in text and "1 < 2 & 3" in text
    assert "b" not in page.tags, "the name of the file is no markup"
    for words in ("Attention rollout", "2 x 3 patches", "block_01", "Total params", "Param #", "over 2 images"):
        assert words in text
    # Each image's table has five classes below its heads.
    assert page.tags.count("tr") == 2 * 6
    best = keras_vit.models.classify.classify(model, images)[0][0]
    assert f"{best[2]:.1%}" in text


@pytest.mark.parametrize(
    ("changes", "pictures", "words"),
    [
        ({"num_classes": 0, "pooling": "gap"}, 5, "no single classification output"),
        ({"num_classes": 1, "regression": True}, 5, "no single classification output"),
        ({"position_embedding": "relative"}, 5, "no position embeddings to compare"),
        ({"image_size": (None, None), "grid_size": (4, 4)}, 6, "8 x 12 pixels"),
        ({"in_channels": 1, "distillation_token": True}, 6, "2 x 3 patches"),
    ],
)
def test_what_a_model_has_not_is_said(changes, pictures, words, images, tmp_path):
    model, _ = reference.build(**changes)
    if "grid_size" in changes:
        # It takes an image as it is; JAX has compiled this size.
        keras.utils.save_img(images[0], np.random.default_rng(0).integers(0, 256, (8, 12, 3)), scale=False)
    page = Page(write_report(model, images[:1], tmp_path / "report.html", top=3))
    assert len(page.pictures) == pictures
    assert words in "".join(page.text)


def test_a_nested_model_is_reported(images, tmp_path):
    vit, _ = reference.build(num_classes=0)
    inner = keras.Sequential([keras.Input((8, 12, 3)), vit])
    model = keras.Sequential([keras.Input((8, 12, 3)), inner, keras.layers.Dense(3, name="mine")])
    assert len(Page(write_report(model, images[:1], tmp_path / "report.html")).pictures) == 6


def test_a_model_of_two_outputs_has_no_predictions(images, tmp_path):
    model, _ = reference.build()
    two = keras.Model(model.input, [model.output, model.get_layer("norm").output])
    page = Page(write_report(two, images[:1], tmp_path / "report.html"))
    assert len(page.pictures) == 5 and "no classes are shown" in "".join(page.text)


def test_a_quantized_model_is_reported(images, tmp_path):
    model, _ = reference.build()
    model.get_layer("block_01").attention.out.quantize("int8")
    page = Page(write_report(model, images[:1], tmp_path / "report.html"))
    assert len(page.pictures) == 5 and "quantized" in "".join(page.text) and page.tags.count("tr") == 6


def test_a_failed_write_leaves_nothing_behind(images, tmp_path, monkeypatch):
    model, _ = reference.build()
    (tmp_path / "out").mkdir()
    path = tmp_path / "out" / "report.html"
    path.write_text("the old page")

    def fail(*args, **kwargs):
        raise OSError("No space left on device")

    monkeypatch.setattr(matplotlib.figure.Figure, "savefig", fail)
    with pytest.raises(OSError, match="No space left"):
        write_report(model, images, path)
    assert [file.read_text() for file in path.parent.iterdir()] == ["the old page"]


def test_what_is_wrong_is_said(images, tmp_path):
    model, _ = reference.build()
    with pytest.raises(ValueError, match=r"`path`. Expected a .html file. Received: .*report.pdf"):
        write_report(model, images, tmp_path / "report.pdf")
    with pytest.raises(ValueError, match="at least one path"):
        write_report(model, [], tmp_path / "report.html")
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        write_report(model, images, tmp_path / "nowhere" / "report.html")
    with pytest.raises(FileNotFoundError, match=r"nowhere.png"):
        write_report(model, [tmp_path / "nowhere.png"], tmp_path / "report.html")
    with pytest.raises(ValueError, match="holds a ViT"):
        write_report(keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)]), images, tmp_path / "report.html")
    assert not (tmp_path / "report.html").exists()


def test_the_command_line_takes_weights_and_models(images, tmp_path, capsys):
    model, _ = reference.build()
    keras_vit.save_weights(model, tmp_path / "model.npz")
    model.save(tmp_path / "model.keras")
    pages = []
    for file in ("model.npz", "model.keras"):
        out = tmp_path / f"{file}.html"
        assert cli.main(["inspect", str(tmp_path / file), str(images[0]), "--out", str(out), "--top", "2"]) == 0
        assert f"Wrote {out}" in capsys.readouterr().out
        pages.append(Page(out))
    assert [len(page.pictures) for page in pages] == [6, 6]
    np.testing.assert_array_equal(pages[0].pictures[0][1], pages[1].pictures[0][1])
    assert cli.main(["inspect", str(tmp_path / "model.npz"), "nowhere.png", "--out", str(tmp_path / "x.html")]) == 1
    assert "nowhere.png" in capsys.readouterr().err
