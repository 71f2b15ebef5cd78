"""Shortens tests of errors."""

import contextlib

import pytest


def refuses(message, function, *args, error=ValueError, **kwargs):
    """Checks that a call raises an error whose message matches the regular expression `message`."""
    with pytest.raises(error, match=message):
        function(*args, **kwargs)


def not_found(message, function, *args, **kwargs):
    """Checks that a call raises a FileNotFoundError whose message matches the regular expression `message`."""
    refuses(message, function, *args, error=FileNotFoundError, **kwargs)


@contextlib.contextmanager
def file_size_limit(size):
    """Limits the bytes of each file that this process writes in the `with` block, as a full disk does."""
    resource = pytest.importorskip("resource", reason="Windows has no limit of file sizes")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
