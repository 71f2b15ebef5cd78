import errno
import functools
import hashlib
import os
import signal
import socket
import subprocess
import sys
import time
import traceback
import urllib.request
from pathlib import Path

import keras
import pytest

from keras_vit import progress
from keras_vit.weights import download as module
from keras_vit.weights.download import DownloadError, confirm
from tests.weights.http_server import Answer, running

# As patient as the tests can be.
download = functools.partial(module.download, timeout=0.3, delay=0.01)


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with running() as server:
        yield server


@pytest.fixture
def path(tmp_path):
    return tmp_path / "weights.npz"


def sha256(body):
    return hashlib.sha256(body).hexdigest()


def pin_of(path):
    return path.with_name(f"{path.name}.sha256")


def check_whole(server, path):
    """The right file is there, with its hash, and nothing else but the lock."""
    assert path.read_bytes() == server.body
    assert pin_of(path).read_text() == f"{sha256(server.body)}  weights.npz\n"
    assert {p.name for p in path.parent.iterdir()} == {path.name, pin_of(path).name, f".{path.name}.lock"}


def check_nothing(path):
    assert {p.name for p in path.parent.iterdir()} <= {f".{path.name}.lock"}


def test_a_good_server(server, path):
    download(server.url, path)
    check_whole(server, path)
    assert len(server.requests) == 1


@pytest.mark.parametrize("marks", [{}, {"ETag": None, "Last-Modified": "Mon, 01 Jan 2024 00:00:00 GMT"}])
def test_a_dropped_connection_is_resumed(server, path, marks):
    server.etag = marks.get("Last-Modified", server.etag)
    server.answers = [Answer(stop=50_000, headers=marks), Answer(stop=70_000, headers=marks), Answer(headers=marks)]
    download(server.url, path)
    check_whole(server, path)
    assert [r.get("Range") for r in server.requests] == [None, "bytes=50000-", "bytes=120000-"]
    assert [r.get("If-Range") for r in server.requests] == [None, server.etag, server.etag]
    assert server.sent == len(server.body)


@pytest.mark.parametrize(
    "second",
    [
        Answer(ranges=False),
        Answer(status=416, body=b""),
        Answer(shift=1),
        Answer(headers={"ETag": '"2"'}, body=bytes(200_000)),
        Answer(headers={"Content-Range": "nonsense"}, status=206),
    ],
    ids=["whole", "416", "wrong part", "another file", "no part"],
)
def test_it_starts_again_where_it_cannot_go_on(server, path, second):
    server.answers = [Answer(stop=50_000), second, Answer()]
    download(server.url, path)
    check_whole(server, path)


def test_a_part_that_is_not_there_is_not_asked_for_again(server, path):
    server.answers = [Answer(stop=50_000), Answer(status=416), Answer()]
    download(server.url, path)
    assert [r.get("Range") for r in server.requests] == [None, "bytes=50000-", None]


def test_a_file_that_changed_meanwhile_is_not_mixed(server, path):
    old = bytes(len(server.body))
    server.answers = [Answer(stop=50_000, body=old, headers={"ETag": '"0"'}), Answer()]
    download(server.url, path)
    check_whole(server, path)
    assert server.requests[1]["If-Range"] == '"0"'


def test_without_a_mark_or_a_hash_nothing_is_resumed(server, path):
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


def test_a_stalled_connection_is_resumed(server, path):
    server.answers = [Answer(stop=50_000, stall=1), Answer()]
    download(server.url, path)
    check_whole(server, path)
    assert server.requests[1]["Range"] == "bytes=50000-"


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
def test_a_server_that_stays_broken_ends_in_an_error(server, path, answer, reason):
    server.answers = [answer]
    with pytest.raises(DownloadError, match=reason) as error:
        download(server.url, path, attempts=3, timeout=0.1)
    assert server.url in str(error.value) and "3 attempts" in str(error.value)
    assert len(server.requests) == 3
    check_nothing(path)


def test_a_connection_that_brings_much_is_no_failure(server, path, monkeypatch):
    monkeypatch.setattr(module, "BLOCK", 10_000)
    server.answers = [Answer(stop=20_000) for _ in range(9)] + [Answer()]
    download(server.url, path, attempts=2)
    check_whole(server, path)
    assert len(server.requests) == 10


@pytest.mark.parametrize("status", [500, 503, 429, 408])
def test_a_passing_error_is_tried_again(server, path, status):
    server.answers = [Answer(status=status), Answer()]
    download(server.url, path)
    check_whole(server, path)


@pytest.mark.parametrize("status", [404, 403, 410])
def test_a_lasting_error_is_not_tried_again(server, path, status):
    server.answers = [Answer(status=status)]
    with pytest.raises(DownloadError, match=f"{server.url}: the server answered {status}") as error:
        download(server.url, path)
    assert len(server.requests) == 1
    assert "".join(traceback.format_exception(error.value)).count("Traceback") == 1
    check_nothing(path)


def damaged(body):
    return body[:100] + bytes([body[100] ^ 1]) + body[101:]


def known(server, what):
    digits = sha256(server.body)
    return {"sha256": digits.upper()} if what == "sha256" else {"sha256_prefix": digits[:8]}


@pytest.mark.parametrize("what", ["sha256", "sha256_prefix"])
def test_damage_on_the_way_is_seen_and_the_file_had_anew(server, path, what):
    arguments = known(server, what)
    server.answers = [Answer(body=damaged(server.body)), Answer()]
    download(server.url, path, **arguments)
    assert path.read_bytes() == server.body
    assert len(server.requests) == 2
    # A hash that is known in full needs no pin.
    assert pin_of(path).exists() == (what != "sha256")


@pytest.mark.parametrize("what", ["sha256", "sha256_prefix"])
def test_a_file_that_stays_damaged_is_refused(server, path, what):
    arguments = known(server, what)
    server.answers = [Answer(body=damaged(server.body))]
    with pytest.raises(DownloadError, match=f"Refused {server.url} after two downloads: the file has the"):
        download(server.url, path, **arguments)
    assert len(server.requests) == 2
    check_nothing(path)


def test_a_length_that_is_too_short(server, path):
    server.answers = [Answer(length=150_000)]
    with pytest.raises(DownloadError, match="Refused"):
        download(server.url, path, sha256=sha256(server.body))
    check_nothing(path)


def test_a_file_of_unknown_length_needs_a_hash(server, path):
    server.answers = [Answer(length=False)]
    with pytest.raises(DownloadError, match="neither how long the file is nor what its hash is"):
        download(server.url, path)
    check_nothing(path)
    download(server.url, path, sha256_prefix=sha256(server.body)[:8])
    check_whole(server, path)


def test_a_web_page_is_no_file(server, path):
    server.answers = [Answer(body=b"<html>Please log in</html>", headers={"Content-Type": "text/html; charset=utf-8"})]
    with pytest.raises(DownloadError, match="the server sent a web page instead of the file"):
        download(server.url, path)
    check_nothing(path)


@pytest.mark.parametrize("length", [None, False])
def test_a_file_that_is_too_large_is_refused_before_the_disk_is_full(server, path, length):
    server.body, server.answers = bytes(5 << 20), [Answer(length=length)]
    with pytest.raises(DownloadError, match="larger than 1,000,000 bytes"):
        download(server.url, path, sha256_prefix="00", most=1_000_000)
    assert len(server.requests) == 1
    check_nothing(path)
    download(server.url, path, sha256_prefix=sha256(server.body)[:8], most=5 << 20)


@pytest.mark.long
def test_a_server_that_is_too_slow_is_left(server, path):
    server.body, server.answers = bytes(40_000), [Answer(pause=0.5), Answer()]
    with pytest.raises(DownloadError, match="fewer than 10,000 bytes per second"):
        download(server.url, path, attempts=1, timeout=1)
    check_nothing(path)
    download(server.url, path)
    check_whole(server, path)


@pytest.mark.skipif(not hasattr(os, "O_NOFOLLOW"), reason="Windows cannot refuse links")
def test_a_lock_that_leads_elsewhere_is_refused(server, path):
    path.with_name(f".{path.name}.lock").symlink_to(path.parent / "victim")
    with pytest.raises(OSError, match="lock"):
        download(server.url, path)
    assert not (path.parent / "victim").exists() and not server.requests


def test_no_connection(path):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}/weights.npz"
        with pytest.raises(DownloadError, match="refused"):
            download(url, path)
    check_nothing(path)


def test_redirects(server, path):
    moved = Answer(status=302, headers={"Location": server.url})
    server.answers = [moved, Answer()]
    download(server.url, path)
    check_whole(server, path)
    path.unlink()
    for place in ("file:///etc/hostname", "ftp://127.0.0.1/weights.npz", "data:,weights"):
        server.answers = [Answer(status=302, headers={"Location": place})]
        with pytest.raises(DownloadError, match=place):
            download(server.url, path)
        assert not path.exists()


def test_a_redirect_from_https_to_http_is_refused():
    redirects = next(h for h in module._opener().handlers if isinstance(h, urllib.request.HTTPRedirectHandler))
    request = urllib.request.Request("https://example.com/a")
    with pytest.raises(DownloadError, match="leads to http://example.com/b, which is not https"):
        redirects.redirect_request(request, None, 302, "Found", {}, "http://example.com/b")
    assert redirects.redirect_request(request, None, 302, "Found", {}, "https://example.com/b").type == "https"


@pytest.mark.parametrize("url", ["file:///etc/hostname", "ftp://127.0.0.1/a", "weights.npz"])
def test_other_schemes_are_refused(path, url):
    with pytest.raises(ValueError, match="`url`. Expected an http or https address. Received: "):
        download(url, path)
    check_nothing(path)


def test_no_folder(server, path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        download(server.url, path.parent / "nowhere" / "weights.npz")
    assert not server.requests


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such limit")
def test_a_disk_that_takes_no_more(server, path):
    import resource

    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        with pytest.raises(OSError, match="Cannot write.*weights.npz"):
            download(server.url, path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    check_nothing(path)
    assert len(server.requests) == 1


def test_a_full_disk_is_called_one(server, path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="no space left on device.*weights.npz"):
        download(server.url, path)
    check_nothing(path)


def test_an_interrupt_leaves_nothing(server, path, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        download(server.url, path)
    check_nothing(path)


def test_a_file_that_is_there_is_pinned_and_checked(server, path):
    path.write_bytes(server.body)
    download(server.url, path)
    check_whole(server, path)
    download(server.url, path)
    path.write_bytes(damaged(server.body))
    with pytest.raises(ValueError, match="is pinned in .*Delete it to download it again"):
        download(server.url, path)
    assert path.read_bytes() == damaged(server.body)
    assert not server.requests


def test_a_file_that_changed_at_its_source_is_refused(server, path):
    download(server.url, path)
    path.unlink()
    pinned = pin_of(path).read_text()
    server.body = damaged(server.body)
    with pytest.raises(DownloadError, match="weights.npz.sha256' .delete that file if the new hash is right"):
        download(server.url, path)
    assert not path.exists() and pin_of(path).read_text() == pinned
    pin_of(path).unlink()
    download(server.url, path)
    check_whole(server, path)


def test_a_pin_of_another_folder(server, path):
    path.write_bytes(server.body)
    cache = path.parent / "cache"
    cache.mkdir()
    confirm(path, pin=cache / "weights.npz.sha256")
    assert not pin_of(path).exists()
    path.write_bytes(damaged(server.body))
    with pytest.raises(ValueError, match="cache"):
        confirm(path, pin=cache / "weights.npz.sha256")


def test_where_nothing_can_be_written_nothing_is_pinned(server, path):
    path.write_bytes(server.body)
    confirm(path, pin=path.parent / "nowhere" / "weights.npz.sha256")
    with pytest.raises(ValueError, match="and 00000000 is in its published name"):
        confirm(path, sha256_prefix="00000000", pin=path.parent / "nowhere" / "weights.npz.sha256")
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("text", ["", "abc  weights.npz\n", "g" * 64, "a" * 65])
def test_a_pin_that_is_none(server, path, text):
    pin_of(path).write_text(text)
    with pytest.raises(ValueError, match="weights.npz.sha256'.*does not give one SHA-256"):
        download(server.url, path)
    assert not path.exists() and not server.requests


def test_what_a_killed_process_left_is_swept_up(server, path):
    (path.parent / f".{path.name}.abc.draft").mkdir()
    (path.parent / f".{path.name}.abc.draft" / path.name).write_bytes(b"half")
    download(server.url, path)
    check_whole(server, path)


def test_without_locks_it_goes_on(server, path, monkeypatch):
    fcntl = pytest.importorskip("fcntl")

    def flock(*_):
        raise OSError(errno.ENOLCK, "no locks")

    monkeypatch.setattr(fcntl, "flock", flock)
    other = path.parent / f".{path.name}.abc.draft"
    other.mkdir()
    download(server.url, path)
    assert path.read_bytes() == server.body
    # Nobody can tell whether its process is alive.
    assert other.exists()


def test_progress_is_shown_when_keras_shows_things(server, path, capsys, monkeypatch):
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


# The module alone, in a process of its own: with Keras it would take seconds to start.
CHILD = """
import sys, types
root = sys.argv[1]
for name in ("keras_vit", "keras_vit.weights", "keras_vit.weights.read"):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [root + name.removeprefix("keras_vit").replace(".", "/")]
keras = sys.modules["keras"] = types.ModuleType("keras")
keras.config = types.SimpleNamespace(is_interactive_logging_enabled=lambda: False)
keras.utils = types.SimpleNamespace(Progbar=lambda *_, **__: types.SimpleNamespace())
from keras_vit.weights.download import download
download(sys.argv[2], sys.argv[3])
"""


def start(server, path):
    root = Path(module.__file__).parents[1]
    return subprocess.Popen([sys.executable, "-c", CHILD, str(root), server.url, str(path)])


def wait_for(condition):
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.long
def test_two_processes_at_once(server, path):
    server.answers = [Answer(pause=0.01)]
    processes = [start(server, path) for _ in range(2)]
    assert [process.wait(20) for process in processes] == [0, 0]
    check_whole(server, path)
    assert len(server.requests) == 1


@pytest.mark.long
@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGKILL")
def test_the_second_process_goes_on_when_the_first_is_killed(server, path):
    server.answers = [Answer(pause=0.05), Answer()]
    first = start(server, path)
    wait_for(lambda: server.sent > 10_000)
    second = start(server, path)
    time.sleep(0.2)
    first.send_signal(signal.SIGKILL)
    assert first.wait(20) == -signal.SIGKILL
    assert second.wait(20) == 0
    check_whole(server, path)
    assert len(server.requests) == 2
