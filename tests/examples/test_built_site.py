"""The built site, read as files and opened in headless Chromium. These tests need KERAS_VIT_SITE=1, after
`mkdocs build --strict -f examples/site/mkdocs.yml`.
"""

import os
import zlib
from types import ModuleType

import pytest

import keras_vit
from keras_vit.models import builders
from tests.examples import browser, scripts

ASKED = os.environ.get("KERAS_VIT_SITE") == "1"
pytestmark = [pytest.mark.long, pytest.mark.skipif(not ASKED, reason="set KERAS_VIT_SITE=1 after mkdocs build")]
BUILT = scripts.EXAMPLES.parent / "build" / "site"
PAGES = sorted(path.relative_to(BUILT).as_posix() for path in BUILT.rglob("*.html")) if ASKED else []
MODULES = {"keras_vit": keras_vit} | {
    f"keras_vit.{name}": getattr(keras_vit, name)
    for name in keras_vit.__all__
    if isinstance(getattr(keras_vit, name), ModuleType)
}
SEARCH = """
const query = document.querySelector("[data-md-component=search-query]");
query.focus();
query.value = arguments[0];
query.dispatchEvent(new Event("input", {bubbles: true}));
query.dispatchEvent(new Event("keyup", {bubbles: true}));
"""
FOUND = "return [...document.querySelectorAll('.md-search-result__link')].map(e => e.href).join(' ')"
SEARCHES = [("attention_rollout", "api/inspection.html"), ("include_top", "guides/from_keras_applications.html")]
SEARCHES += [("confusion matrix", "guides/explaining_predictions.html"), ("weights imagenet", "guides/")]


@pytest.fixture(scope="module")
def address():
    assert (BUILT / "index.html").is_file(), "mkdocs build --strict -f examples/site/mkdocs.yml"
    with browser.served(BUILT) as address:
        yield address


@pytest.fixture(scope="module")
def driver():
    with browser.browser() as driver:
        yield driver


@pytest.mark.parametrize("page", PAGES)
def test_page_has_no_complaints(page, address, driver):
    assert not browser.visit(driver, address, page)


def test_visit_reports_every_kind_of_error(tmp_path, driver):
    (tmp_path / "index.html").write_text(
        "<body data-md-color-scheme=default><form data-md-component=palette><label></label></form>"
        "<img src=missing.png><script src=https://example.com/a.js></script><script>nowhere()</script>"
        '<div class=md-content><p style="width: 2000px">wide</p></div>'
    )
    with browser.served(tmp_path) as address:
        found = "\n".join(browser.visit(driver, address, "index.html"))
    for words in ("status 404", "request to example.com", "nowhere is not defined", "wider", "does not change"):
        assert words in found


@pytest.mark.parametrize("words, page", SEARCHES)
def test_search_finds_page(words, page, address, driver):
    driver.get(f"{address}/index.html")
    browser.wait_for(driver, browser.READY)
    driver.execute_script(SEARCH, words)
    assert page in browser.wait_for(driver, FOUND)
    assert not browser.complaints(driver, address)


def test_inventory_has_each_public_name():
    header, _, body = (BUILT / "objects.inv").read_bytes().partition(b"zlib.\n")
    assert b"Sphinx inventory" in header
    inventory = {line.split(" ")[0]: line.split(" ")[3] for line in zlib.decompress(body).decode().splitlines()}
    for path, module in MODULES.items():
        missing = {name for name in module.__all__ if not isinstance(getattr(module, name), ModuleType)}
        missing = {f"{path}.{name}" for name in missing - set(builders.__all__)} - set(inventory)
        assert not missing
        assert (BUILT / "api" / f"{path.split('.')[-1]}.html").is_file()
    table = (BUILT / "api" / "builders.html").read_text(encoding="utf-8")
    assert [name for name in builders.__all__ if f'id="keras_vit.{name}"' not in table] == []
