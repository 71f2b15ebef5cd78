"""Shortens tests of errors."""

import pytest


def refuses(message, function, *args, **kwargs):
    """Checks that a call raises a ValueError whose message matches the regular expression `message`."""
    with pytest.raises(ValueError, match=message):
        function(*args, **kwargs)


def not_found(message, function, *args, **kwargs):
    """Checks that a call raises a FileNotFoundError whose message matches the regular expression `message`."""
    with pytest.raises(FileNotFoundError, match=message):
        function(*args, **kwargs)
