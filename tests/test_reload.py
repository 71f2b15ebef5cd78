"""Saves whole models on one backend and opens them in a new process on another one."""

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
from tests.models.efficientnet import test_model as efficientnet
from tests.models.vit.test_model import KINDS
from tests.models.vt_resnet import test_model as vt_resnet
from tests.tiny import build, randomize


def without_builder():
    """Uses the layer that no builder uses."""
    inputs = keras.Input((16, 12, 3))
    return keras.Model(inputs, keras_vit.layers.Patches(4)(inputs))


def with_lora():
    model = build(qk_norm=True)
    enable_lora(model, 2, alpha=3.0, train_norms=True)
    return model


# These kinds differ in their layers.
DIFFERING = ("pre_logits", "gap", "gap_with_class_token", "map", "registers", "dropouts", "preprocessing")
MODELS = {kind: lambda kind=kind: build(**KINDS[kind]) for kind in (*DIFFERING, "merging_once_map")}
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
if hasattr(keras.quantizers, "Int8QuantizationConfig"):
    # Older Keras quantizes activations too, which differ by whole steps from one backend to another.
    MODELS["int8"] = lambda: build(pooling="map", qk_norm=True)
SEVERAL = ("map", "registers", "hybrid", "rotary", "lora")
# {backend that saves: backend that opens}
NEXT = {"torch": "tensorflow", "tensorflow": "jax", "jax": "torch"}
READER = """
import json, sys
import numpy as np
import keras
import keras_vit

folder, backend = sys.argv[1:]
assert keras.backend.backend() == backend
for name in json.load(open(f"{folder}/names.json")):
    model = keras.saving.load_model(f"{folder}/{name}.keras", safe_mode=True)
    # JAX compiles the whole model once instead of each operation.
    run = model.predict_on_batch if backend == "jax" else model
    y = run(np.load(f"{folder}/{name}.images.npy"))
    np.save(f"{folder}/{name}.{backend}.npy", keras.ops.convert_to_numpy(y))
    config = None if name == "without_builder" else keras_vit.config_of(model).to_dict()
    json.dump([[v.path for v in model.trainable_weights], config], open(f"{folder}/{name}.{backend}.json", "w"))
"""


def save(folder, name):
    """Saves a model, images, its outputs for them, and what else must stay the same; returns the model."""
    model = randomize(MODELS[name]())
    if name == "int8":
        model.quantize("int8", config=keras.quantizers.Int8QuantizationConfig(activation_quantizer=None))
        assert str(model.get_layer("block_01").mlp.dense_1.kernel.dtype) == "int8"
    images = np.random.default_rng(1).uniform(size=(2, *model.input_shape[1:])).astype("float32")
    model.save(folder / f"{name}.keras")
    np.save(folder / f"{name}.images.npy", images)
    np.save(folder / f"{name}.here.npy", ops.convert_to_numpy(model(images)))
    config = None if name == "without_builder" else keras_vit.config_of(model).to_dict()
    (folder / f"{name}.here.json").write_text(json.dumps([[v.path for v in model.trainable_weights], config]))
    return model


def check_reader(folder, names, backend):
    """Opens saved models in a new process, which imports only Keras and this package."""
    (folder / "names.json").write_text(json.dumps(list(names)))
    environment = {**os.environ, "KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3"}
    command = [sys.executable, "-c", READER, str(folder), backend]
    read = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert read.returncode == 0, read.stderr
    for name in names:
        here, there = (json.loads((folder / f"{name}.{side}.json").read_text()) for side in ("here", backend))
        assert there == here
        here, there = np.load(folder / f"{name}.here.npy"), np.load(folder / f"{name}.{backend}.npy")
        np.testing.assert_allclose(there, here, atol=1e-4, rtol=1e-4, err_msg=name)


@pytest.mark.parametrize(
    "names",
    [
        pytest.param(SEVERAL, marks=pytest.mark.backends("torch")),
        # JAX takes longest for the single calls of a writer.
        pytest.param(SEVERAL, marks=[pytest.mark.backends("jax"), pytest.mark.long]),
        pytest.param(MODELS, marks=[pytest.mark.backends("tensorflow", "torch"), pytest.mark.long]),
    ],
)
def test_saved_models_open_on_the_next_backend(names, tmp_path):
    layers = {type(layer).__name__ for name in names for layer in save(tmp_path, name)._flatten_layers()}
    others = {"Dense", "PrefixTokens", "SqueezeExcitation", "SymmetricMaxPooling2D"}
    assert names is SEVERAL or layers >= {*keras_vit.layers.__all__, *others}
    backend = keras.backend.backend()
    # The long run opens TensorFlow's files on both other backends.
    both = names is MODELS and backend == "tensorflow"
    for reader in ("jax", "torch") if both else (NEXT[backend],):
        check_reader(tmp_path, names, reader)
