"""Makes the golden folders of DINOv2 and SigLIP: random weights, and what transformers' own code computes with them.

    pip install transformers
    python tests/golden/make_transformers.py

Each folder is as `save_pretrained` writes it; beside it, NAME.io.npz holds images (NHWC), the pooled features and, as
tap/..., the tokens after each block. All in float32, with eager attention.
"""

from pathlib import Path

import numpy as np
import torch
import transformers

HERE = Path(__file__).parent
SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "image_size": 32, "patch_size": 8}


def write(name, module):
    generator = torch.Generator().manual_seed(0)
    for key, parameter in sorted(module.named_parameters()):
        # Wide enough that a weight left out or in another's place is seen.
        centre = 1.0 if parameter.ndim == 1 and "bias" not in key else 0.0
        torch.nn.init.normal_(parameter, centre, 0.2, generator=generator)
    module = module.eval()
    module.save_pretrained(HERE / name)
    images = torch.randn((2, 3, SIZES["image_size"], SIZES["image_size"]), generator=generator)
    with torch.no_grad():
        output = module(images, output_hidden_states=True)
    taps = {f"tap/block_{i:02d}": x.numpy() for i, x in enumerate(output.hidden_states[1:])}
    images = images.permute(0, 2, 3, 1).numpy()
    np.savez_compressed(HERE / f"{name}.io.npz", images=images, features=output.pooler_output.numpy(), **taps)


write("hf_dinov2", transformers.Dinov2Model(transformers.Dinov2Config(mlp_ratio=2, **SIZES)))
write(
    "hf_dinov2_reg2",
    transformers.Dinov2WithRegistersModel(
        transformers.Dinov2WithRegistersConfig(mlp_ratio=2, num_register_tokens=2, **SIZES)
    ),
)
write("hf_siglip", transformers.SiglipVisionModel(transformers.SiglipVisionConfig(intermediate_size=64, **SIZES)))
