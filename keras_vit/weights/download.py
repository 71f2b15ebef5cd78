"""Downloads published files, completely and verified, or not at all."""

import contextlib
import http.client
import os
import re
import time
import urllib.error
import urllib.request
from pathlib import Path

import keras

from keras_vit import arguments
from keras_vit.console import MEGABYTE, Progress
from keras_vit.files import replacing
from keras_vit.weights.read.file import check_is_no_stand_in, digest_in
from keras_vit.weights.read.file import sha256 as digest_of

try:
    import fcntl
except ImportError:
    fcntl = None

BLOCK = 1 << 20
# Bytes per second, on average over the time that a connection may be silent.
SLOWEST = 10_000
# Statuses after which a retry may succeed.
_PASSING = {408, 425, 429, 500, 502, 503, 504}


class DownloadError(OSError):
    """A download failed; nothing was left at its path."""


class _BrokenError(Exception):
    """A connection ended early or sent other data than requested."""


def download(
    url, path, *, sha256=None, sha256_prefix=None, pin=None, check=None, most=None, attempts=4, timeout=30.0, delay=0.5
):
    """Downloads a file over http or https, once for all processes that request it at the same time.

    It is checked against its announced length and all known hashes (see `confirm`), or without any by `check(path)`,
    and refused beyond `most` bytes. A connection that breaks, or is silent or slow for `timeout` seconds, is resumed or
    restarted, up to `attempts` times in a row without much progress; waits double from `delay` seconds.
    """
    if not url.lower().startswith(("https://", "http://")):
        raise arguments.invalid("url", "an http or https address", url)
    path = Path(path)
    pin = path.with_name(f"{path.name}.sha256") if pin is None else Path(pin)
    with _locked(path):
        if path.is_file():
            confirm(path, sha256=sha256, sha256_prefix=sha256_prefix, pin=pin, check=check)
            return
        expected = _expected(sha256, sha256_prefix, pin)
        with replacing(path) as temporary:
            _say(f"Downloading {url}")
            with open(temporary, "xb") as file, Progress(None, "MB", "MB") as progress:
                transfer = _Transfer(url, file, progress, timeout, bool(expected), most)
                digest = _receive(transfer, expected, attempts, delay)
                os.fsync(file.fileno())
            if check is not None and not expected:
                try:
                    check(temporary)
                except ValueError as error:
                    raise DownloadError(f"{url} is not the file that was expected: {error}") from None
        _remember(pin, digest, expected)


def confirm(path, *, sha256=None, sha256_prefix=None, pin, check=None):
    """Raises ValueError unless a file has every known SHA-256, or the known first digits of one, or none is known.

    `pin` is a `sha256sum` file that keeps the hash of the first use if none was published in full. Before that,
    `check(path)` may raise.
    """
    # Before its hash is pinned.
    check_is_no_stand_in(path)
    expected, digest = _expected(sha256, sha256_prefix, Path(pin)), digest_of(path)
    if wrong := _difference(digest, expected):
        raise ValueError(
            f"{str(path)!r} {wrong}. It is damaged, or another file than before. Delete it to download it again."
        )
    if check is not None and not expected:
        check(path)
    _remember(Path(pin), digest, expected)


def _expected(sha256, sha256_prefix, pin):
    """Returns {origin: digits that the SHA-256 must start with}."""
    origin = f"pinned in {str(pin)!r} (delete that file if the new hash is right)"
    known = {"published for it": sha256, "in its published name": sha256_prefix, origin: digest_in(pin, pin.stem)}
    return {origin: digits.lower() for origin, digits in known.items() if digits}


def _difference(digest, expected):
    wrong = [f"{digits} is {origin}" for origin, digits in expected.items() if not digest.startswith(digits)]
    return f"has the SHA-256 {digest}, and {wrong[0]}" if wrong else None


def _remember(pin, digest, expected):
    """Pins a hash that was not known in full, if the folder is writable."""
    if digest not in expected.values():
        with contextlib.suppress(OSError), replacing(pin) as temporary:
            temporary.write_text(f"{digest}  {pin.stem}\n")


def _locked(path):
    """Opens a lock file, which one process at a time holds until it closes it or ends."""
    # Neither follows a link that another user planted, nor waits for a pipe.
    flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
    file = open(os.open(path.with_name(f".{path.name}.lock"), flags, 0o666), "r+b", buffering=0)  # noqa: SIM115
    # Windows and some network folders have no such locks; there each process downloads its own copy.
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
    """A download in progress, with the mark that identifies the file when it is resumed."""

    def __init__(self, url, file, progress, timeout, checkable, most):
        self.url, self.file, self.progress = url, file, progress
        self.timeout, self.checkable, self.most = timeout, checkable, most
        self.restart()

    def restart(self):
        self.file.seek(0)
        self.file.truncate()
        self.total, self.mark = None, None

    def connect(self):
        """Yields the blocks of one connection, starting at the file's end; raises _BrokenError if it breaks."""
        if not (self.mark or self.checkable):
            self.restart()
        # Some servers refuse Python's default User-Agent.
        headers = {"User-Agent": "keras-vit", "Accept-Encoding": "identity"}
        if self.file.tell():
            headers |= {"Range": f"bytes={self.file.tell()}-", **({"If-Range": self.mark} if self.mark else {})}
        try:
            request = urllib.request.Request(self.url, headers=headers)
            with _opener().open(request, timeout=self.timeout) as response:
                self._begin(response)
                start, size = time.monotonic(), self.file.tell()
                # Unlike `read`, `read1` returns what arrived before a connection breaks.
                while block := response.read1(BLOCK):
                    yield block
                    self._check_size(self.file.tell())
                    seconds = time.monotonic() - start
                    if seconds > self.timeout:
                        if self.file.tell() - size < seconds * SLOWEST:
                            raise _BrokenError(f"it sends fewer than {SLOWEST:,} bytes per second")
                        start, size = time.monotonic(), self.file.tell()
        except DownloadError:
            raise
        except urllib.error.HTTPError as error:
            error.close()
            reason = f"the server answered {error.code} {error.reason}"
            if error.code == 416:
                # The file on the server has changed and has no such range.
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

    def _check_size(self, size):
        if self.most is not None and size is not None and size > self.most:
            raise DownloadError(f"Refused {self.url}: it is larger than {self.most:,} bytes, and cannot be the file.")

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
        self._check_size(self.total)
        if self.total is None and not (response.chunked or self.checkable):
            raise DownloadError(
                f"Cannot download {self.url}: the server says neither how long the file is nor what its hash is, so "
                "that a broken connection would not be noticed."
            )
        self.progress.bar.target = self.total and self.total / MEGABYTE


def _receive(transfer, expected, attempts, delay):
    """Connects until the file is complete and correct; returns its SHA-256."""
    failures, furthest, refused = 0, 0, False
    while True:
        try:
            for block in transfer.connect():
                transfer.file.write(block)
                transfer.progress.update(transfer.file.tell() / MEGABYTE)
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
            # Bytes can be corrupted in transit: download it once more.
            refused, furthest = True, 0
            transfer.restart()
            continue
        # A connection that made progress resets the count.
        failures = 1 if transfer.file.tell() >= furthest + BLOCK else failures + 1
        furthest = max(furthest, transfer.file.tell())
        if failures >= attempts:
            raise DownloadError(f"Cannot download {transfer.url}: {reason}, at the last of {attempts} attempts.")
        time.sleep(delay * 2 ** (failures - 1))


def _mark(response):
    """Returns the strong ETag of a response, or else its Last-Modified date."""
    tag = response.headers.get("ETag")
    return tag if tag and not tag.startswith("W/") else response.headers.get("Last-Modified")


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects to http and https, but never from https to http."""

    def redirect_request(self, request, file, code, message, headers, new_url):
        safe = ("https://",) if request.full_url.lower().startswith("https://") else ("https://", "http://")
        if not new_url.lower().startswith(safe):
            raise DownloadError(f"Refused {request.full_url}: it leads to {new_url}, which is not {safe[0][:-3]}.")
        return super().redirect_request(request, file, code, message, headers, new_url)


def _opener():
    return urllib.request.build_opener(_Redirects)


def _say(text):
    if keras.config.is_interactive_logging_enabled():
        print(text, flush=True)
