import os
import subprocess
import sys

import keras

# A module that is None cannot be imported.
WITHOUT_BACKEND = """
import sys
sys.modules[{backend!r}] = None
sys.argv = [{script!r}, "--help"]
from keras_vit.cli import main
sys.exit(main())
"""


def run(code, backend):
    environment = {**os.environ, "KERAS_BACKEND": backend, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120)


def test_without_its_backend_any_command_says_in_a_line_what_to_install():
    backend = keras.backend.backend()
    done = run(WITHOUT_BACKEND.format(backend=backend, script="/usr/bin/keras-vit"), backend)
    assert done.returncode == 1 and done.stdout == ""
    said = done.stderr.strip().splitlines()[-1]
    assert said.startswith("keras-vit: ") and f"pip install {backend}, or" in said
    assert "Traceback" not in done.stderr
    done = run(WITHOUT_BACKEND.format(backend=backend, script="script.py"), backend)
    assert f"ImportError: Keras is set to the backend {backend}, which is not installed: pip install" in done.stderr


def test_a_backend_that_does_not_exist_is_named():
    code = 'import sys; sys.argv = [{!r}, "--help"]; from keras_vit.cli import main; sys.exit(main())'
    done = run(code.format("/usr/bin/keras-vit"), "torhc")
    said = done.stderr.strip().splitlines()[-1]
    assert done.returncode == 1 and said.startswith("keras-vit: Keras has no such backend") and "torhc" in said
    assert said.endswith("KERAS_BACKEND to tensorflow, jax or torch, whichever is installed.")
    assert "Traceback" not in done.stderr
    assert "ImportError: Keras has no such backend" in run(code.format("script.py"), "torhc").stderr
