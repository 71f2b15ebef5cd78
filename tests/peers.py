"""The code bases that our files are written for and read from: transformers and timm."""

import importlib
import importlib.util
import os
import sys
from unittest import mock

import pytest


def peer(name):
    """Imports a module of a peer. Where it is not installed the test skips, or fails if KERAS_VIT_PEERS is set."""
    load = importlib.import_module if os.environ.get("KERAS_VIT_PEERS") else pytest.importorskip
    if not name.startswith("timm") or importlib.util.find_spec("torchvision"):
        return load(name)
    # timm imports torchvision, which its ViTs do without. Gone afterwards: transformers asks whether there is one.
    names = ("", ".datasets", ".ops", ".ops.misc", ".transforms", ".transforms.functional")
    stubs = {f"torchvision{name}": mock.MagicMock() for name in names}
    sys.modules.update(stubs)
    try:
        return load(name)
    finally:
        for stub in stubs:
            del sys.modules[stub]
