"""Makes version_0_1/: models with random weights, saved by version 0.1.0 of this package, and their outputs.

Run it with that version: check out its commit, copy this file there, and `python make_version_0_1.py FOLDER`.
"""

import sys
from pathlib import Path

import keras
import numpy as np

import keras_vit

if keras_vit.__version__ != "0.1.0" or hasattr(keras_vit, "ViTConfig"):
    sys.exit("Expected version 0.1.0 of keras_vit, which has no ViTConfig.")
out = Path(sys.argv[1])
out.mkdir(exist_ok=True)
sizes = {"image_size": 16, "patch_size": 4, "hidden_dim": 12, "num_layers": 2, "num_heads": 3, "mlp_dim": 20}
tiny = {**sizes, "num_classes": 5}
raw = {"include_preprocessing": True, "mean": (0.4, 0.5, 0.6), "interpolation": "bicubic", "crop_fraction": 0.9}
tokens = {"num_registers": 2, "class_token": True, "class_token_position": False}
scaled = {"layer_scale_init": 0.1, "activation": "gelu", "pooling": "gap", "norm_after_pooling": True}
pooled = {"pooling": "map", "representation_size": 7, "classifier_activation": "softmax"}
resnet = {"width_factor": 0.5, "image_size": 32, "num_classes": 5}

backbone = keras_vit.ViT("B/16", **{**tiny, "num_classes": 0})
models = {
    "vit": keras_vit.ViT("B/16", **tiny),
    "raw_gap": keras_vit.ViT("B/16", **{**tiny, "image_size": (None, None)}, **raw, **tokens, **scaled),
    "distilled": keras_vit.ViT("B/16", **tiny, distillation_token=True, position_interpolation="bicubic"),
    "map_relative": keras_vit.ViT("B/16", **tiny, **pooled, position_embedding="relative", qk_norm=True),
    "hybrid": keras_vit.ViT("R50+B/16", **{**tiny, **resnet, "patch_size": 1}, stages=(1,)),
    "bit": keras_vit.BiT("R50x1", **resnet, stages=(1, 1), pool_padding="zeros"),
    "own_head": keras.Model(backbone.input, keras.layers.Dense(3, name="mine")(backbone.output)),
}

rng, io = np.random.default_rng(1), {}
for name, model in models.items():
    weights = np.random.default_rng(0)
    model.set_weights([0.3 * weights.normal(size=w.shape).astype("float32") for w in model.get_weights()])
    model.save(out / f"{name}.keras")
    shape = (2, *(side or 16 for side in model.input_shape[1:3]), 3)
    images = rng.uniform(0, 255, shape) if name == "raw_gap" else rng.normal(size=shape)
    io[f"{name}/images"] = images.astype("float32")
    io[f"{name}/answers"] = keras.ops.convert_to_numpy(model(io[f"{name}/images"]))
np.savez_compressed(out / "io.npz", **io)
