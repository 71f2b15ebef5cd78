"""Opens the pages of a built site in headless Chromium, narrow and wide, light and dark, and returns what is wrong."""

import contextlib
import functools
import http.server
import json
import tempfile
import threading
from urllib.parse import urlsplit

WIDTHS = {"narrow": 390, "wide": 1280}
SCHEMES = {"default": "light", "slate": "dark"}
CHROMIUM = "/usr/bin/chromium"
DRIVER = "/usr/bin/chromedriver"
FLAGS = (
    "--headless=new --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --hide-scrollbars"
)
# Resolve no host names except this machine's own address.
HOSTS = "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"
# Returns how far a page scrolls to the side, elements that are wider, and code that scrolls.
OVERFLOW = """
const width = document.documentElement.clientWidth;
const scrolls = e => e && e !== document.body
    && (getComputedStyle(e).overflowX !== "visible" || scrolls(e.parentElement));
const wide = [...document.querySelectorAll(".md-content *")].filter(
    e => e.getBoundingClientRect().right > width + 1 && !scrolls(e.parentElement));
const code = [...document.querySelectorAll(".md-content pre, .md-content pre > code")].filter(
    e => e.scrollWidth > e.clientWidth + 1);
return [document.documentElement.scrollWidth - width,
    [...wide, ...code].slice(0, 3).map(e => e.outerHTML.slice(0, 120))];
"""
SCHEME = "return document.body.getAttribute('data-md-color-scheme')"
TOGGLE = "form[data-md-component=palette] label:not([hidden])"
READY = "return document.readyState === 'complete' && [...document.images].every(e => e.complete)"


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Serves files without a log."""

    def log_message(self, *args):
        """Does nothing."""


@contextlib.contextmanager
def served(folder):
    """Serves a folder on this machine and yields its address."""
    handler = functools.partial(Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()


@contextlib.contextmanager
def browser():
    """Starts Chromium with an empty profile, without downloads."""
    from selenium import webdriver

    with tempfile.TemporaryDirectory() as profile:
        options = webdriver.ChromeOptions()
        options.binary_location = CHROMIUM
        for flag in (*FLAGS.split(), HOSTS, f"--user-data-dir={profile}"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        driver = webdriver.Chrome(options, webdriver.ChromeService(DRIVER))
        try:
            # The first page of the browser sends requests, which are dropped here.
            driver.get("about:blank")
            driver.get_log("performance")
            yield driver
        finally:
            driver.quit()


def wait_for(driver, condition):
    """Waits until a script returns a true value, and returns it."""
    from selenium.webdriver.support.ui import WebDriverWait

    return WebDriverWait(driver, 60, 0.05).until(lambda driver: driver.execute_script(condition))


def complaints(driver, address):
    """Returns the errors, failed requests and remote requests in the browser's logs since the last call."""
    found = [f"console: {entry['message']}" for entry in driver.get_log("browser")]
    for entry in driver.get_log("performance"):
        message = json.loads(entry["message"])["message"]
        event = message["params"]
        if message["method"] == "Network.requestWillBeSent":
            url = event["request"]["url"]
            if not url.startswith((address, "data:", "blob:")):
                found.append(f"request to {urlsplit(url).netloc}: {url}")
        elif message["method"] == "Network.responseReceived" and event["response"]["status"] >= 400:
            found.append(f"status {event['response']['status']}: {event['response']['url']}")
        elif message["method"] == "Network.loadingFailed" and not event.get("canceled"):
            found.append(f"failed: {event['errorText']}")
    return found


def visit(driver, address, page):
    """Opens a page in each width and scheme; returns what is wrong."""
    found = []
    for name, width in WIDTHS.items():
        metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        driver.get(f"{address}/{page}")
        wait_for(driver, READY)
        first = SCHEMES[driver.execute_script(SCHEME)]
        for scheme in (first, *(set(SCHEMES.values()) - {first})):
            if scheme != first:
                # The next page starts with this choice.
                driver.execute_script(f"document.querySelector('{TOGGLE}').click()")
            where = f"{page}, {name}, {scheme}"
            beyond, elements = driver.execute_script(OVERFLOW)
            if beyond > 0 or elements:
                found.append(f"{where}: {beyond} pixels wider than the page: {elements}")
            if SCHEMES[driver.execute_script(SCHEME)] != scheme:
                found.append(f"{where}: the toggle does not change the scheme")
            found += [f"{where}: {complaint}" for complaint in complaints(driver, address)]
    return found
