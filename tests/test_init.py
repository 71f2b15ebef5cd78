"""Tests the import of the package in child processes, and its public names."""

import inspect
import json
import os
import subprocess
import sys

import keras_vit

# A module that is None cannot be imported.
FAILING = """
import json, os, sys

errors = []
for backend in ("torch", "torhc"):
    for script in ("/usr/bin/keras-vit", "script.py"):
        for name in [name for name in sys.modules if name.partition(".")[0] in ("keras", "keras_vit")]:
            del sys.modules[name]
        sys.modules["torch"], os.environ["KERAS_BACKEND"], sys.argv = None, backend, [script, "recipes"]
        try:
            import keras_vit.cli
        except (ImportError, SystemExit) as error:
            errors.append([type(error).__name__, str(error)])
print(json.dumps(errors))
"""
HELP = """
import contextlib, io, json, sys

sys.argv = ["/usr/bin/keras-vit", "train", "--help"]
with contextlib.redirect_stdout(io.StringIO()) as page, contextlib.suppress(SystemExit):
    import keras_vit.cli
loaded = sorted({"keras", "tensorflow", "jax", "torch"} & set(sys.modules))
print(json.dumps([page.getvalue().split()[:3], loaded]))
"""
IMPORTED = """
import json, sys

sys.modules["pandas"] = None
# Only the command itself parses its options at the import.
sys.argv = ["/home/me/my-keras-vit", "--mine"]
frameworks = lambda: sorted({"tensorflow", "jax", "torch"} & set(sys.modules))
import keras
of_keras = frameworks()
import keras_vit, keras_vit.cli, keras_vit.prediction.files
print(json.dumps([of_keras, frameworks()]))
"""


def run(code):
    environment = {**os.environ, "KERAS_BACKEND": "torch", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_import_without_a_backend_names_the_remedy():
    (exits, missing), (raises, also_missing), (_, unknown), (_, also_unknown) = run(FAILING)
    assert (exits, raises) == ("SystemExit", "ImportError")
    # The command line prints the message of SystemExit as one line, without a traceback.
    assert missing.startswith("keras-vit: ") and "pip install torch, or" in missing and "\n" not in missing
    assert also_missing.startswith("Keras is set to the backend torch, which is not installed: pip install torch")
    assert unknown.startswith("keras-vit: Keras has no such backend") and "torhc" in unknown
    assert unknown.endswith("KERAS_BACKEND to tensorflow, jax or torch, whichever is installed.")
    assert also_unknown.startswith("Keras has no such backend")


def test_help_of_the_command_line_loads_no_framework():
    assert run(HELP) == [["usage:", "keras-vit", "train"], []]


def test_import_brings_in_no_other_framework_and_no_pandas():
    of_keras, of_keras_vit = run(IMPORTED)
    assert of_keras_vit == of_keras and "tensorflow" not in of_keras


def test_dir_of_public_modules_lists_only_public_names():
    public = [getattr(keras_vit, name) for name in keras_vit.__all__]
    modules = [keras_vit, *filter(inspect.ismodule, public)]
    assert len(modules) == 14
    for module in modules:
        assert dir(module) == sorted(set(module.__all__)), module.__name__
        assert all(hasattr(module, name) for name in module.__all__), module.__name__
