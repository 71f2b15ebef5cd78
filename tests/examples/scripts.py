"""Runs an example as a user does, or loads it to call its functions."""

import contextlib
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@contextlib.contextmanager
def served(folder, *options):
    """Yields the address of a model that serve/server.py serves, and the server's process, which has no Keras."""
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
    script = "import sys, runpy; sys.modules.update(keras=None, keras_vit=None); sys.argv.pop(0); "
    script += "runpy.run_path(sys.argv[0], run_name='__main__')"
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(EXAMPLES / "serve" / "server.py"), str(folder), "--port", "0", *options],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    found = re.search(r"http://\S+(?=:predict)", process.stdout.readline())
    assert found, "the server did not start"
    try:
        yield found[0], process
    finally:
        process.terminate()
        process.wait(timeout=30)


def load(script):
    """Imports an example as a module."""
    spec = importlib.util.spec_from_file_location(script.removesuffix(".py"), EXAMPLES / script)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
