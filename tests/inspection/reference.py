"""A ViT in NumPy's float64, whose attention weights can be read and changed."""

import math

import numpy as np
from keras import ops

from tests import contract, tiny
from tests.test_activations import DEFINITIONS

# Models for which maps, distances and rollouts are compared with the definitions.
MODELS = {
    "plain": {},
    "patches that leave a remainder": {"image_size": (11, 14)},
    "registers": {"num_registers": 2},
    "distilled": {"distillation_token": True},
    "gap with registers": {"num_registers": 2, "pooling": "gap"},
}


def build(**changes):
    """Returns a tiny ViT whose attention weights differ widely, and two images for it."""
    model = tiny.build(**{"image_size": (8, 12), **changes})
    contract.randomize(model, np.random.default_rng(0), scale=0.3)
    shape = [side or 16 for side in model.input_shape[1:]]
    return model, np.random.default_rng(1).normal(size=(2, *shape)).astype("float32")


def weights_of(model):
    """Returns the weights of a model by their paths."""
    return {w.path: np.asarray(ops.convert_to_numpy(w), "float64") for w in model.weights}


def read(changes, num_prefix):
    """Returns the slice of tokens that the head of a model of `MODELS` reads: two in a distilled model."""
    if changes.get("pooling") == "gap":
        return slice(num_prefix, None)
    return slice(0, 2 if changes.get("distillation_token") else 1)


def find_blocks(w):
    return sorted({path.split("/")[0] for path in w if path.startswith("block_")})


def norm(x, w, name, epsilon=1e-6):
    x = x - x.mean(axis=-1, keepdims=True)
    return x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + epsilon) * w[f"{name}/gamma"] + w[f"{name}/beta"]


def dense(x, w, name):
    return x @ w[f"{name}/kernel"] + w[f"{name}/bias"]


def tokens_of(w, images, patch):
    """Returns patches after the prefix tokens, in the builder's order, with learned positions added."""
    batch, height, width, channels = images.shape
    rows, columns = height // patch, width // patch
    x = images[:, : rows * patch, : columns * patch].reshape(batch, rows, patch, columns, patch, channels)
    x = x.transpose(0, 1, 3, 2, 4, 5).reshape(batch, rows * columns, -1)
    x = x @ w["patch_embedding/kernel"].reshape(x.shape[-1], -1) + w["patch_embedding/bias"]
    for name in ("registers", "distillation_token", "class_token"):
        if f"{name}/tokens" in w:
            x = np.concatenate([np.repeat(w[f"{name}/tokens"], batch, axis=0), x], axis=1)
    positions = w["position_embedding/embeddings"]
    num_registers = x.shape[1] - positions.shape[1]
    # Registers lie between the other prefix tokens and the patches, and have no position embedding.
    num_prefix = positions.shape[1] - rows * columns
    zeros = np.zeros((1, num_registers, positions.shape[2]))
    return x + np.concatenate([positions[:, :num_prefix], zeros, positions[:, num_prefix:]], axis=1)


def run(model, images, patch=4, num_heads=3, changes=None):
    """Runs a tiny ViT.

    Args:
        changes: Dict from the index of a block to an array that is added to its attention weights.

    Returns:
        The logits, and for each block the attention weights, (batch, heads, tokens, tokens).
    """
    w = weights_of(model)
    x, maps = tokens_of(w, np.asarray(images, "float64"), patch), []
    batch, length, width = x.shape
    head_dim = width // num_heads
    for i, name in enumerate(find_blocks(w)):
        qkv = dense(norm(x, w, f"{name}/norm_1"), w, f"{name}/attention/qkv")
        q, k, v = qkv.reshape(batch, length, 3, num_heads, head_dim).transpose(2, 0, 3, 1, 4)
        scores = np.exp(q @ k.transpose(0, 1, 3, 2) / math.sqrt(head_dim))
        scores /= scores.sum(axis=-1, keepdims=True)
        if changes and i in changes:
            scores = scores + changes[i]
        maps.append(scores)
        joined = (scores @ v).transpose(0, 2, 1, 3).reshape(batch, length, -1)
        x = x + dense(joined, w, f"{name}/attention/out")
        h = DEFINITIONS["gelu_tanh"](dense(norm(x, w, f"{name}/norm_2"), w, f"{name}/mlp/dense_1"))
        x = x + dense(h, w, f"{name}/mlp/dense_2")
    x = norm(x, w, "norm")
    num_prefix = length - (images.shape[1] // patch) * (images.shape[2] // patch)
    if "class_token/tokens" not in w:
        return dense(x[:, num_prefix:].mean(axis=1), w, "head"), maps
    logits = dense(x[:, 0], w, "head")
    if "head_dist/kernel" in w:
        logits = (logits + dense(x[:, 1], w, "head_dist")) / 2
    return logits, maps
