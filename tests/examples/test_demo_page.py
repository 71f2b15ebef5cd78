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
from selenium.webdriver import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

from keras_vit import export
from tests.examples import browser, scripts
from tests.examples.test_serve import post
from tests.export.bodies import encoded
from tests.tiny import build

pytestmark = pytest.mark.long

HOSTILE = "<img src=x onerror=document.title='run'>"
LABELS = [HOSTILE, '"><script>document.title="run"</script>', "{{model}}", "\u202egnp.tac", "a" * 300]
MAX_BODY = 100_000


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    keras.utils.set_random_seed(0)
    folder = tmp_path_factory.mktemp("models") / "vit"
    model = build(preprocessing={"crop_fraction": 0.8})
    export.saved_model(model, folder / "1", postprocess="classify", labels=LABELS, attention=True)
    with scripts.served(folder, "--max-body", str(MAX_BODY)) as (address, _):
        yield address


@pytest.fixture(scope="module")
def chromium():
    with browser.browser() as driver:
        yield driver


@pytest.fixture
def page(chromium, url):
    yield opened(chromium, url)
    assert chromium.get_log("browser") == []
    assert chromium.title == "Try the model vit"


def opened(driver, url, width=1000, **media):
    features = [{"name": name.replace("_", "-"), "value": value} for name, value in media.items()]
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    metrics = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    driver.get(f"{url.partition('/v1/')[0]}/")
    return driver


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
        (top, left), (bottom, right) = row["attention_corners"]
        image, place = find(article, "img").rect, canvas.rect
        assert (top if path == other else left) > 0 and image["width"] == 320
        assert image["height"] == pytest.approx(320 * (30 / 20 if path == other else 20 / 30), abs=1)
        expected = (left, top, right - left, bottom - top)
        sides = [image[side] for side in ("width", "height") * 2]
        offset = [image["x"], image["y"], 0, 0]
        received = [place[key] - start for key, start in zip(("x", "y", "width", "height"), offset, strict=True)]
        np.testing.assert_allclose(received, np.multiply(expected, sides), atol=1)


def test_dropped_files_are_answered(page):
    script = """
    const transfer = new DataTransfer();
    const data = Uint8Array.from(atob(arguments[0]), (c) => c.charCodeAt());
    for (const name of ["a.png", "b.png"]) transfer.items.add(new File([data], name));
    const drag = (type, options = {}) => {
      const event = { dataTransfer: transfer, bubbles: true, cancelable: true, ...options };
      document.body.dispatchEvent(new DragEvent(type, event));
      return getComputedStyle(document.body, "::after").content;
    };
    const between = { relatedTarget: document.body };
    return [drag("dragover"), drag("dragleave", between), drag("dragleave"), drag("dragover"), drag("drop")];"""
    shown = page.execute_script(script, b64encode(encoded(2, "PNG")).decode())
    assert shown == ['"Drop the images here"', '"Drop the images here"', "none", '"Drop the images here"', "none"]
    assert all(note.startswith("Answered") for note in answers(page, 2)) and texts(page, "h2") == ["a.png", "b.png"]
    # The page is marked as a target only while a file is above it.
    assert find(page, "body").get_attribute("class") == ""


def test_files_other_than_images_are_named(page, photo, tmp_path):
    contents = {
        "notes.txt": b"no image at all",
        "empty.png": b"",
        "cut.jpg": encoded(1)[:300],
        "page.html": b"<script>document.title = 'run'</script>",
    }
    for name, data in contents.items():
        (tmp_path / name).write_bytes(data)
    send(page, *(tmp_path / name for name in contents), photo)
    *wrong, right = answers(page, 5)
    unknown = "This is neither a JPEG nor a PNG file."
    assert wrong == [unknown, unknown, "This file is damaged.", unknown] and right.startswith("Answered")
    assert [image.is_displayed() for image in page.find_elements(By.CSS_SELECTOR, "img")][-1]
    assert not find(page, "article img").is_displayed()


def test_huge_files_are_refused_with_reason(page, photo, tmp_path):
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (200, 200, 3), "uint8"))
    noise.save(tmp_path / "many_bytes.png")
    # 36 million pixels of one color.
    Image.new("L", (6000, 6000)).save(tmp_path / "many_pixels.png")
    send(page, tmp_path / "many_bytes.png", tmp_path / "many_pixels.png", photo)
    size = (tmp_path / "many_bytes.png").stat().st_size
    bytes_, pixels, right = answers(page, 3)
    assert bytes_ == f"This file has {size / 1e6:.1f} MB. The server takes at most 0.1 MB."
    assert pixels == "This image has more pixels than the model's export allows." and right.startswith("Answered")
    # The server accepts the largest file that the page sends.
    most = int(page.execute_script("return mostBytes"))
    assert MAX_BODY - 300 < most * 4 / 3 < MAX_BODY
    (tmp_path / "most.png").write_bytes(encoded(1, "PNG").ljust(most, b"\0"))
    send(page, tmp_path / "most.png")
    assert answers(page, 4)[0].startswith("Answered")


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
    assert len(page.find_elements(By.CSS_SELECTOR, "img")) == 4 and not texts(page, "main script, #results b")
    # Long names do not widen the page.
    assert page.execute_script("return document.documentElement.scrollWidth <= innerWidth")


def test_plain_export_shows_samples_and_lost_server(chromium, photo, tmp_path):
    keras.utils.set_random_seed(0)
    export.saved_model(build(), tmp_path / "plain" / "1", warm_up=())
    # The photo is also the sample image.
    with scripts.served(tmp_path / "plain", "--samples", str(photo.parent)) as (url, process):
        page = opened(chromium, url)
        assert not find(page, "#strength").is_displayed()
        WebDriverWait(page, 60).until(lambda _: find(page, "#samples").is_displayed())
        assert find(page, "#samples img").accessible_name == "photo.png"
        find(page, "#samples button").click()
        (note,) = answers(page, 1)
        assert note.endswith("This export has no class names: these are its largest outputs.")
        values = [float(value) for value in texts(page, ".value")]
        assert len(values) == 5 and values == sorted(values, reverse=True)
        assert sorted(texts(page, ".label")) == [f"outputs {i}" for i in range(5)]
        assert not find(page, "canvas").is_displayed() and not find(page, ".bar").is_displayed()
        process.kill()
        process.wait()
        send(page, photo, photo)
        assert answers(page, 3)[:2] == ["The server does not answer. Is it running?"] * 2
        assert find(page, "#status").text == "3 of 3: photo.png: The server does not answer. Is it running?"
    assert all("ERR_CONNECTION_REFUSED" in entry["message"] for entry in chromium.get_log("browser"))


def press(driver, key):
    ActionChains(driver).send_keys(key).perform()


def test_page_works_with_keyboard_only(chromium, url, photo):
    page = opened(chromium, url, prefers_reduced_motion="reduce")
    press(page, Keys.TAB)
    active = page.switch_to.active_element
    assert active.get_attribute("id") == "files" and active.accessible_name.startswith("Choose images")
    assert active.value_of_css_property("outline-style") == "solid"
    active.send_keys(str(photo))
    answers(page, 1)
    press(page, Keys.TAB)
    active = page.switch_to.active_element
    assert active.get_attribute("id") == "strength" and active.accessible_name == "Attention"
    assert active.value_of_css_property("outline-style") == "solid"
    for key, percent in ((Keys.END, 100), (Keys.ARROW_LEFT, 95), (Keys.HOME, 0)):
        press(page, key)
        assert find(page, "#percent").text == f"{percent}%"
        assert float(find(page, "canvas").value_of_css_property("opacity")) == pytest.approx(percent / 100)
    assert find(page, "#status").aria_role == "status" and find(page, "img").accessible_name == "photo.png"


# Returns the background color of an element, or of the nearest element around it that has one.
BEHIND = """
const behind = (element) => {
  const color = getComputedStyle(element).backgroundColor;
  return color === "rgba(0, 0, 0, 0)" ? behind(element.parentElement) : color;
};
return behind(arguments[0]);
"""


def luminance(color):
    red, green, blue = (
        value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4
        for value in (int(part) / 255 for part in color.strip("rgba()").split(",")[:3])
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_page_is_legible_in_both_schemes_on_narrow_screen(chromium, url, photo, tmp_path, scheme):
    (tmp_path / "notes.txt").write_text("none")
    media = {"prefers_color_scheme": scheme, "prefers_reduced_motion": "reduce"}
    page = opened(chromium, url, width=360, **media)
    send(page, photo, tmp_path / "notes.txt")
    answers(page, 2)
    back = page.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert (luminance(back) > 0.5) == (scheme == "light")
    for selector in ("h1", "#about", "label", "#limits", "#rollout", "#status", "h2", ".note", ".error", ".value"):
        colors = find(page, selector).value_of_css_property("color"), page.execute_script(BEHIND, find(page, selector))
        bright, dark = sorted(map(luminance, colors))[::-1]
        assert (bright + 0.05) / (dark + 0.05) >= 4.5, selector
    assert page.execute_script("return document.documentElement.scrollWidth") <= 360
    assert find(page, "canvas").value_of_css_property("transition-duration") == "0s"
