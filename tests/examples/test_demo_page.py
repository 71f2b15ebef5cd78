"""Uses the page of serve/server.py in Chromium."""

import os

import pytest

if os.environ.get("KERAS_VIT_SITE") != "1":
    pytest.skip("KERAS_VIT_SITE=1 opens the page in Chromium", allow_module_level=True)

import shutil
from base64 import b64encode

import keras
import numpy as np
from PIL import ExifTags, Image
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

from keras_vit import export
from tests.examples import browser, scripts
from tests.examples.test_serve import post
from tests.export.bodies import encoded
from tests.tiny import build

pytestmark = pytest.mark.long

HOSTILE = "<img src=x onerror=document.title='run'>"
LABELS = [HOSTILE, '"><script>document.title="run"</script>', "{{model}}", "\u202egnp.tac", "a" * 300]


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    keras.utils.set_random_seed(0)
    folder = tmp_path_factory.mktemp("models") / "vit"
    model = build(preprocessing={"crop_fraction": 0.8})
    export.saved_model(model, folder / "1", postprocess="classify", labels=LABELS, attention=True)
    with scripts.served(folder) as address:
        yield address


@pytest.fixture(scope="module")
def chromium():
    with browser.browser() as driver:
        yield driver


@pytest.fixture
def page(chromium, url):
    metrics = {"width": 1000, "height": 800, "deviceScaleFactor": 1, "mobile": False}
    chromium.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    chromium.get(f"{url.partition('/v1/')[0]}/")
    yield chromium
    assert chromium.get_log("browser") == []
    assert chromium.title == "Try the model vit"


@pytest.fixture
def photo(tmp_path):
    path = tmp_path / "photo.png"
    path.write_bytes(encoded(1, "PNG"))
    return path


def find(driver, selector):
    return driver.find_element(By.CSS_SELECTOR, selector)


def texts(driver, selector):
    return [element.text for element in driver.find_elements(By.CSS_SELECTOR, selector)]


def send(driver, *paths):
    find(driver, "#files").send_keys("\n".join(map(str, paths)))


def answers(driver, number):
    """Waits for a number of answers, and returns them."""
    notes = "#results .note"
    WebDriverWait(driver, 60).until(lambda _: [n[:7] != "Waiting" for n in texts(driver, notes)] == [True] * number)
    return texts(driver, notes)


def test_images_get_classes_and_attention(page, url, photo, tmp_path):
    other = tmp_path / "other.jpg"
    # The browser and the model turn the image upright, so that it is higher than wide.
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6
    other.write_bytes(encoded(4, exif=exif))
    send(page, photo, other)
    assert all(note.startswith("Answered in ") and note.endswith(" ms.") for note in answers(page, 2))
    assert texts(page, "h2") == ["photo.png", "other.jpg"]
    assert find(page, "#status").text.startswith("2 of 2: other.jpg: ")
    articles = page.find_elements(By.CSS_SELECTOR, "article")
    for article, path in zip(articles, (photo, other), strict=True):
        instance = {"b64": b64encode(path.read_bytes()).decode()}
        status, answer = post(url, {"signature_name": "serving_attention", "instances": [instance]})
        assert status == 200
        row = answer["predictions"][0]
        assert texts(article, ".value") == [f"{100 * score:.1f}%" for score in row["scores"]]
        labels = [element.get_property("textContent") for element in article.find_elements(By.CSS_SELECTOR, ".label")]
        assert labels == row["labels"]
        bars = [bar.size["width"] for bar in article.find_elements(By.CSS_SELECTOR, ".bar div")]
        whole = find(article, ".bar").size["width"]
        np.testing.assert_allclose(bars, whole * np.array(row["scores"]), atol=1)
        # The pixels are black, and more opaque where the attention is smaller.
        canvas = find(article, "canvas")
        script = "const [c] = arguments; return [...c.getContext('2d').getImageData(0, 0, c.width, c.height).data]"
        pixels = np.reshape(page.execute_script(script, canvas), (4, 4, 4))
        attention = np.array(row["attention"])
        share = (attention - attention.min()) / np.ptp(attention)
        assert not pixels[..., :3].any()
        np.testing.assert_allclose(pixels[..., 3], 255 * (1 - share), atol=1)
        # The canvas covers the crop of the image.
        (top, left), _ = row["attention_corners"]
        image, place = find(article, "img").rect, canvas.rect
        offset = [(place["x"] - image["x"]) / image["width"], (place["y"] - image["y"]) / image["height"]]
        np.testing.assert_allclose(offset, [left, top], atol=0.005)


def test_hostile_names_are_shown_as_text(page, photo, tmp_path):
    names = [f"{HOSTILE}.png", "\u202egnp.exe", "b" * 200, "&amp;<b>.png"]
    for name in names:
        shutil.copy(photo, tmp_path / name)
    send(page, *(tmp_path / name for name in names))
    answers(page, 4)
    headings = page.find_elements(By.CSS_SELECTOR, "h2")
    assert [heading.get_property("textContent") for heading in headings] == names
    labels = page.find_elements(By.CSS_SELECTOR, "article:first-child .label")
    assert sorted(label.get_property("textContent") for label in labels) == sorted(LABELS)
    # Long names do not widen the page.
    assert page.execute_script("return document.documentElement.scrollWidth <= innerWidth")
