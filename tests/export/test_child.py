import ast
import os
import subprocess
import sys

import keras
import pytest

from keras_vit.export.child import _define, _needed, backend_name, run_in_child
from tests.export.jobs import broken, shapes
from tests.tiny import build

# The layer comes from the script that runs, which trains as well and has no guard.
SCRIPT = """
import sys
import keras
from keras_vit.export.child import run_in_child
from tests.export.jobs import shapes
from tests.tiny import build

FACTOR = 3
UNUSED = open(sys.argv[1], "a").write("ran ")
# Other names than those that the functions below have for themselves; in the child this would end the process.
x = y = values = sys.argv[1] if sys.argv[1].endswith("runs") else sys.exit("the script ran in the child")


def tripled(x):
    y = keras.ops.relu(x)
    return y * FACTOR


class Head(keras.layers.Layer):
    values = [1]
    first = values[0]

    def call(self, x):
        return sum(tripled(x) for values in self.values)


@keras.saving.register_keras_serializable(package="me")
class Registered(Head):
    pass


backbone = build(num_classes=0)
outputs = Registered()(Head()(keras.layers.Dense(4, activation=tripled)(backbone.output)))
print(run_in_child(shapes, keras.Model(backbone.input, outputs), backend="tensorflow"))
"""
MODULE = """
import keras

class Head(keras.layers.Layer):
    def call(self, x):
        return x
"""


# A process of another backend takes seconds, and how it finds layers does not depend on the backend here.
one_backend = pytest.mark.skipif(keras.backend.backend() != "torch", reason="the same on every backend")


@one_backend
@pytest.mark.tried_on("jax")
def test_layers_of_the_running_script_are_found_and_the_script_runs_once(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    path = os.pathsep.join(filter(None, [os.getcwd(), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": path, "TF_CPP_MIN_LOG_LEVEL": "3"}
    command = [sys.executable, str(tmp_path / "script.py"), str(tmp_path / "runs")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[[None, 4], 'tensorflow', '-1']"
    assert (tmp_path / "runs").read_text() == "ran "


def test_a_script_gives_only_what_a_name_takes_from_outside():
    script = """
import os, sys
OUTER = 1
size = OUTER
x = sys.exit()
items = sys.exit()
default = 2

def helper(x, y=default):
    return [items for items in x]

@os.fspath
class Layer:
    size = size
    own = x = 3
    twice = x

    def call(self, x):
        def inner():
            return helper(x)
        return inner()
"""
    source = _needed(ast.parse(script).body, "Layer")
    assert "sys.exit" not in source
    for line in ("OUTER = 1", "size = OUTER", "default = 2", "def helper", "import os"):
        assert line in source
    assert _needed(ast.parse(script).body, "nowhere") is None


def test_a_script_that_ends_its_process_is_said():
    entry = {"registered_name": "A", "name": "A", "module": "m", "file": None, "source": "import sys; sys.exit(3)"}
    with pytest.raises(ImportError, match="custom_module"):
        _define(entry)


@one_backend
@pytest.mark.tried_on("jax")
def test_a_file_can_define_the_layers(tmp_path):
    namespace = {"__name__": "not_importable"}
    exec(MODULE, namespace)
    (tmp_path / "my_layers.py").write_text(MODULE)
    backbone = build(num_classes=0)
    model = keras.Model(backbone.input, namespace["Head"]()(backbone.output))
    backend = keras.backend.backend()
    with pytest.raises(RuntimeError, match="custom_module"):
        run_in_child(shapes, model, backend=backend)
    arguments = {"backend": backend, "custom_module": tmp_path / "my_layers.py"}
    assert run_in_child(shapes, model, **arguments)[:2] == [[None, 12], backend]


def test_a_layer_defined_in_a_function_is_refused_with_advice():
    class Local(keras.layers.Layer):
        def call(self, x):
            return x

    backbone = build(num_classes=0)
    with pytest.raises(ValueError, match="inside a function.*custom_module"):
        run_in_child(backend_name, keras.Model(backbone.input, Local()(backbone.output)), backend="tensorflow")


@one_backend
def test_what_goes_wrong_is_said():
    with pytest.raises(RuntimeError, match="(?s)KERAS_BACKEND=.*no such luck: 0$"):
        run_in_child(broken, backend=keras.backend.backend(), luck=0)


def test_a_backend_that_is_missing_is_named():
    with pytest.raises(ImportError, match=r"keras-vit\[nothing\]"):
        run_in_child(backend_name, backend="nothing")
