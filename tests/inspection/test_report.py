import base64
import contextlib
import html.parser
import io
import os
import re
from unittest import mock

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit import cli
from keras_vit.inspection import write_report
from tests.errors import not_found, refuses
from tests.inspection import reference

matplotlib = pytest.importorskip("matplotlib", reason="plots need matplotlib")
ANY_SIZE = {"image_size": (None, None), "grid_size": (4, 4)}
SECTIONS = [
    ({"num_classes": 0, "pooling": "gap"}, 5, "no single classification output"),
    ({"task": "regression", "position_embedding": "relative"}, 4, "no single class.*no position embeddings to"),
    ({"attention_norm": True}, 5, "No gradient rollout: .* without attention_norm"),
    ({**ANY_SIZE, "in_channels": 1, "distillation_token": True}, 6, "8 x 12 pixels.*2 x 3 patches"),
]


class Page(html.parser.HTMLParser):
    """The tags, pictures and text of a page, and the addresses that a browser would load."""

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
    # The second name is not UTF-8, if the file system allows it.
    with contextlib.suppress(OSError):
        paths[1] = paths[1].rename(tmp_path / os.fsdecode(b"caf\xe9 second.png"))
    return paths


def test_report_is_complete_and_self_contained(images, tmp_path):
    model, _ = reference.build()
    path = write_report(model, images, tmp_path / "report.html", title="<script>alert(1)</script>", notes="1 < 2 & 3")
    page = Page(path)
    text = "".join(page.text)
    # There are three pictures per image, and those of distance, positions and filters.
    assert len(page.pictures) == 9 and all(picture.std() > 0.01 for _, picture in page.pictures)
    assert all(alt for alt, _ in page.pictures)
    assert page.addresses == [] and "script" not in page.tags and not re.search(r"url\(|@import", text)
    assert "<script>alert(1)</script>" in text and "a<b>&c.png" in text and "1 < 2 & 3" in text
    assert "b" not in page.tags, "the file name must be escaped"
    for words in ("Attention rollout", "2 x 3 patches", "block_01", "Total params", "Param #", "over 2 images"):
        assert words in text
    # The table of each image has a header and five classes.
    assert page.tags.count("tr") == 2 * 6
    best = keras_vit.prediction.classify.classify(model, images)[0][0]
    assert f"{best[2]:.1%}" in text


@pytest.mark.parametrize("changes, pictures, words", SECTIONS, ids=["features", "regression", "norm", "any size"])
def test_report_sections_depend_on_model(changes, pictures, words, images, tmp_path):
    model, _ = reference.build(**changes)
    if "grid_size" in changes:
        # The model takes images of any size.
        keras.utils.save_img(images[0], np.random.default_rng(0).integers(0, 256, (8, 12, 3)), scale=False)
    page = Page(write_report(model, images[:1], tmp_path / "report.html", top=3))
    assert len(page.pictures) == pictures
    assert re.search(words, "".join(page.text), re.DOTALL)


def test_report_of_nested_quantized_and_two_output_models(images, tmp_path):
    vit, _ = reference.build(num_classes=0)
    inner = keras.Sequential([keras.Input((8, 12, 3)), vit])
    nested = keras.Sequential([keras.Input((8, 12, 3)), inner, keras.layers.Dense(3, name="mine")])
    model, _ = reference.build()
    two = keras.Model(model.input, [model.output, model.get_layer("norm").output])
    folded = keras_vit.fold_preprocessing(reference.build(include_preprocessing=True)[0])
    # Quantized attention has no gradient, so one picture is missing.
    quantized, _ = reference.build()
    quantized.get_layer("block_01").attention.out.quantize("int8")
    for each, pictures, words in (
        (nested, 6, "mine"),
        (two, 5, "no classes are shown"),
        (folded, 5, "No filters: Expected a model whose preprocessing is not folded"),
        (quantized, 5, "quantized"),
    ):
        page = Page(write_report(each, images[:1], tmp_path / "report.html"))
        assert len(page.pictures) == pictures and words in "".join(page.text)


def test_failed_report_keeps_old_file(images, tmp_path, monkeypatch):
    model, _ = reference.build()
    (tmp_path / "out").mkdir()
    path = tmp_path / "out" / "report.html"
    path.write_text("the old page")
    monkeypatch.setattr(matplotlib.figure.Figure, "savefig", mock.Mock(side_effect=OSError("No space left on device")))
    refuses("No space left", write_report, model, images, path, error=OSError)
    assert [file.read_text() for file in path.parent.iterdir()] == ["the old page"]


def test_report_refuses_invalid_path_images_or_model(images, tmp_path):
    model, _ = reference.build()
    refuses(
        "`path`. Expected a .html file. Received: .*report.pdf", write_report, model, images, tmp_path / "report.pdf"
    )
    refuses("at least one path", write_report, model, [], tmp_path / "report.html")
    not_found("there is no folder", write_report, model, images, tmp_path / "nowhere" / "report.html")
    dense = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    refuses("holds a ViT", write_report, dense, images, tmp_path / "report.html")
    assert not (tmp_path / "report.html").exists()


def test_inspect_command_writes_the_report_of_a_file(images, tmp_path, capsys):
    model, _ = reference.build()
    model.save(tmp_path / "model.keras")
    out = tmp_path / "report.html"
    arguments = [tmp_path / "model.keras", images[0], "--out", out, "--top", "2"]
    assert cli.main(["inspect", *map(str, arguments)]) == 0
    assert f"Wrote {out}" in capsys.readouterr().out
    page, by_gap = Page(out), Page(write_report(model, images[:1], tmp_path / "gap.html", readout="gap"))
    # Only the two rollouts depend on the readout.
    same = [np.array_equal(a, b) for (_, a), (_, b) in zip(page.pictures, by_gap.pictures, strict=True)]
    assert same == [False] * 2 + [True] * 4
