"""Brings a published file here whole and checked, or not at all."""

import contextlib
import errno
import hashlib
import os
import re
import secrets
import sys
import time
from pathlib import Path

import keras

from keras_vit.files import replacing
from keras_vit.weights.read.digest import sha256 as digest_of
from keras_vit.weights.read.file import check_is_no_stand_in

BLOCK = 1 << 20
# Answers after which the same request may still succeed; any other 4xx will not.
_PASSING = {408, 425, 429, 500, 502, 503, 504}


class DownloadError(OSError):
    """A file could not be had from its address. Nothing was left at its path."""


def download(url, path, *, sha256=None, sha256_prefix=None, pin=None, check=None, attempts=4, timeout=30.0, delay=0.5):
    """Downloads a file once, however many processes ask for it at the same time.

    It comes under a temporary name beside `path`, is checked against the length that the server announced and every
    hash that is known, and is then renamed. A broken or stalled connection is resumed where the server can resume, and
    starts again where it cannot. A second process waits for the first, and uses its file.

    Args:
        url: Address of the file, http or https.
        path: Path of the file; its folder must exist. A file that is there is checked, and not downloaded again.
        sha256: The file's SHA-256 in hexadecimal digits, or None where it is not known.
        sha256_prefix: The first digits of it, or None.
        pin: Path of a `sha256sum` file that remembers the hash of a file whose own was never published: written when
            the file first came, and checked ever after. None: `path` with ".sha256" added.
        check: Function of a path that raises ValueError for a file that cannot be the right one; called, before the
            file has its name, where no hash is known.
        attempts: Int, how many connections in a row may bring no further block before this gives up.
        timeout: Seconds of silence after which a connection counts as broken.
        delay: Seconds to wait after the first broken connection; the wait doubles with each that follows.

    Raises:
        DownloadError: If the file cannot be had, or is not the one that the hashes belong to.
        ValueError: If `url` is of another scheme, or a file is at `path` already and does not have those hashes.

    Example:

    >>> download("https://example.com/ViT-B_16.npz", "ViT-B_16.npz")  # doctest: +SKIP
    """
    path = Path(path)
    pin = path.with_name(f"{path.name}.sha256") if pin is None else Path(pin)
    if not url.lower().startswith(("https://", "http://")):
        raise ValueError(
            f"Invalid value received for argument `url`. Expected an http or https address. Received: {url!r}"
        )
    with _alone(path) as alone:
        if path.is_file():
            confirm(path, sha256=sha256, sha256_prefix=sha256_prefix, pin=pin)
            return
        expected = _expected(sha256, sha256_prefix, (pin,))
        if alone:
            # What a killed process left behind; nobody else can be writing it.
            for stale in path.parent.glob(f".{path.name}.*.part"):
                stale.unlink(missing_ok=True)
        temporary = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.part")
        try:
            with _writing(path), open(temporary, "xb") as file:
                transfer = _Transfer(url, file, timeout, bool(expected))
                _receive(transfer, expected, attempts, delay)
                file.flush()
                os.fsync(file.fileno())
            if check is not None and not expected:
                try:
                    check(temporary)
                except ValueError as error:
                    raise DownloadError(f"What {url} sent is not the file that was expected: {error}") from None
            with _writing(path):
                os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
        _remember(pin, transfer.sha256.hexdigest(), expected)


def confirm(path, *, sha256=None, sha256_prefix=None, pin=None):
    """Checks a file against every hash that is known of it, and pins its own if none was published in full.

    Args:
        path: Path of the file.
        sha256: The file's SHA-256 in hexadecimal digits, or None where it is not known.
        sha256_prefix: The first digits of it, or None.
        pin: Path of the `sha256sum` file to check and, where there is none, to write. None: `path` with ".sha256"
            added. One beside the file is checked in any case.

    Raises:
        ValueError: If the file is another one or only stands for one, or a pin cannot be read. Neither is touched.
    """
    path = Path(path)
    # Before it is pinned as what the file must be ever after.
    check_is_no_stand_in(path)
    beside = path.with_name(f"{path.name}.sha256")
    pin = beside if pin is None else Path(pin)
    expected = _expected(sha256, sha256_prefix, dict.fromkeys((pin, beside)))
    digest = digest_of(path)
    if wrong := _difference(digest, expected):
        raise ValueError(
            f"{str(path)!r} {wrong}. It is damaged, or another file than before. Delete it to download it anew."
        )
    _remember(pin, digest, expected)


def _expected(sha256, sha256_prefix, pins):
    """The digits that a SHA-256 must begin with, each with where they are from."""
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
            expected[f"pinned in {str(pin)!r} (which to delete if the new one is right)"] = found[0].decode().lower()
    return expected


def _difference(digest, expected):
    for origin, digits in expected.items():
        if not digest.startswith(digits):
            return f"has the SHA-256 {digest}, and {digits} is {origin}"
    return None


def _remember(pin, digest, expected):
    """Pins a hash of which only a part, or nothing, was known."""
    if digest in expected.values():
        return
    # Where nothing can be written nothing can be pinned, and the file is as good as before.
    with contextlib.suppress(OSError), replacing(pin) as temporary:
        temporary.write_text(f"{digest}  {pin.stem}\n")


@contextlib.contextmanager
def _writing(path):
    """Tells of a full disk, or a folder that may not be written, in terms of the file that was to be there."""
    try:
        yield
    except DownloadError:
        raise
    except OSError as error:
        full = " (the disk is full)" if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
        raise DownloadError(f"Cannot write {str(path)!r}{full}: {error}.") from None


@contextlib.contextmanager
def _alone(path):
    """Lets one process at a time go on for `path`, and gives whether it could see to that.

    The lock is the system's, on an empty file that stays: it ends with the process, however that ends.
    """
    with _writing(path):
        file = open(path.with_name(f".{path.name}.lock"), "ab")  # noqa: SIM115
    with file:
        yield _lock(file, path)


def _lock(file, path):
    try:
        import fcntl
    except ImportError:
        return _lock_windows(file)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        _say(f"Waiting for another process that downloads {path.name}.")
        fcntl.flock(file, fcntl.LOCK_EX)
    except OSError:
        # Some network folders have no locks. Each process then brings its own copy, under its own temporary name.
        return False
    return True


def _lock_windows(file):
    import msvcrt

    while True:
        try:
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
            return True
        except OSError:
            time.sleep(0.2)


class _BrokenError(Exception):
    """A connection ended too early, or gave what was not asked for."""


class _Transfer:
    """One file on its way: what has come, and the marks by which the rest is known to belong to it."""

    def __init__(self, url, file, timeout, checkable):
        self.url, self.file, self.timeout, self.checkable = url, file, timeout, checkable
        self.progress = None
        self.restart()

    def restart(self):
        """Forgets what has come."""
        self.file.seek(0)
        self.file.truncate()
        self.position, self.total, self.mark, self.announced_md5 = 0, None, None, None
        self.sha256, self.md5 = hashlib.sha256(), hashlib.md5(usedforsecurity=False)

    def connect(self):
        """Makes one connection and takes what it gives, to the end or to where it breaks."""
        import urllib.request

        # Some servers refuse Python's own name.
        headers = {"User-Agent": "keras-vit", "Accept-Encoding": "identity"}
        if self.position and not (self.mark or self.checkable):
            self.restart()
        if self.position:
            headers["Range"] = f"bytes={self.position}-"
            if self.mark:
                headers["If-Range"] = self.mark
        request = urllib.request.Request(self.url, headers=headers)
        with _opener().open(request, timeout=self.timeout) as response:
            self._begin(response)
            # read1 gives what has come; read would lose it if the connection broke before the block was full.
            while self.total is None or self.position < self.total:
                block = response.read1(BLOCK if self.total is None else min(BLOCK, self.total - self.position))
                if not block:
                    break
                self._keep(block)
        if self.total is not None and self.position < self.total:
            raise _BrokenError(f"the connection ended after {self.position:,} of {self.total:,} bytes")
        if not self.position:
            raise _BrokenError("the server sent nothing")

    def _begin(self, response):
        if response.status == 206:
            span = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", response.headers.get("Content-Range", "").strip())
            if (
                not span
                or int(span[1]) != self.position
                or _mark(response) not in (None, self.mark)
                or span[2] not in ("*", str(self.total))
            ):
                self.restart()
                raise _BrokenError("the server sent another part than the one that was missing")
            return
        if response.status != 200:
            raise _BrokenError(f"the server answered {response.status}")
        if response.headers.get_content_type() == "text/html":
            raise DownloadError(f"Cannot download {self.url}: a web page came in place of the file.")
        self.restart()
        self.mark = _mark(response)
        length = response.headers.get("Content-Length", "")
        self.total = int(length) if length.isdecimal() else None
        hashes = ",".join(response.headers.get_all("x-goog-hash", []))
        self.announced_md5 = next(iter(re.findall(r"md5=([A-Za-z0-9+/=]+)", hashes)), None)
        if self.total is None and not (response.chunked or self.checkable or self.announced_md5):
            raise DownloadError(
                f"Cannot download {self.url}: the server says neither how long the file is nor what its hash is, so "
                "that a broken connection would go unseen."
            )
        self.progress = self.progress or _progress(self.url, self.total)

    def _keep(self, block):
        with _writing(self.file.name):
            self.file.write(block)
        self.position += len(block)
        self.sha256.update(block)
        self.md5.update(block)
        if self.progress:
            self.progress.update(self.position)

    def wrong(self, expected):
        """What is wrong with the whole file, or None."""
        import base64

        md5 = base64.b64encode(self.md5.digest()).decode()
        if self.announced_md5 not in (None, md5):
            return f"has the MD5 {md5}, and its server announced {self.announced_md5}"
        return _difference(self.sha256.hexdigest(), expected)


def _receive(transfer, expected, attempts, delay):
    """Connects until the file is here, and right."""
    import http.client
    import urllib.error

    failures, furthest, wrong = 0, 0, None
    while True:
        try:
            transfer.connect()
        except DownloadError:
            raise
        except urllib.error.HTTPError as error:
            error.close()
            reason = f"the server answered {error.code} {error.reason}"
            if error.code == 416:
                # What has come is no part of what is there now.
                transfer.restart()
            elif error.code not in _PASSING:
                raise DownloadError(f"Cannot download {transfer.url}: {reason}.") from None
        except (OSError, http.client.HTTPException, _BrokenError) as error:
            reason = str(getattr(error, "reason", error)) or type(error).__name__
        else:
            before, wrong = wrong, transfer.wrong(expected)
            if not wrong:
                return
            if before:
                raise DownloadError(f"Refused {transfer.url}, twice: what came {wrong}.")
            # Once more from the beginning: bytes can be damaged on their way.
            transfer.restart()
            furthest = 0
            continue
        # A connection that brought a good deal further is no failure, however often it breaks.
        failures = 1 if transfer.position >= furthest + BLOCK else failures + 1
        furthest = max(furthest, transfer.position)
        if failures >= attempts:
            raise DownloadError(f"Cannot download {transfer.url}: {reason}, at the last of {attempts} attempts.")
        time.sleep(delay * 2 ** (failures - 1))


def _mark(response):
    """By what a server knows one state of a file: its strong ETag, or else its date."""
    tag = response.headers.get("ETag")
    return tag if tag and not tag.startswith("W/") else response.headers.get("Last-Modified")


def _opener():
    import urllib.request

    class Redirects(urllib.request.HTTPRedirectHandler):
        def redirect_request(self, request, file, code, message, headers, new_url):
            safe = ("https://",) if request.full_url.lower().startswith("https://") else ("https://", "http://")
            if not new_url.lower().startswith(safe):
                raise DownloadError(f"Refused {request.full_url}: it leads to {new_url}, which is not {safe[0][:-3]}.")
            return super().redirect_request(request, file, code, message, headers, new_url)

    return urllib.request.build_opener(Redirects)


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
