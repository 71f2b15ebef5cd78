import hashlib

import pytest

from keras_vit.weights.read import check_sha256, sha256
from keras_vit.weights.read.digest import check_sidecar

DATA = b"weights" * 1000
DIGEST = hashlib.sha256(DATA).hexdigest()


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "file.npz"
    path.write_bytes(DATA)
    return path


def test_a_file_is_checked_against_a_digest(path):
    assert sha256(path) == DIGEST
    check_sha256(path, DIGEST)
    check_sha256(path, DIGEST.upper())
    with pytest.raises(ValueError, match=f"file.npz.*is {DIGEST}, expected {'0' * 64}"):
        check_sha256(path, "0" * 64)


@pytest.mark.parametrize("expected", ["", "abc", "g" * 64, DIGEST + "0", None])
def test_what_is_no_digest_is_refused(path, expected):
    with pytest.raises(ValueError, match="argument `expected`"):
        check_sha256(path, expected)


@pytest.mark.parametrize(
    "text", ["{0}  file.npz\n", "{0} *file.npz", "{0}\n", "{1}  other.npz\n{0}  file.npz\n{1}  more/file.npz\n"]
)
def test_sidecars_as_sha256sum_writes_them(path, text):
    path.with_name("file.npz.sha256").write_text(text.format(DIGEST, "0" * 64))
    check_sidecar(path)
    path.write_bytes(DATA[:-1])
    with pytest.raises(ValueError, match="file.npz.*its SHA-256 is"):
        check_sidecar(path)


@pytest.mark.parametrize(
    "text", ["", "{0}  other.npz\n", "hello  file.npz\n", "{0}  file.npz\n{1}  file.npz\n", "\x00\n"]
)
def test_a_sidecar_that_says_nothing_of_the_file_is_refused(path, text):
    path.with_name("file.npz.sha256").write_text(text.format(DIGEST, "0" * 64))
    with pytest.raises(ValueError, match="file.npz.sha256.*does not give one SHA-256"):
        check_sidecar(path)


def test_a_binary_sidecar_is_refused(path):
    path.with_name("file.npz.sha256").write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match="file.npz.sha256.*no text file"):
        check_sidecar(path)


def test_no_sidecar_is_no_error(path):
    check_sidecar(path)
