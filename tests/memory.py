"""Measures the peak memory of a call, on Linux."""

import os
from pathlib import Path

import pytest

needs_linux = pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="needs Linux's peak memory")


def peak(function):
    """Returns the megabytes that a call needs at its peak, above those before it."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    before = _megabytes("VmRSS")
    function()
    return _megabytes("VmHWM") - before


def _megabytes(name):
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(name))
