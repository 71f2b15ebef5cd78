"""Makes timm_*: random weights, and what timm's own code computes with them.

    pip install timm safetensors
    python tests/golden/make_timm.py [--check] [NAME ...]

With timm 1.0.31; an empty torchvision will do. With --check it writes nothing, and runs timm on the weights that are
kept.
"""

import sys
from pathlib import Path

import torch
from making import arguments, write_or_check

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.peers import peer

SIZES = {
    "img_size": 32,
    "patch_size": 8,
    "embed_dim": 64,
    "depth": 3,
    "num_heads": 4,
    "mlp_ratio": 2,
    "num_classes": 10,
}


def make(args, name, module):
    module.eval()

    def answers(weights, images):
        module.load_state_dict({key: torch.from_numpy(array) for key, array in weights.items()})
        images = torch.from_numpy(images).permute(0, 3, 1, 2)
        with torch.no_grad():
            found = {"logits": module(images)}
            if name == "timm_vit":
                found["tap/features"] = module.forward_features(images)
            if name == "timm_deit_distilled":
                module.set_distilled_training(True)
                # Both heads apart come of a model in training alone; it has no dropout.
                found["cls_logits"], found["dist_logits"] = module.train()(images)
                module.eval()
        return {key: x.numpy() for key, x in found.items()}

    shapes = {key: tuple(x.shape) for key, x in module.state_dict().items()}
    write_or_check(args, f"{name}.safetensors", shapes, (3, 32, 32, 3), answers)


def main():
    vit = peer("timm.models.vision_transformer").VisionTransformer
    deit = peer("timm.models.deit").VisionTransformerDistilled
    args = arguments()
    make(args, "timm_vit", vit(**SIZES))
    make(args, "timm_vit_gap_fcnorm", vit(class_token=False, global_pool="avg", **SIZES))
    make(args, "timm_vit_reg4_layerscale", vit(reg_tokens=4, no_embed_class=True, init_values=1.0, **SIZES))
    make(args, "timm_vit_qknorm_map", vit(class_token=False, global_pool="map", qk_norm=True, **SIZES))
    make(args, "timm_deit_distilled", deit(**SIZES))


if __name__ == "__main__":
    main()
