"""Opens each page of the built site in headless Chromium, as in browser.py."""

import os

import pytest

from tests.examples import browser
from tests.examples.test_site import BUILT, needs_site

pytestmark = [pytest.mark.long, needs_site]
PAGES = browser.pages_of(BUILT) if os.environ.get("KERAS_VIT_SITE") == "1" else []

SEARCH = """
const query = document.querySelector("[data-md-component=search-query]");
query.focus();
query.value = arguments[0];
query.dispatchEvent(new Event("input", {bubbles: true}));
query.dispatchEvent(new Event("keyup", {bubbles: true}));
"""
FOUND = "return [...document.querySelectorAll('.md-search-result__link')].map(e => e.href).join(' ')"


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


def test_search_finds_function(address, driver):
    driver.get(f"{address}/index.html")
    browser.wait_for(driver, browser.READY)
    driver.execute_script(SEARCH, "attention_rollout")
    links = browser.wait_for(driver, FOUND)
    assert "api/inspection.html" in links
    assert not browser.complaints(driver, address)
