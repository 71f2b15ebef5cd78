"""Makes original_*: state dicts of random weights and the outputs of the original code of CLIP, DINO, ...

    pip install torch timm einops
    git clone https://github.com/openai/CLIP                # and facebookresearch/dino, dinov2, dinov3, ijepa,
    python tests/golden/make_original.py FOLDER [--check] [NAME ...]   # baaivision/EVA: all in FOLDER

With CLIP of d05afc4, dino of 7c446df, dinov2 of b8931f7, dinov3 of 6876159, ijepa of 52c1ae9 and EVA of 5623d08.
NAME.io.npz holds images (NHWC), not of the weights' size where the code resizes positions, and the features or logits.
All in float32.
"""

import functools
import importlib
import sys
from unittest import mock

import numpy as np
import torch
from making import HERE, arguments, compare, draw_module
from safetensors.torch import load_file, save_file

IMAGES = (2, 3, 40, 24)
SIZES = {"patch_size": 8, "depth": 1}
WIDE = {"embed_dim": 64, "num_heads": 1, "mlp_ratio": 0.5, **SIZES}
NARROW = {"embed_dim": 32, "num_heads": 2, **SIZES}
NORM = functools.partial(torch.nn.LayerNorm, eps=1e-6)
DINO = {"norm_layer": NORM, "img_size": [32], "qkv_bias": True, **WIDE}
DINOV2 = {"img_size": 32, "init_values": 1.0, **WIDE}
REGISTERS = {"ffn_layer": "swiglu", "num_register_tokens": 2, "block_chunks": 1}
REGISTERS |= {"interpolate_antialias": True, "interpolate_offset": 0.0}
DINOV3 = {"img_size": 32, "ffn_layer": "swiglu", "ffn_ratio": 2, "layerscale_init": 1.0, "norm_layer": "layernormbf16"}
DINOV3 |= {"n_storage_tokens": 2, "mask_k_bias": True, "pos_embed_rope_dtype": "fp32", **NARROW}
EVA02 = {"img_size": 32, "mlp_ratio": 2, "qkv_bias": True, "norm_layer": NORM, **NARROW}
EVA02 |= {"rope": True, "intp_freq": True}


class SwiGLU(torch.nn.Module):
    """xformers' gated MLP, whose first layer computes both halves."""

    def __init__(self, in_features, hidden_features):
        super().__init__()
        self.w12 = torch.nn.Linear(in_features, 2 * hidden_features)
        self.w3 = torch.nn.Linear(hidden_features, in_features)

    def forward(self, x):
        gate, x = self.w12(x).chunk(2, dim=-1)
        return self.w3(torch.nn.functional.silu(gate) * x)


def load(folder, repository, module):
    """Imports a module of a checkout, without the packages that only its training needs."""
    for name in [name for name in sys.modules if name.split(".")[0] in ("src", "utils", "rope")]:
        del sys.modules[name]
    sys.path.insert(0, str(folder / repository))
    stubs = {name: mock.MagicMock() for name in ("apex", "apex.normalization")}
    names = ("", ".datasets", ".ops", ".ops.misc", ".transforms", ".transforms.functional")
    stubs |= {f"torchvision{name}": mock.MagicMock() for name in names}
    # DINOv2 runs without xformers.
    xformers = mock.MagicMock(**{"ops.SwiGLU": SwiGLU}) if repository.startswith("EVA") else None
    stubs |= {"xformers": xformers, "xformers.ops": xformers and xformers.ops}
    sys.modules.update(stubs)
    try:
        return importlib.import_module(module)
    finally:
        sys.path.pop(0)
        for name in stubs:
            del sys.modules[name]


def clip(folder):
    module = load(folder, "CLIP/clip", "model").VisionTransformer(32, 8, 32, 1, 2, 10)
    return torch.nn.ModuleDict({"visual": module}), module, (2, 3, 32, 32)


def dino(folder):
    module = load(folder, "dino", "vision_transformer").VisionTransformer(**DINO)
    return module, module, IMAGES


def dinov2(folder, **settings):
    code = load(folder, "dinov2", "dinov2.models.vision_transformer")
    module = code.DinoVisionTransformer(**{**DINOV2, "interpolate_offset": 0.1, **settings})
    return module, module, IMAGES


def dinov3(folder):
    code = load(folder, "dinov3", "dinov3.models.vision_transformer")
    module = code.DinoVisionTransformer(untie_global_and_local_cls_norm=True, **DINOV3)
    module.init_weights()
    for name, buffer in module.named_buffers():
        if name.endswith("bias_mask"):
            buffer.copy_(torch.tensor([1.0, 0.0, 1.0]).repeat_interleave(len(buffer) // 3))
    return module, module, IMAGES


def ijepa(folder):
    code = load(folder, "ijepa", "src.models.vision_transformer")
    module = code.VisionTransformer(norm_layer=NORM, img_size=[32], qkv_bias=True, **NARROW)
    return module, lambda images: module(images).mean(1), (2, 3, 32, 32)


def eva02(folder, **settings):
    code = load(folder, "EVA/EVA-02/asuka", "modeling_finetune")
    module = code.VisionTransformer(num_classes=5, **EVA02, **settings)
    return module, module, (2, 3, 32, 32)


CASES = {
    "original_clip": clip,
    "original_dino": dino,
    "original_dinov2": dinov2,
    "original_dinov2_registers": lambda folder: dinov2(folder, **REGISTERS),
    "original_dinov3": dinov3,
    "original_ijepa": ijepa,
    "original_eva02_packed": lambda folder: eva02(folder, swiglu=True),
    "original_eva02_split": lambda folder: eva02(folder, naiveswiglu=True, subln=True),
}


args = arguments("folder")
for name in args.names or CASES:
    holder, module, shape = CASES[name](args.folder)
    path, file = HERE / f"{name}.io.npz", HERE / f"{name}.safetensors"
    holder.eval()
    if args.check:
        io = dict(np.load(path))
        holder.load_state_dict(load_file(file))
        images = torch.from_numpy(io.pop("images")).permute(0, 3, 1, 2)
    else:
        generator = torch.Generator().manual_seed(0)
        draw_module(holder, generator)
        save_file({key: array.clone().contiguous() for key, array in holder.state_dict().items()}, file)
        images = torch.randn(shape, generator=generator)
    with torch.no_grad():
        found = {"features": module(images).numpy()}
    if args.check:
        compare(name, io, found)
    else:
        np.savez_compressed(path, images=images.permute(0, 2, 3, 1).numpy(), **found)
