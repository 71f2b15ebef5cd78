import errno
import functools
import hashlib
import multiprocessing
import os
import sys
import traceback
import urllib.request
from concurrent import futures

import keras
import pytest

from keras_vit import console as progress
from keras_vit.weights import download as module
from keras_vit.weights.download import DownloadError, confirm
from tests.errors import not_found, refuses
from tests.weights.read.damage import flipped
from tests.weights.servers import Answer, Server, running

download = functools.partial(module.download, timeout=0.3, delay=0.01)


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with running(Server) as server:
        yield server


@pytest.fixture
def path(tmp_path):
    return tmp_path / "weights.npz"


def sha256(body):
    return hashlib.sha256(body).hexdigest()


def pin_of(path):
    return path.with_name(f"{path.name}.sha256")


def check_whole(server, path):
    """Checks that the folder contains the right file, its hash and the lock only."""
    assert path.read_bytes() == server.body
    assert pin_of(path).read_text() == f"{sha256(server.body)}  weights.npz\n"
    assert {p.name for p in path.parent.iterdir()} == {path.name, pin_of(path).name, f".{path.name}.lock"}


def check_not_downloaded(message, url, path, error=DownloadError, **options):
    """Checks that a download raises an error with this message and leaves the lock at most. Returns the error."""
    with pytest.raises(error, match=message) as caught:
        download(url, path, **options)
    assert {p.name for p in path.parent.iterdir()} <= {f".{path.name}.lock"}
    return caught.value


@pytest.mark.parametrize("marks", [{}, {"ETag": None, "Last-Modified": "Mon, 01 Jan 2024 00:00:00 GMT"}])
def test_dropped_or_stalled_connection_is_resumed(server, path, marks):
    server.etag = marks.get("Last-Modified", server.etag)
    stalled = Answer(stop=50_000, stall=0 if marks else 1, headers=marks)
    server.answers = [stalled, Answer(stop=70_000, headers=marks), Answer(headers=marks)]
    download(server.url, path)
    check_whole(server, path)
    assert [r.get("Range") for r in server.requests] == [None, "bytes=50000-", "bytes=120000-"]
    assert [r.get("If-Range") for r in server.requests] == [None, server.etag, server.etag]
    assert server.sent == len(server.body)


@pytest.mark.parametrize(
    "second, requests",
    [
        (Answer(ranges=False), 2),
        (Answer(ranges=False, headers={"ETag": '"2"'}), 2),
        (Answer(status=416, body=b""), 3),
        (Answer(shift=1), 3),
        (Answer(headers={"ETag": '"2"'}, body=bytes(200_000)), 3),
        (Answer(headers={"Content-Range": "nonsense"}, status=206), 3),
    ],
    ids=["whole", "changed", "416", "wrong part", "another file", "no part"],
)
def test_download_that_cannot_resume_starts_again(server, path, second, requests):
    server.answers = [Answer(stop=50_000), second, Answer()]
    download(server.url, path)
    check_whole(server, path)
    assert [r.get("Range") for r in server.requests] == [None, "bytes=50000-", None][:requests]


def test_resume_without_strong_etag_needs_date(server, path):
    nameless = {"ETag": None}
    server.answers = [Answer(stop=50_000, headers=nameless), Answer(headers=nameless)]
    download(server.url, path)
    check_whole(server, path)
    assert "Range" not in server.requests[1]
    path.unlink()
    server.answers = [Answer(stop=50_000, headers=nameless), Answer(headers={"ETag": 'W/"1"'})]
    server.etag = None
    download(server.url, path)
    check_whole(server, path)
    assert server.requests[3]["Range"] == "bytes=50000-"
    assert "If-Range" not in server.requests[3]


@pytest.mark.parametrize(
    "answer, reason",
    [
        (Answer(stop=50_000, ranges=False), "ended after 50,000 of 200,000 bytes"),
        (Answer(length=300_000, ranges=False), "ended after 200,000 of 300,000 bytes"),
        (Answer(stop=0, stall=0.2), "timed out"),
        (Answer(status=500), "500"),
        (Answer(length=0), "sent nothing"),
    ],
    ids=["drops", "truncates", "stalls", "500", "empty"],
)
def test_persistent_failure_raises_after_attempts(server, path, answer, reason):
    server.answers = [answer]
    error = check_not_downloaded(reason, server.url, path, attempts=3, timeout=0.1)
    assert server.url in str(error) and "3 attempts" in str(error)
    assert len(server.requests) == 3


def test_progress_resets_attempts(server, path, monkeypatch):
    monkeypatch.setattr(module, "BLOCK", 10_000)
    server.answers = [Answer(stop=20_000) for _ in range(9)] + [Answer()]
    download(server.url, path, attempts=2)
    check_whole(server, path)
    assert len(server.requests) == 10


@pytest.mark.parametrize("status", [500, 503, 429, 408])
def test_temporary_error_is_tried_again(server, path, status):
    server.answers = [Answer(status=status), Answer()]
    download(server.url, path)
    check_whole(server, path)


@pytest.mark.parametrize(
    "answer, message",
    [
        *((Answer(status=status), f": the server answered {status}") for status in (404, 403, 410)),
        (
            Answer(body=b"<html>Please log in</html>", headers={"Content-Type": "text/html; charset=utf-8"}),
            ": the server sent a web page instead of the file",
        ),
        (Answer(length=False), "neither how long the file is nor what its hash is"),
    ],
    ids=["404", "403", "410", "web page", "unknown length"],
)
def test_lasting_error_is_not_tried_again(server, path, answer, message):
    server.answers = [answer]
    error = check_not_downloaded(message, server.url, path)
    assert len(server.requests) == 1 and server.url in str(error)
    assert "".join(traceback.format_exception(error)).count("Traceback") == 1


@pytest.mark.parametrize("what", ["sha256", "sha256_prefix"])
def test_damaged_download_is_repeated_once(server, path, what):
    digits = sha256(server.body)
    arguments = {"sha256": digits.upper()} if what == "sha256" else {"sha256_prefix": digits[:8]}
    server.answers = [Answer(body=flipped(server.body, 100, 0))]
    check_not_downloaded(f"Refused {server.url} after two downloads: the file has the", server.url, path, **arguments)
    assert len(server.requests) == 2
    server.answers += [Answer()]
    download(server.url, path, **arguments)
    assert path.read_bytes() == server.body
    assert len(server.requests) == 4
    # A hash that is known in full needs no pin.
    assert pin_of(path).exists() == (what != "sha256")


def test_wrong_or_unknown_length_is_checked_by_hash(server, path):
    server.answers = [Answer(length=150_000)]
    check_not_downloaded("Refused", server.url, path, sha256=sha256(server.body))
    server.answers = [Answer(length=False)]
    download(server.url, path, sha256_prefix=sha256(server.body)[:8])
    check_whole(server, path)


@pytest.mark.parametrize("length", [None, False])
def test_too_large_file_is_refused_early(server, path, length):
    server.body, server.answers = bytes(5 << 20), [Answer(length=length)]
    check_not_downloaded("larger than 1,000,000 bytes", server.url, path, sha256_prefix="00", most=1_000_000)
    assert len(server.requests) == 1
    download(server.url, path, sha256_prefix=sha256(server.body)[:8], most=5 << 20)


@pytest.mark.long
def test_too_slow_server_is_refused(server, path):
    server.body, server.answers = bytes(40_000), [Answer(pause=0.5), Answer()]
    check_not_downloaded("fewer than 10,000 bytes per second", server.url, path, attempts=1, timeout=1)
    download(server.url, path)
    check_whole(server, path)


@pytest.mark.skipif(not hasattr(os, "O_NOFOLLOW"), reason="Windows cannot refuse links")
def test_symlink_as_lock_is_refused(server, path):
    path.with_name(f".{path.name}.lock").symlink_to(path.parent / "victim")
    check_not_downloaded("lock", server.url, path, OSError)
    assert not server.requests


def test_redirect_is_followed_only_to_safe_schemes(server, path):
    moved = Answer(status=302, headers={"Location": server.url})
    server.answers = [moved, Answer()]
    download(server.url, path)
    check_whole(server, path)
    path.unlink()
    for place in ("file:///etc/hostname", "ftp://127.0.0.1/weights.npz", "data:,weights"):
        server.answers = [Answer(status=302, headers={"Location": place})]
        refuses(place, download, server.url, path, error=DownloadError)
        assert not path.exists()
    redirects = next(h for h in module._opener().handlers if isinstance(h, urllib.request.HTTPRedirectHandler))
    request = urllib.request.Request("https://example.com/a")
    with pytest.raises(DownloadError, match="leads to http://example.com/b, which is not https"):
        redirects.redirect_request(request, None, 302, "Found", {}, "http://example.com/b")
    assert redirects.redirect_request(request, None, 302, "Found", {}, "https://example.com/b").type == "https"


@pytest.mark.parametrize("url", ["file:///etc/hostname", "ftp://127.0.0.1/a", "weights.npz"])
def test_other_schemes_and_missing_folder_are_refused(path, url):
    check_not_downloaded("`url`. Expected an http or https address. Received: ", url, path, ValueError)
    not_found("nowhere", download, "http://127.0.0.1:9/weights.npz", path.parent / "nowhere" / "weights.npz")


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such limit")
def test_failed_write_names_file_and_leaves_nothing(server, path):
    import resource

    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        check_not_downloaded("Cannot write.*weights.npz", server.url, path, OSError)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    "error, expected, message",
    [
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), OSError, "no space left on device.*weights.npz"),
        (KeyboardInterrupt(), KeyboardInterrupt, ""),
    ],
)
def test_interrupted_write_leaves_nothing(server, path, monkeypatch, error, expected, message):
    def fail(*_):
        raise error

    monkeypatch.setattr(os, "fsync", fail)
    check_not_downloaded(message, server.url, path, expected)


def test_existing_file_is_pinned_and_checked(server, path):
    path.write_bytes(server.body)
    download(server.url, path)
    check_whole(server, path)
    download(server.url, path)
    path.write_bytes(flipped(server.body, 100, 0))
    refuses("is pinned in .*Delete it to download it again", download, server.url, path)
    assert path.read_bytes() == flipped(server.body, 100, 0)
    assert not server.requests


def test_file_changed_at_source_is_refused(server, path):
    download(server.url, path)
    path.unlink()
    pinned = pin_of(path).read_text()
    server.body = flipped(server.body, 100, 0)
    with pytest.raises(DownloadError, match="weights.npz.sha256' .delete that file if the new hash is right"):
        download(server.url, path)
    assert not path.exists() and pin_of(path).read_text() == pinned
    pin_of(path).unlink()
    download(server.url, path)
    check_whole(server, path)


def test_pin_goes_to_given_folder_if_it_is_writable(server, path):
    path.write_bytes(server.body)
    confirm(path, pin=path.parent / "nowhere" / "weights.npz.sha256")
    with pytest.raises(ValueError, match="and 00000000 is in its published name"):
        confirm(path, sha256_prefix="00000000", pin=path.parent / "nowhere" / "weights.npz.sha256")
    assert list(path.parent.iterdir()) == [path]
    cache = path.parent / "cache"
    cache.mkdir()
    confirm(path, pin=cache / "weights.npz.sha256")
    assert not pin_of(path).exists()
    path.write_bytes(flipped(server.body, 100, 0))
    refuses("cache", confirm, path, pin=cache / "weights.npz.sha256")


@pytest.mark.parametrize("text", ["", "abc  weights.npz\n", "g" * 64, "a" * 65])
def test_invalid_pin_is_refused(server, path, text):
    pin_of(path).write_text(text)
    refuses("weights.npz.sha256'.*does not give one SHA-256", download, server.url, path)
    assert not path.exists() and not server.requests


def test_draft_of_killed_process_is_removed(server, path):
    (path.parent / f".{path.name}.abc.draft").mkdir()
    (path.parent / f".{path.name}.abc.draft" / path.name).write_bytes(b"half")
    path.with_name(f".{path.name}.lock").touch()
    download(server.url, path)
    check_whole(server, path)


def test_download_works_without_file_locks(server, path, monkeypatch):
    fcntl = pytest.importorskip("fcntl")

    def flock(*_):
        raise OSError(errno.ENOLCK, "no locks")

    monkeypatch.setattr(fcntl, "flock", flock)
    other = path.parent / f".{path.name}.abc.draft"
    other.mkdir()
    download(server.url, path)
    assert path.read_bytes() == server.body
    # Without locks, the process that owns this draft may still be running.
    assert other.exists()


def test_progress_follows_keras_logging(server, path, capsys, monkeypatch):
    monkeypatch.setattr(progress, "DELAY", 0)
    server.body, server.answers = bytes(5_000_000), [Answer(stop=2_000_000), Answer()]
    keras.config.enable_interactive_logging()
    download(server.url, path, delay=0.01)
    shown = capsys.readouterr().out
    assert f"Downloading {server.url}" in shown and "5/5" in shown and "MB/s: " in shown
    path.unlink()
    keras.config.disable_interactive_logging()
    try:
        download(server.url, path)
    finally:
        keras.config.enable_interactive_logging()
    assert not capsys.readouterr().out


PROCESSES = functools.partial(futures.ProcessPoolExecutor, mp_context=multiprocessing.get_context("fork"))


@pytest.mark.parametrize("pool", [futures.ThreadPoolExecutor, PROCESSES], ids=["threads", "processes"])
def test_two_downloads_at_once_make_one_request(server, path, pool):
    server.answers = [Answer(pause=0.01)]
    with pool(max_workers=2) as workers:
        list(workers.map(download, [server.url] * 2, [path] * 2))
    check_whole(server, path)
    assert len(server.requests) == 1
