"""Makes hf_*: folders of random weights and the outputs of transformers.

    pip install transformers torch
    python tests/golden/make_transformers.py [--check] [NAME ...]

With transformers 5.23.0. Each folder is as `save_pretrained` writes it; beside it, NAME.io.npz holds images (NHWC) and
the logits, or the pooled features and, as tap/..., the tokens after each block, or for images of another size than the
file's the output alone. All in float32, with eager attention.
With --check it writes nothing, and runs transformers on the folders that are kept.
"""

import numpy as np
import torch
import transformers
from making import HERE, arguments, compare, draw_module, spread

SIZES = {"num_attention_heads": 4, "image_size": 32, "patch_size": 8}
SMALL = {"hidden_size": 32, "num_hidden_layers": 2, **SIZES}
CLASSIFIER = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 3, "num_labels": 10, **SIZES}
CLASSIFIER |= {"layer_norm_eps": 1e-12}
TINY = {**SMALL, "intermediate_size": 48, "num_hidden_layers": 1}
GATED = {"use_swiglu_ffn": True, "mlp_ratio": 2, "num_labels": 10}
# The (height, width) of images whose size differs from that of the weights.
OTHER = (40, 24)
DINOV3 = {"num_register_tokens": 2, "use_gated_mlp": True, "hidden_act": "silu", **TINY}
BIT = {"embedding_size": 32, "hidden_sizes": [128, 256], "depths": [2, 1], "num_labels": 10}
# The model, its configuration, and the number of images or, for images of the other size, the name of the output.
CASES = {
    "hf_vit": ("ViTForImageClassification", CLASSIFIER, 3),
    "hf_deit_distilled": ("DeiTForImageClassificationWithTeacher", CLASSIFIER, 3),
    "hf_dinov2": ("Dinov2Model", {"mlp_ratio": 2, **SMALL}, 2),
    "hf_dinov2_reg2": ("Dinov2WithRegistersModel", {"mlp_ratio": 2, "num_register_tokens": 2, **SMALL}, 2),
    "hf_siglip": ("SiglipVisionModel", {"intermediate_size": 64, **SMALL}, 2),
    "hf_bit": ("BitForImageClassification", BIT, 2),
    "hf_clip": ("CLIPVisionModelWithProjection", {"projection_dim": 10, **TINY}, "image_embeds"),
    "hf_dinov2_gated": ("Dinov2ForImageClassification", SMALL | GATED, "logits"),
    "hf_dinov3_gated": ("DINOv3ViTModel", DINOV3, "pooler_output"),
    "hf_ijepa": ("IJepaForImageClassification", {"num_labels": 10, **TINY}, "logits"),
    "hf_mae": ("ViTMAEModel", {"mask_ratio": 0.0, **TINY}, "last_hidden_state"),
}


def answers(module, images, name):
    with torch.no_grad():
        if isinstance(name, str):
            # DINOv2 and DINOv3 accept any size without this option.
            options = {} if "dinov" in module.config.model_type else {"interpolate_pos_encoding": True}
            found = module.eval()(images, **options)[name]
            return {"features": (found[:, 0] if name == "last_hidden_state" else found).numpy()}
        output = module.eval()(images, output_hidden_states=True)
    if "logits" not in output:
        taps = {f"tap/block_{i:02d}": x for i, x in enumerate(output.hidden_states[1:])}
        found = {"features": output.pooler_output, **taps}
    elif "distillation_logits" in output:
        found = {"logits": output.logits, "cls_logits": output.cls_logits, "dist_logits": output.distillation_logits}
    else:
        found = {"logits": output.logits}
    if module.config.model_type == "bit":
        found["cut/logits"] = module(images[:, :, :37, :70]).logits.detach()
    return {key: x.numpy() for key, x in found.items()}


args = arguments()
for name in args.names or CASES:
    kind, settings, output = CASES[name]
    kind, path, options = getattr(transformers, kind), HERE / f"{name}.io.npz", {"attn_implementation": "eager"}
    config = kind.config_class(**settings)
    if args.check:
        io = dict(np.load(path))
        images = torch.from_numpy(io.pop("images")).permute(0, 3, 1, 2)
        compare(name, io, answers(kind.from_pretrained(HERE / name, **options), images, output))
        continue
    generator = torch.Generator().manual_seed(0)
    module = kind._from_config(config, **options)
    draw_module(module, generator)
    for key, parameter in module.named_parameters():
        if ".conv" in key:
            parameter.data = torch.from_numpy(spread(parameter.detach().numpy()))
    module.save_pretrained(HERE / name)
    batch, size = (2, OTHER) if isinstance(output, str) else (output, (SIZES["image_size"],) * 2)
    if config.model_type == "bit":
        size = (64, 96)
    images = torch.randn((batch, 3, *size), generator=generator)
    np.savez_compressed(path, images=images.permute(0, 2, 3, 1).numpy(), **answers(module, images, output))
