import os
import subprocess
import sys

import keras
import pytest

from keras_vit import export
from keras_vit.export.child import custom_objects, run_in_child
from tests.errors import refuses
from tests.export.jobs import shapes
from tests.tiny import build

# The first model has layers and functions of a module, the second one a layer of the running script.
SCRIPT = """
import sys
import keras
from keras_vit import export
from keras_vit.export.child import run_in_child
from tests.export.jobs import shapes
from tests.tiny import build
import my_layers

with open("runs", "a") as file:
    file.write("ran ")


@keras.saving.register_keras_serializable(package="me")
class Own(keras.layers.Layer):
    def call(self, x):
        return x


backbone = build(num_classes=0, num_layers=1)
x = keras.layers.Dense(4, activation=my_layers.tripled)(backbone.output)
for layers in ((my_layers.Head(), my_layers.Registered()), (Own(),)):
    y = x
    for layer in layers:
        y = layer(y)
    print(run_in_child(shapes, keras.Model(backbone.input, y), backend="tensorflow"))
"""
MODULE = """
import keras

FACTOR = 3


@keras.saving.register_keras_serializable(package="me")
def tripled(x):
    return keras.ops.relu(x) * FACTOR


class Head(keras.layers.Layer):
    def call(self, x):
        return tripled(x)


@keras.saving.register_keras_serializable(package="me", name="other")
class Registered(Head):
    pass
"""


@pytest.mark.long
@pytest.mark.backends("torch")
def test_child_imports_layers_of_modules_but_not_of_script(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "my_layers.py").write_text(MODULE)
    path = os.pathsep.join(filter(None, [os.getcwd(), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": path, "TF_CPP_MIN_LOG_LEVEL": "3"}
    command = [sys.executable, "script.py"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout.splitlines()[-1:] == ["[[None, 4], 'tensorflow', '-1']"], done.stderr
    (line,) = (line for line in done.stderr.splitlines() if line.startswith("ValueError"))
    assert "Received: 'Own', which is defined in the running script" in line and "custom_module=" in line
    assert (tmp_path / "runs").read_text() == "ran "


# PyTorch is imported fastest.
@pytest.mark.long
@pytest.mark.backends("torch")
def test_custom_module_defines_layers_in_child(tmp_path):
    namespace = {"__name__": "__main__"}
    exec(MODULE, namespace)
    (tmp_path / "my_layers.py").write_text(MODULE)
    backbone = build(num_classes=0, num_layers=1)
    model = keras.Model(backbone.input, namespace["Head"]()(backbone.output))
    backend = keras.backend.backend()
    refuses("Received: 'Head'.*custom_module", run_in_child, shapes, model, backend=backend)
    arguments = {"backend": backend, "custom_module": tmp_path / "my_layers.py"}
    assert run_in_child(shapes, model, **arguments)[:2] == [[None, 12], backend]
    (tmp_path / "ends.py").write_text("import sys; print('the reason', file=sys.stderr); sys.exit(3)")
    with pytest.raises(RuntimeError, match="(?s)KERAS_BACKEND=torch.*exit status 3.*the reason"):
        run_in_child(shapes, model, backend=backend, custom_module=tmp_path / "ends.py")


def test_layers_defined_in_functions_are_refused_with_advice():
    class Local(keras.layers.Layer):
        def call(self, x):
            return x

    def local(x):
        return x

    x = keras.Input((3,))
    dense = keras.layers.Dense(2, activation=local)
    for layer, name in ((Local(), "Local"), (dense, "local")):
        expected = f"Received: '{name}', .* not at the top of a file.*custom_module"
        refuses(expected, custom_objects, keras.Model(x, layer(x)))


def test_layers_of_keras_and_keras_vit_need_no_module():
    model = build(num_classes=0, activation="gelu_tanh")
    whole = keras.Sequential([model, keras.layers.Dense(2, activation="relu")])
    whole.compile("sgd", lambda y, outputs: outputs)
    assert custom_objects(whole) == {}


def test_backend_that_is_not_installed_is_named():
    refuses("is not installed: pip install nothing", run_in_child, shapes, None, backend="nothing", error=ImportError)


@pytest.mark.long
@pytest.mark.backends("tensorflow", "jax")
def test_onnx_export_in_child_matches_model(tmp_path):
    assert export.onnx(build(), tmp_path / "vit.onnx")["difference"] < 1e-5


def test_torch_module_on_other_backends_raises():
    refuses("Expected a model built on PyTorch.*torch_export", export.torch_module, build())
