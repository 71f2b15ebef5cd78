import importlib

import keras
import pytest

from keras_vit import export
from keras_vit.export.child import custom_objects, run_in_child
from tests.errors import refuses
from tests.export.jobs import shapes
from tests.tiny import build

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


# PyTorch is imported fastest.
@pytest.mark.long
@pytest.mark.backends("torch")
def test_child_imports_the_module_of_custom_layers(tmp_path, monkeypatch):
    path = tmp_path / "my_layers.py"
    path.write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    backbone, backend = build(num_classes=0, num_layers=1), keras.backend.backend()

    def model(names):
        x = keras.layers.Dense(4, activation=names["tripled"])(backbone.output)
        return keras.Model(backbone.input, names["Registered"]()(names["Head"]()(x)))

    imported = model(vars(importlib.import_module("my_layers")))
    assert run_in_child(shapes, imported, backend=backend) == [[None, 4], backend, "-1"]
    # The layers of a script have the module "__main__", which the child does not import.
    script = {"__name__": "__main__"}
    exec(MODULE, script)
    refuses(
        "which is defined in the running script.*custom_module", run_in_child, shapes, model(script), backend=backend
    )
    assert run_in_child(shapes, model(script), backend=backend, custom_module=path)[:2] == [[None, 4], backend]
    (tmp_path / "ends.py").write_text("import sys; print('the reason', file=sys.stderr); sys.exit(3)")
    with pytest.raises(RuntimeError, match="(?s)KERAS_BACKEND=torch.*exit status 3.*the reason"):
        run_in_child(shapes, imported, backend=backend, custom_module=tmp_path / "ends.py")


def test_layers_defined_in_functions_are_refused_with_advice():
    class Local(keras.layers.Layer):
        def call(self, x):
            return x

    def local(x):
        return x

    x = keras.Input((3,))
    dense = keras.layers.Dense(2, activation=local)
    for layer, name in ((Local(), "Local"), (dense, "local")):
        expected = f"Received: '{name}', .* not defined at the top level of a file.*custom_module"
        refuses(expected, custom_objects, keras.Model(x, layer(x)))


def test_layers_of_keras_and_keras_vit_need_no_module():
    model = build(num_classes=0, activation="gelu_tanh")
    whole = keras.Sequential([model, keras.layers.Dense(2, activation="relu")])
    whole.compile("sgd", lambda y, outputs: outputs)
    assert custom_objects(whole) == {}


@pytest.mark.long
@pytest.mark.backends("tensorflow", "jax")
def test_onnx_export_in_child_matches_model(tmp_path):
    assert export.onnx(build(), tmp_path / "vit.onnx")["difference"] < 1e-5


def test_torch_module_on_other_backends_raises():
    refuses("Expected a model built on PyTorch.*torch_export", export.torch_module, build())
