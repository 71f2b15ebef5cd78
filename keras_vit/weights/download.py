"""Downloads a published file whole and checked, or not at all."""

import contextlib
import http.client
import os
import re
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import keras

from keras_vit.files import replacing
from keras_vit.weights.read.file import check_is_no_stand_in
from keras_vit.weights.read.file import sha256 as digest_of

try:
    import fcntl
except ImportError:
    fcntl = None

BLOCK = 1 << 20
# Statuses after which the same request may still succeed; after any other 4xx it will not.
_PASSING = {408, 425, 429, 500, 502, 503, 504}


class DownloadError(OSError):
    """A download failed, and left nothing at its path."""


class _BrokenError(Exception):
    """A connection ended too early, or sent something other than what was asked for."""


def download(url, path, *, sha256=None, sha256_prefix=None, pin=None, check=None, attempts=4, timeout=30.0, delay=0.5):
    """Downloads a file from an http or https address, once for all processes that ask for it at the same time.

    It is checked against the length that the server announces and every hash that is known. A broken or
    stalled connection is resumed if the server can resume, else it starts again: up to `attempts` times in a row
    without a further block, after waits that double from `delay` seconds. `timeout` is the silence, in seconds, after
    which a connection counts as broken. Without a known hash `check`, a function of a path, raises ValueError for a
    file that cannot be the right one. The others are those of `confirm`.
    """
    path = Path(path)
    if not url.lower().startswith(("https://", "http://")):
        raise ValueError(
            f"Invalid value received for argument `url`. Expected an http or https address. Received: {url!r}"
        )
    with _writing(path):
        lock = _locked(path)
    with lock:
        if path.is_file():
            confirm(path, sha256=sha256, sha256_prefix=sha256_prefix, pin=pin)
            return
        pin = _beside(path) if pin is None else Path(pin)
        expected = _expected(sha256, sha256_prefix, [pin])
        with _writing(path), replacing(path) as temporary:
            with open(temporary, "xb") as file:
                transfer = _Transfer(url, file, timeout, bool(expected))
                digest = _receive(transfer, expected, attempts, delay)
                os.fsync(file.fileno())
            if check is not None and not expected:
                try:
                    check(temporary)
                except ValueError as error:
                    raise DownloadError(f"{url} is not the file that was expected: {error}") from None
        _remember(pin, digest, expected)


def confirm(path, *, sha256=None, sha256_prefix=None, pin=None):
    """Raises ValueError unless a file has every SHA-256 that is known of it, or the first digits of one.

    `pin` is a `sha256sum` file that remembers the hash of a file whose own was never published in full. It is written
    at first and checked ever after; None is `path` with ".sha256" added, which is checked in any case.
    """
    path = Path(path)
    # Before it is pinned.
    check_is_no_stand_in(path)
    pin = _beside(path) if pin is None else Path(pin)
    expected = _expected(sha256, sha256_prefix, dict.fromkeys((pin, _beside(path))))
    digest = digest_of(path)
    if wrong := _difference(digest, expected):
        raise ValueError(
            f"{str(path)!r} {wrong}. It is damaged, or another file than before. Delete it to download it again."
        )
    _remember(pin, digest, expected)


def _beside(path):
    return path.with_name(f"{path.name}.sha256")


def _expected(sha256, sha256_prefix, pins):
    """The digits that a SHA-256 must begin with, by where they are from."""
    expected = {}
    if sha256:
        expected["published for it"] = sha256.lower()
    if sha256_prefix:
        expected["in its published name"] = sha256_prefix.lower()
    for pin in pins:
        if pin.is_file():
            found = re.match(rb"[0-9a-fA-F]{64}(?=\s|$)", pin.read_bytes())
            if not found:
                raise ValueError(f"Expected {str(pin)!r} to begin with a SHA-256, as sha256sum writes it. Delete it.")
            expected[f"pinned in {str(pin)!r} (delete that file if the new hash is right)"] = found[0].decode().lower()
    return expected


def _difference(digest, expected):
    wrong = [f"{digits} is {origin}" for origin, digits in expected.items() if not digest.startswith(digits)]
    return f"has the SHA-256 {digest}, and {wrong[0]}" if wrong else None


def _remember(pin, digest, expected):
    """Pins a hash of which only a part, or nothing, was known, if the folder can be written."""
    if digest not in expected.values():
        with contextlib.suppress(OSError), replacing(pin) as temporary:
            temporary.write_text(f"{digest}  {pin.stem}\n")


@contextlib.contextmanager
def _writing(path):
    """Makes a full disk, or a folder that cannot be written, a DownloadError that names the file."""
    try:
        yield
    except DownloadError:
        raise
    except OSError as error:
        raise DownloadError(f"Cannot write {str(path)!r}: {error}.") from None


def _locked(path):
    """Opens a file whose lock one process at a time holds, until it closes it or ends."""
    file = open(path.with_name(f".{path.name}.lock"), "ab")  # noqa: SIM115
    # Windows and some network folders have no such locks. Each process then downloads its own copy.
    if fcntl is not None:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _say(f"Waiting for another process that downloads {path.name}.")
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError:
            pass
    return file


class _Transfer:
    """A file on its way, and what identifies the rest of it after a broken connection."""

    def __init__(self, url, file, timeout, checkable):
        self.url, self.file, self.timeout, self.checkable = url, file, timeout, checkable
        self.progress = None
        self.restart()

    def restart(self):
        self.file.seek(0)
        self.file.truncate()
        self.total, self.mark = None, None

    def connect(self):
        """Yields the blocks of one connection, which goes on where the file ends. Raises _BrokenError if it breaks."""
        if not (self.mark or self.checkable):
            self.restart()
        # Some servers refuse Python's own name.
        headers = {"User-Agent": "keras-vit", "Accept-Encoding": "identity"}
        if self.file.tell():
            headers |= {"Range": f"bytes={self.file.tell()}-", **({"If-Range": self.mark} if self.mark else {})}
        try:
            request = urllib.request.Request(self.url, headers=headers)
            with _opener().open(request, timeout=self.timeout) as response:
                self._begin(response)
                # Unlike `read`, it returns what has come before a connection breaks.
                while block := response.read1(BLOCK):
                    yield block
        except DownloadError:
            raise
        except urllib.error.HTTPError as error:
            error.close()
            reason = f"the server answered {error.code} {error.reason}"
            if error.code == 416:
                # The file there has no such part any more.
                self.restart()
            elif error.code not in _PASSING:
                raise DownloadError(f"Cannot download {self.url}: {reason}.") from None
            raise _BrokenError(reason) from None
        except (OSError, http.client.HTTPException) as error:
            raise _BrokenError(str(getattr(error, "reason", error)) or type(error).__name__) from None
        if self.total not in (None, self.file.tell()):
            raise _BrokenError(f"the connection ended after {self.file.tell():,} of {self.total:,} bytes")
        if not self.file.tell():
            raise _BrokenError("the server sent nothing")

    def _begin(self, response):
        if response.status == 206:
            span = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", response.headers.get("Content-Range", "").strip())
            goes_on = span and int(span[1]) == self.file.tell() and span[2] in ("*", str(self.total))
            if not goes_on or _mark(response) not in (None, self.mark):
                self.restart()
                raise _BrokenError("the server sent another part than the missing one")
            return
        if response.status != 200:
            raise _BrokenError(f"the server answered {response.status}")
        if response.headers.get_content_type() == "text/html":
            raise DownloadError(f"Cannot download {self.url}: the server sent a web page instead of the file.")
        self.restart()
        self.mark = _mark(response)
        length = response.headers.get("Content-Length", "")
        self.total = int(length) if length.isdecimal() else None
        if self.total is None and not (response.chunked or self.checkable):
            raise DownloadError(
                f"Cannot download {self.url}: the server says neither how long the file is nor what its hash is, so "
                "that a broken connection would not be noticed."
            )
        self.progress = self.progress or _progress(self.url, self.total)


def _receive(transfer, expected, attempts, delay):
    """Connects until the file is here, and right. Returns its SHA-256."""
    failures, furthest, refused = 0, 0, False
    while True:
        try:
            for block in transfer.connect():
                transfer.file.write(block)
                if transfer.progress:
                    transfer.progress.update(transfer.file.tell())
        except _BrokenError as error:
            reason = str(error)
        else:
            transfer.file.flush()
            digest = digest_of(transfer.file.name)
            wrong = _difference(digest, expected)
            if not wrong:
                return digest
            if refused:
                raise DownloadError(f"Refused {transfer.url} after two downloads: the file {wrong}.")
            # Bytes can be damaged on their way: once more from the beginning.
            refused, furthest = True, 0
            transfer.restart()
            continue
        # A connection that brought much is no failure, however often it breaks.
        failures = 1 if transfer.file.tell() >= furthest + BLOCK else failures + 1
        furthest = max(furthest, transfer.file.tell())
        if failures >= attempts:
            raise DownloadError(f"Cannot download {transfer.url}: {reason}, at the last of {attempts} attempts.")
        time.sleep(delay * 2 ** (failures - 1))


def _mark(response):
    """The mark of one state of a file: its strong ETag, or else its date."""
    tag = response.headers.get("ETag")
    return tag if tag and not tag.startswith("W/") else response.headers.get("Last-Modified")


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects to other http addresses, and from https to https alone."""

    def redirect_request(self, request, file, code, message, headers, new_url):
        safe = ("https://",) if request.full_url.lower().startswith("https://") else ("https://", "http://")
        if not new_url.lower().startswith(safe):
            raise DownloadError(f"Refused {request.full_url}: it leads to {new_url}, which is not {safe[0][:-3]}.")
        return super().redirect_request(request, file, code, message, headers, new_url)


def _opener():
    return urllib.request.build_opener(_Redirects)


def _progress(url, total):
    if not keras.config.is_interactive_logging_enabled():
        return None
    _say(f"Downloading {url}")
    # Outside a terminal or a notebook each update is a line of its own.
    moving = sys.stdout.isatty() or "ipykernel" in sys.modules
    return keras.utils.Progbar(total, interval=0.1 if moving else 10, unit_name="byte")


def _say(text):
    if keras.config.is_interactive_logging_enabled():
        print(text, flush=True)
