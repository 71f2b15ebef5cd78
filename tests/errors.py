"""Shortens tests of errors."""

import pytest


def refuses(message, function, *args, error=ValueError, **kwargs):
    """Checks that a call raises an error whose message matches the regular expression `message`."""
    with pytest.raises(error, match=message):
        function(*args, **kwargs)


def not_found(message, function, *args, **kwargs):
    """Checks that a call raises a FileNotFoundError whose message matches the regular expression `message`."""
    refuses(message, function, *args, error=FileNotFoundError, **kwargs)
