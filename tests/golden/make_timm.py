"""Makes timm_*: random weights and the outputs of timm.

    pip install timm safetensors
    python tests/golden/make_timm.py [--check] [NAME ...]

With timm 1.0.31; an empty torchvision will do. With --check it writes nothing, and runs timm on the weights that are
kept.
"""

import functools
import math
import re
import sys
from pathlib import Path

import numpy as np
import torch
from making import arguments, draw, spread, write_or_check

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.peers import peer

SIZES = {"img_size": 32, "patch_size": 8, "embed_dim": 64, "depth": 3, "num_heads": 4, "mlp_ratio": 2}
SIZES |= {"num_classes": 10}
TINY = {"img_size": (64, 96), "embed_dim": 32, "depth": 2, "num_heads": 4, "mlp_ratio": 2, "num_classes": 10}


def runner(module, compute):
    """Returns a function that loads weights and returns `compute(images)` as arrays."""
    module.eval()

    def answers(weights, images):
        module.load_state_dict({key: torch.from_numpy(array) for key, array in weights.items()})
        with torch.no_grad():
            found = compute(torch.from_numpy(images).permute(0, 3, 1, 2))
        return {key: x.numpy() for key, x in found.items()}

    return answers


def whole_and_cut(module):
    """Returns a function that computes the logits of images and of their upper left 37 x 70 pixels."""
    return runner(module, lambda images: {"logits": module(images), "cut/logits": module(images[:, :, :37, :70])})


def make_resnet(args, name, module):
    """Makes a hybrid or BiT."""

    def draw_spread(shapes):
        convs = re.compile(r".*(^|\.)conv\d?\.weight")
        return {key: spread(array) if convs.fullmatch(key) else array for key, array in draw(shapes).items()}

    shapes = {key: tuple(x.shape) for key, x in module.state_dict().items()}
    write_or_check(args, f"{name}.safetensors", shapes, (2, 64, 96, 3), whole_and_cut(module), draw_spread)


SMALL = {**SIZES, "embed_dim": 32, "depth": 2, "dynamic_img_size": True}
# Models with `dynamic_img_size` also get the repeated images in these sizes.
OTHER_SIZES = ((48, 48), (24, 40))


def make(args, name, module):
    def compute(images):
        found = {"logits": module(images)}
        for height, width in OTHER_SIZES if module.dynamic_img_size else ():
            found[f"logits_{height}x{width}"] = module(images.tile(1, 1, 2, 2)[:, :, :height, :width])
        if name == "timm_vit":
            found["tap/features"] = module.forward_features(images)
        if name == "timm_deit_distilled":
            module.set_distilled_training(True)
            # The model returns separate heads only in training mode. It has no dropout.
            found["cls_logits"], found["dist_logits"] = module.train()(images)
            module.eval()
        return found

    shapes = {key: tuple(x.shape) for key, x in module.state_dict().items()}
    write_or_check(args, f"{name}.safetensors", shapes, (3, 32, 32, 3), runner(module, compute))


def main():
    vit = peer("timm.models.vision_transformer").VisionTransformer
    deit = peer("timm.models.deit").VisionTransformerDistilled
    args = arguments()
    make(args, "timm_vit", vit(**SIZES))
    make(args, "timm_vit_gap_fcnorm", vit(class_token=False, global_pool="avg", **SIZES))
    make(args, "timm_vit_reg4_layerscale", vit(reg_tokens=4, no_embed_class=True, init_values=1.0, **SIZES))
    make(args, "timm_vit_qknorm_map", vit(class_token=False, global_pool="map", qk_norm=True, **SIZES))
    make(args, "timm_deit_distilled", deit(**SIZES))
    make_rotary_and_clip(args, vit)
    make_resnets(args, vit)
    make_coatnets(args)
    make_efficientnet(args)


def make_rotary_and_clip(args, vit):
    eva = peer("timm.models.eva").Eva
    rotary = {"use_rot_pos_emb": True, "ref_feat_shape": (4, 4), "swiglu_mlp": True}
    make(args, "timm_eva02", eva(**rotary, **SMALL))
    make(args, "timm_eva02_split", eva(qkv_fused=False, scale_mlp=True, scale_attn_inner=True, **rotary, **SMALL))
    layer_norm = functools.partial(torch.nn.LayerNorm, eps=1e-5)
    dinov3 = {"rope_type": "dinov3", "rope_temperature": 100, "rope_rotate_half": True, "use_rot_pos_emb": True}
    dinov3 |= {"use_abs_pos_emb": False, "num_reg_tokens": 4, "use_fc_norm": False, "init_values": 1.0}
    gated = {"swiglu_mlp": True, "swiglu_align_to": 8, "qkv_bias": False}
    make(args, "timm_dinov3_gated", eva(norm_layer=layer_norm, **dinov3, **gated, **SMALL))
    make(args, "timm_clip_quickgelu", vit(pre_norm=True, norm_layer=layer_norm, act_layer="quick_gelu", **SMALL))


def make_resnets(args, vit):
    """Makes models like timm's `vit_*_r26_*`, `vit_tiny_r_*` and `resnetv2_*_bit` with half the width."""
    hybrid, resnetv2 = peer("timm.models.vision_transformer_hybrid"), peer("timm.models.resnetv2")
    conv = functools.partial(hybrid.StdConv2dSame, eps=1e-8)
    options = {"stem_type": "same", "preact": False, "conv_layer": conv}
    resnet = resnetv2.ResNetV2((2, 1), width_factor=0.5, num_classes=0, global_pool="", **options)
    stem = resnetv2.create_resnetv2_stem(3, 32, **options)
    for name, backbone, patch_size in (("timm_hybrid", resnet, 1), ("timm_hybrid_stem", stem, 8)):
        embed = functools.partial(hybrid.HybridEmbed, backbone=backbone)
        make_resnet(args, name, vit(embed_layer=embed, patch_size=patch_size, dynamic_img_size=True, **TINY))
    conv = functools.partial(resnetv2.StdConv2d, eps=1e-8)
    bit = resnetv2.ResNetV2((2, 1), width_factor=0.5, num_classes=10, stem_type="fixed", conv_layer=conv)
    make_resnet(args, "timm_bit", bit)


def make_coatnets(args):
    """Makes models with the options of timm's `coatnet_0`, whose head has a hidden layer, and of its `rw` models."""
    timm = peer("timm")
    small = {"embed_dim": (8, 8, 16, 16), "depths": (1, 1, 2, 1), "stem_width": (4, 8), "img_size": (32, 64)}
    for name, more in {
        "coatnet_0": {"head_hidden_size": 12, "transformer_dim_head": 8},
        "coatnet_0_rw": {"transformer_init_values": 0.5, "transformer_dim_head": 8},
        "coatnet_rmlp_1_rw": {"transformer_dim_head": 8, "transformer_rel_pos_dim": 12},
        "coatnet_bn_0_rw": {"transformer_dim_head": 8},
    }.items():
        make_coatnet(args, f"timm_{name}", timm.create_model(f"{name}_224", num_classes=10, **small, **more))


def make_coatnet(args, name, module):
    def draw_large(shapes):
        # These kernels keep the scale of features for any number of inputs.
        return {
            key: array * np.float32(10 * math.prod(array.shape[1:]) ** -0.5 if array.ndim > 1 else 1)
            for key, array in draw(shapes).items()
        }

    shapes = {key: tuple(x.shape) for key, x in module.state_dict().items() if x.is_floating_point()}
    answers = runner(module, lambda images: {"logits": module(images)})
    write_or_check(args, f"{name}.safetensors", shapes, (2, 32, 64, 3), answers, draw_large)


def make_efficientnet(args):
    """Makes `tf_efficientnet_b0` and `efficientnet_b0` with the same weights and a tenth of the width."""
    make = peer("timm.models.efficientnet")._gen_efficientnet
    sizes = {"channel_multiplier": 0.1, "depth_multiplier": 0.3, "num_classes": 5}
    options = {"own/": {}, "official/": {"pad_type": "same", "bn_eps": 1e-3}}
    modules = {prefix: make("efficientnet_b0", **sizes, **each).eval() for prefix, each in options.items()}

    def answers(weights, images):
        found = {prefix: whole_and_cut(module)(weights, images) for prefix, module in modules.items()}
        return {prefix + key: array for prefix, arrays in found.items() for key, array in arrays.items()}

    def draw_efficientnet(shapes):
        counters = {key: np.zeros((), "int64") for key in shapes if key.endswith("num_batches_tracked")}
        arrays = draw(shapes) | counters
        # Norms with the statistics of images let the logits depend on the images.
        module = modules["official/"]
        module.load_state_dict({key: torch.from_numpy(array) for key, array in arrays.items()})
        for each in module.modules():
            if isinstance(each, torch.nn.BatchNorm2d):
                each.momentum = 1.0
        with torch.no_grad():
            module.train()(torch.randn(8, 3, 64, 96, generator=torch.Generator().manual_seed(0)))
        module.eval()
        return {key: x.numpy().copy() for key, x in module.state_dict().items()} | counters

    shapes = {key: tuple(x.shape) for key, x in modules["own/"].state_dict().items()}
    write_or_check(args, "timm_efficientnet.safetensors", shapes, (2, 64, 96, 3), answers, draw_efficientnet)


if __name__ == "__main__":
    main()
