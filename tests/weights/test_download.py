import functools
import hashlib
import re
import traceback
from pathlib import Path

import pytest

from keras_vit.weights import download as module
from keras_vit.weights.download import DownloadError
from tests.errors import not_found, refuses
from tests.weights.read.damage import flipped
from tests.weights.servers import Answer, Server, running

FAILURES = [
    (Answer(stop=50_000), "got only 50000 out of 200000 bytes"),
    *((Answer(status=status), str(status)) for status in (500, 404, 403)),
    (Answer(body=b"<html>Please log in</html>"), "it is a web page"),
]


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


def accept(path):
    """Is the strict check of a file that is right."""


def reject(path):
    raise ValueError(f"{str(path)!r} is of another model.")


def download(url, path, check=accept, **known):
    module.download(url, path, pin=pin_of(path), check=check, **known)


confirm = functools.partial(module.confirm, check=accept)


def check_whole(server, path):
    """Checks that the folder contains only the right file and its hash."""
    assert path.read_bytes() == server.body
    assert pin_of(path).read_text() == f"{sha256(server.body)}  weights.npz\n"
    assert {p.name for p in path.parent.iterdir()} == {path.name, pin_of(path).name}


def check_not_downloaded(message, url, path, error=DownloadError, **options):
    """Checks that a download raises an error with this message and leaves nothing. Returns the error."""
    with pytest.raises(error, match=message) as caught:
        download(url, path, **options)
    assert list(path.parent.iterdir()) == []
    return caught.value


@pytest.mark.parametrize("answer, reason", FAILURES, ids=["drops", "500", "404", "403", "web page"])
def test_failed_download_names_cause_and_leaves_nothing(server, path, answer, reason):
    server.answers = [answer, Answer()]
    error = check_not_downloaded(f"(?s)Cannot download {server.url}.*{reason}", server.url, path)
    assert "draft" not in str(error)
    assert "".join(traceback.format_exception(error)).count("Traceback") == 1
    download(server.url, path)
    check_whole(server, path)


@pytest.mark.parametrize("length", [8, 64])
def test_download_with_another_hash_is_refused(server, path, length):
    known = {"sha256_prefix": sha256(server.body)[:length].upper()}
    server.answers = [Answer(body=flipped(server.body, 100, 0)), Answer()]
    received = f"with the SHA-256 {known['sha256_prefix'].lower()}, "
    check_not_downloaded(received, server.url, path, check=reject, **known)
    # The check is for files without a published hash.
    download(server.url, path, check=reject, **known)
    assert path.read_bytes() == server.body
    # A hash that is known in full needs no pin.
    assert pin_of(path).exists() == (length != 64)


def test_cut_file_without_length_is_refused_by_check(server, path):
    def check(draft):
        # The checked file has a private name.
        if Path(draft) != path:
            assert not path.exists() and not pin_of(path).exists()
        if Path(draft).stat().st_size < 200_000:
            raise ValueError(f"{draft!r} is truncated.")

    server.answers = [Answer(stop=50_000, announced=False), Answer()]
    check_not_downloaded(f"{re.escape(repr(str(path)))} is truncated", server.url, path, check=check)
    download(server.url, path, check=check)
    check_whole(server, path)


def test_unreachable_server_and_missing_folder_are_refused(path):
    url = "http://127.0.0.1:9/weights.npz"
    check_not_downloaded(f"Cannot download {url}: .*refused", url, path)
    not_found("nowhere", download, url, path.parent / "nowhere" / "weights.npz")


def test_damaged_file_in_cache_is_refused_by_name(server, path):
    path.write_bytes(server.body)
    confirm(path, pin=pin_of(path))
    check_whole(server, path)
    path.write_bytes(flipped(server.body, 100, 0))
    message = f"{re.escape(repr(str(path)))} is damaged or another file. Delete it to download it again"
    refuses(f"pinned in .*{message}", confirm, path, pin=pin_of(path))
    assert path.read_bytes() == flipped(server.body, 100, 0)


def test_file_changed_at_source_is_refused(server, path):
    download(server.url, path)
    path.unlink()
    pinned = pin_of(path).read_text()
    server.body = flipped(server.body, 100, 0)
    message = "weights.npz.sha256' .delete that file if the new hash is right"
    refuses(message, download, server.url, path, error=DownloadError)
    assert not path.exists() and pin_of(path).read_text() == pinned
    pin_of(path).unlink()
    download(server.url, path)
    check_whole(server, path)


@pytest.mark.parametrize("whole", [True, False])
def test_second_of_two_downloads_checks_the_first_file(server, path, whole):
    def download_meanwhile(draft):
        download(server.url, path)
        moved.append(path.stat().st_ino)
        path.write_bytes(server.body if whole else server.body[:-1])

    moved = []
    if whole:
        download(server.url, path, check=download_meanwhile)
        check_whole(server, path)
    else:
        message = f"{re.escape(repr(str(path)))} is damaged or another file"
        refuses(message, download, server.url, path, check=download_meanwhile)
    assert len(server.requests) == 2 and moved == [path.stat().st_ino]


def test_pin_goes_to_given_folder_if_it_is_writable(server, path):
    path.write_bytes(server.body)
    confirm(path, pin=path.parent / "nowhere" / "weights.npz.sha256")
    message = "with the SHA-256 00000000, which is in the published name"
    refuses(message, confirm, path, sha256_prefix="00000000", pin=path.parent / "nowhere" / "weights.npz.sha256")
    assert list(path.parent.iterdir()) == [path]
    cache = path.parent / "cache"
    cache.mkdir()
    confirm(path, pin=cache / "weights.npz.sha256")
    assert not pin_of(path).exists()
    path.write_bytes(flipped(server.body, 100, 0))
    refuses("cache", confirm, path, pin=cache / "weights.npz.sha256")


@pytest.mark.parametrize("text", ["", "abc  weights.npz\n", "g" * 64, "a" * 65])
def test_invalid_pin_is_refused_before_download(server, path, text):
    pin_of(path).write_text(text)
    refuses("weights.npz.sha256'.*does not contain one SHA-256", download, server.url, path)
    assert not path.exists() and not server.requests
