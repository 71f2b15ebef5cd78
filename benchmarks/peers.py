"""Builds keras-hub, timm, transformers and big_vision models in our sizes, optionally with our weights."""

import contextlib
import enum
import functools
import importlib.util
import os
import shutil
import sys
import types

import keras
import numpy as np
from sides import FlaxSide, KerasSide, ModuleSide, TorchSide

import keras_vit
from keras_vit.activations import gelu_tanh

OURS = "keras_vit"
NUM_CLASSES = 1000
PEERS = {
    "tensorflow": ("keras-hub",),
    "jax": ("keras-hub", "big_vision"),
    "torch": ("keras-hub", "timm", "timm compiled", "transformers", "transformers compiled"),
}


def read_big_vision(path, activation):
    """Imports big_vision's models/vit.py with the given GELU, without the package's other files."""
    import flax.linen

    missing = ("big_vision", "big_vision.utils", "big_vision.models", "big_vision.models.common")
    for name in (*missing, "flax.training", "flax.training.checkpoints"):
        sys.modules.setdefault(name, types.ModuleType(name))
    sys.modules["big_vision"].utils = sys.modules["big_vision.utils"]
    sys.modules["big_vision.models"].common = sys.modules["big_vision.models.common"]
    sys.modules["flax"].training = sys.modules["flax.training"]
    spec = importlib.util.spec_from_file_location("big_vision.models.vit", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    gelu = functools.partial(flax.linen.gelu, approximate=activation == "gelu_tanh")
    module.nn = types.SimpleNamespace(**{**vars(flax.linen), "gelu": gelu})
    return module


def our_side(entrant, case, task, weights):
    """Builds our side."""
    options = dict(entrant.options)
    module = options.pop("torch_module", None)
    jit_compile = options.pop("jit_compile", True if entrant.compiled else case.jit_compile)
    model = keras_vit.ViT(
        case.variant,
        image_size=case.image_size,
        num_layers=case.num_layers,
        num_classes=NUM_CLASSES,
        activation=case.activation,
        # With the default head, which starts at zero, all logits would be zero and could not be compared.
        head_init="glorot_uniform",
        **options,
    )
    if weights is not None:
        model.set_weights(weights)
    return KerasSide(model, case, jit_compile) if module is None else ModuleSide(model, module == "compiled")


def keras_hub_side(entrant, case, task, weights):
    import keras_hub

    sizes = case.sizes
    backbone = keras_hub.models.ViTBackbone(
        image_shape=(case.image_size, case.image_size, 3),
        dropout_rate=0.0,
        attention_dropout=0.0,
        layer_norm_epsilon=1e-6,
        **sizes,
    )
    model = keras_hub.models.ViTImageClassifier(backbone, num_classes=NUM_CLASSES, dropout=0.0)
    if case.activation == "gelu_tanh":
        for block in backbone.get_layer("vit_encoder").encoder_layers:
            block.mlp.dense_1.activation = gelu_tanh
    if weights is not None:
        (kernel, bias, token, positions), blocks, head = find_parts(weights)
        values = [token, kernel, bias, positions]
        for scale, shift, qkv_kernel, qkv_bias, *rest in blocks:
            values += [scale, shift, *query_key_value(qkv_kernel, qkv_bias), *rest]
        values += head
        model.set_weights([v.reshape(w.shape) for v, w in zip(values, model.weights, strict=True)])
    # keras-hub's own `fit` and `predict` do not accept generators of tensors, but those of a plain model do.
    model = keras.Model(model.input, model.output)
    return KerasSide(model, case, True if entrant.compiled else case.jit_compile)


def timm_side(entrant, case, task, weights):
    import torch

    sizes = case.sizes
    module = import_timm().VisionTransformer(
        img_size=case.image_size,
        patch_size=sizes["patch_size"],
        embed_dim=sizes["hidden_dim"],
        depth=sizes["num_layers"],
        num_heads=sizes["num_heads"],
        mlp_ratio=sizes["mlp_dim"] / sizes["hidden_dim"],
        num_classes=NUM_CLASSES,
        act_layer=functools.partial(torch.nn.GELU, approximate="tanh" if case.activation == "gelu_tanh" else "none"),
    )
    if weights is not None:
        (kernel, bias, token, positions), blocks, head = find_parts(weights)
        load_torch(module, [token, positions, kernel, bias, *(v for block in blocks for v in block), *head])
    return TorchSide(module, entrant, case, task)


def transformers_side(entrant, case, task, weights):
    import transformers

    sizes = case.sizes
    config = transformers.ViTConfig(
        hidden_size=sizes["hidden_dim"],
        num_hidden_layers=sizes["num_layers"],
        num_attention_heads=sizes["num_heads"],
        intermediate_size=sizes["mlp_dim"],
        hidden_act="gelu_pytorch_tanh" if case.activation == "gelu_tanh" else "gelu",
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        layer_norm_eps=1e-6,
        image_size=case.image_size,
        patch_size=sizes["patch_size"],
        num_labels=NUM_CLASSES,
        attn_implementation="sdpa",
    )
    module = transformers.ViTForImageClassification(config)
    if weights is not None:
        (kernel, bias, token, positions), blocks, head = find_parts(weights)
        values = [token, positions, kernel, bias]
        for scale_1, shift_1, qkv_kernel, qkv_bias, out_kernel, out_bias, scale_2, shift_2, *mlp in blocks:
            values += [*query_key_value(qkv_kernel, qkv_bias), out_kernel, out_bias]
            values += [scale_1, shift_1, scale_2, shift_2, *mlp]
        load_torch(module, values + head)
    return TorchSide(module, entrant, case, task)


def big_vision_side(entrant, case, task, weights):
    import jax

    sizes = case.sizes
    module = read_big_vision(case.big_vision, case.activation).Model(
        num_classes=NUM_CLASSES,
        variant=None,
        pool_type="tok",
        # Use bfloat16 only for matrix products, as big_vision's authors do in training.
        dtype_mm=entrant.compute_dtype,
        patch_size=(sizes["patch_size"],) * 2,
        width=sizes["hidden_dim"],
        depth=sizes["num_layers"],
        mlp_dim=sizes["mlp_dim"],
        num_heads=sizes["num_heads"],
    )
    if weights is not None:
        parameters = jax.tree.map(jax.numpy.array, flax_weights(weights, sizes["num_heads"]))
    else:
        first = jax.numpy.zeros((1, case.image_size, case.image_size, 3))
        parameters = jax.jit(lambda key: module.init(key, first))(jax.random.PRNGKey(0))
    return FlaxSide(module, parameters, case)


def why_not(entrant, case):
    """Returns the reason why a side cannot run here, or None."""
    if entrant.peer == "big_vision" and not case.big_vision:
        return "no --big-vision, the path of its models/vit.py"
    if entrant.peer == "big_vision" and entrant.dtype == "bfloat16":
        return "its weights are float32"
    # Inductor needs a C++ compiler on the CPU only.
    compilers = (os.environ.get("CXX", "g++"), "clang++")
    if entrant.compiled and case.device == "cpu" and not any(map(shutil.which, compilers)):
        return "torch.compile finds no C++ compiler"
    return None


@contextlib.contextmanager
def dtype_policy(policy):
    """Sets Keras' dtype policy while layers are built."""
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(policy)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


def find_parts(weights):
    """Splits our model's weights into embedding, blocks and head."""
    return weights[:4], [weights[i : i + 12] for i in range(4, len(weights) - 4, 12)], weights[-4:]


def query_key_value(kernel, bias):
    """Splits the fused projection into kernel and bias of query, key and value."""
    pairs = zip(np.split(kernel, 3, axis=-1), np.split(bias, 3), strict=True)
    return [array for pair in pairs for array in pair]


def load_torch(module, values):
    """Copies arrays in Keras layouts to a module's parameters, in order."""
    import torch

    # torch layouts: (outputs, inputs) for dense, (outputs, inputs, height, width) for convolutions.
    axes = {2: (1, 0), 4: (3, 2, 0, 1)}
    with torch.no_grad():
        for parameter, value in zip(module.parameters(), values, strict=True):
            value = value.transpose(axes[value.ndim]).copy() if value.ndim in axes else value
            parameter.copy_(torch.from_numpy(value))


def flax_weights(weights, num_heads):
    """Converts our weights to big_vision's parameter tree."""
    (kernel, bias, token, positions), blocks, (scale, shift, head_kernel, head_bias) = find_parts(weights)

    def dense(kernel, bias):
        return {"kernel": kernel, "bias": bias}

    def block(scale_1, shift_1, qkv_kernel, qkv_bias, out_kernel, out_bias, scale_2, shift_2, *mlp):
        width = len(out_bias)
        split = query_key_value(qkv_kernel, qkv_bias)
        attention = {
            name: dense(split[2 * i].reshape(width, num_heads, -1), split[2 * i + 1].reshape(num_heads, -1))
            for i, name in enumerate(("query", "key", "value"))
        }
        attention["out"] = dense(out_kernel.reshape(num_heads, -1, width), out_bias)
        return {
            "LayerNorm_0": {"scale": scale_1, "bias": shift_1},
            "MultiHeadDotProductAttention_0": attention,
            "LayerNorm_1": {"scale": scale_2, "bias": shift_2},
            "MlpBlock_0": {"Dense_0": dense(*mlp[:2]), "Dense_1": dense(*mlp[2:])},
        }

    encoder = {f"encoderblock_{i}": block(*arrays) for i, arrays in enumerate(blocks)}
    tree = {
        "embedding": dense(kernel, bias),
        # big_vision adds no position to the class token, so add our position of the class token to its embedding.
        "cls": token + positions[:, :1],
        "pos_embedding": positions[:, 1:],
        "Transformer": {**encoder, "encoder_norm": {"scale": scale, "bias": shift}},
        "head": dense(head_kernel, head_bias),
    }
    return {"params": tree}


def import_timm():
    """Imports timm, with an empty torchvision in the meantime if none is installed."""
    stubs = [] if importlib.util.find_spec("torchvision") else ["", "datasets", "ops", "ops.misc", "transforms"]
    stubs += ["transforms.functional"] if stubs else []

    class Stub(types.ModuleType):
        __path__ = []

        def __getattr__(self, name):
            if name.startswith("__"):
                raise AttributeError(name)
            return type(name, (), {})

    modules = {f"torchvision.{name}".rstrip("."): Stub(name) for name in stubs}
    if modules:
        transforms, functional = (modules[f"torchvision.{name}"] for name in ("transforms", "transforms.functional"))
        modules["torchvision"].transforms, transforms.functional = transforms, functional
        functional.InterpolationMode = enum.Enum("InterpolationMode", "NEAREST BILINEAR BICUBIC BOX HAMMING LANCZOS")
    sys.modules.update(modules)
    try:
        return importlib.import_module("timm.models.vision_transformer")
    finally:
        for name in modules:
            del sys.modules[name]


MAKERS = {
    OURS: our_side,
    "keras-hub": keras_hub_side,
    "timm": timm_side,
    "transformers": transformers_side,
    "big_vision": big_vision_side,
}


IMPORTS = {
    OURS: lambda: keras_vit,
    "keras-hub": lambda: importlib.import_module("keras_hub"),
    "timm": import_timm,
    "transformers": lambda: importlib.import_module("transformers.models.vit.modeling_vit"),
    "big_vision": lambda: importlib.import_module("flax.linen"),
}


def make(entrant, case, task="train", weights=None):
    """Builds a side for a task, "forward" or "train"; with `weights`, ours, it computes the same as ours."""
    with dtype_policy(entrant.dtype):
        return MAKERS[entrant.peer](entrant, case, task, weights)
