"""Whole models across processes and backends: what is saved here opens there."""

import importlib.util
import json
import os
import subprocess
import sys

import keras
import numpy as np
import pytest
from keras import ops

import keras_vit
from keras_vit.training import enable_lora
from tests.models import test_efficientnet as efficientnet
from tests.models import test_vt_resnet as vt_resnet
from tests.models.test_vit import KINDS
from tests.tiny import build, randomize


def without_builder():
    """The layers of the package that no builder uses."""
    inputs = keras.Input((16, 12, 3))
    grid = keras.layers.Reshape((4, 3, 48))(keras_vit.layers.Patches(4)(inputs))
    return keras.Model(inputs, keras_vit.layers.AxialBlock(num_heads=2, mlp_dim=8)(grid))


def with_lora():
    model = build(qk_norm=True)
    enable_lora(model, 2, alpha=3.0, train_norms=True)
    return model


MODELS = {kind: lambda arguments=arguments: build(**arguments) for kind, arguments in KINDS.items()}
MODELS["feature_map"] = lambda: keras_vit.features(build(num_registers=2), blocks=(1,), format="map")
MODELS["without_builder"] = without_builder
MODELS["hybrid"] = lambda: build(stages=(1, 1), width_factor=0.5, patch_size=1, image_size=32)
MODELS["bit"] = lambda: keras_vit.BiT("R50x1", stages=(1, 1), width_factor=0.5, image_size=32, num_classes=3)
MODELS["vt_resnet"] = vt_resnet.build
MODELS["efficientnet"] = efficientnet.build
MODELS["coatnet"] = lambda: keras_vit.CoAtNet(
    "rmlp_0_rw", depths=(1, 1, 1, 1), widths=(8, 8, 8, 16), stem_widths=(4, 8), head_dim=8, image_size=32, num_classes=3
)
MODELS["distilled"] = lambda: build(distillation_token=True)
MODELS["lora"] = with_lora
MODELS["rotary"] = lambda: build(
    hidden_dim=24, rotary_embedding="dinov3", key_bias=False, gated_mlp=True, mlp_norm=True, activation="silu"
)
MODELS["norm_after_pooling"] = lambda: build(pooling="gap", norm_after_pooling=True)
if hasattr(keras.quantizers, "Int8QuantizationConfig"):
    # Older Keras quantizes activations too, which differ by whole steps from one backend to another.
    MODELS["int8"] = lambda: build(pooling="map", qk_norm=True)
BACKENDS = ("tensorflow", "jax", "torch")
# Who reads what a backend writes: JAX takes longest for single calls.
READERS = {"tensorflow": ("jax", "torch"), "torch": ("tensorflow",), "jax": ()}

# All that a user who gets the files has: the file, Keras and this package.
READER = """
import json, sys
import numpy as np
import keras
import keras_vit

folder, backend = sys.argv[1:]
assert keras.backend.backend() == backend
for name in json.load(open(f"{folder}/names.json")):
    model = keras.saving.load_model(f"{folder}/{name}.keras", safe_mode=True)
    y = model.predict_on_batch(np.load(f"{folder}/{name}.images.npy"))
    np.save(f"{folder}/{name}.{backend}.npy", keras.ops.convert_to_numpy(y))
    config = None if name == "without_builder" else keras_vit.config_of(model).to_dict()
    json.dump([[v.path for v in model.trainable_weights], config], open(f"{folder}/{name}.{backend}.json", "w"))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Models of each kind as .keras files, with images and what this process makes of them."""
    path = tmp_path_factory.mktemp("models")
    layers = set()
    for name, make in MODELS.items():
        model = randomize(make())
        layers |= {type(layer).__name__ for layer in model._flatten_layers()}
        if name == "int8":
            model.quantize("int8", config=keras.quantizers.Int8QuantizationConfig(activation_quantizer=None))
            assert str(model.get_layer("block_01").mlp.dense_1.kernel.dtype) == "int8"
        images = np.random.default_rng(1).uniform(size=(2, *model.input_shape[1:])).astype("float32")
        model.save(path / f"{name}.keras")
        np.save(path / f"{name}.images.npy", images)
        np.save(path / f"{name}.here.npy", ops.convert_to_numpy(model(images)))
        config = None if name == "without_builder" else keras_vit.config_of(model).to_dict()
        (path / f"{name}.here.json").write_text(json.dumps([[v.path for v in model.trainable_weights], config]))
    (path / "names.json").write_text(json.dumps(list(MODELS)))
    # Those that no model has would not be tried.
    assert layers >= set(keras_vit.layers.__all__)
    return path


@pytest.mark.parametrize("backend", READERS[keras.backend.backend()])
def test_every_model_opens_in_a_fresh_process_of_another_backend(folder, backend):
    if importlib.util.find_spec(backend) is None:
        pytest.skip(f"{backend} is not installed")
    environment = {**os.environ, "KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3"}
    read = subprocess.run(
        [sys.executable, "-c", READER, str(folder), backend], env=environment, capture_output=True, text=True
    )
    assert read.returncode == 0, read.stderr
    for name in MODELS:
        assert json.loads((folder / f"{name}.{backend}.json").read_text()) == json.loads(
            (folder / f"{name}.here.json").read_text()
        )
        here, there = np.load(folder / f"{name}.here.npy"), np.load(folder / f"{name}.{backend}.npy")
        np.testing.assert_allclose(there, here, atol=1e-4, rtol=1e-4, err_msg=name)


@pytest.mark.backends("jax", "torch")
def test_importing_the_package_brings_in_no_framework_that_keras_does_not():
    def frameworks_of(module):
        script = f"import sys, {module}; print([m for m in {BACKENDS} if m in sys.modules])"
        return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout

    assert frameworks_of("keras_vit") == frameworks_of("keras")
    if keras.backend.backend() != "tensorflow":
        assert "tensorflow" not in frameworks_of("keras_vit")
