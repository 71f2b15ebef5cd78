"""Makes vit_*, hybrid_*, bigvision_* and bit_*: random weights and the outputs of the official code.

Needs checkouts of google-research/vision_transformer (commit c6de1e5) and google-research/big_vision (commit 0127fb6),
which has BiT as well, with the lowest number around what its first pooling sees:

    pip install flax ml_collections safetensors ".[jax,tensorflow]"
    python tests/golden/make_official.py [--check] path/to/vision_transformer path/to/big_vision [NAME ...]

With --check it writes nothing, and runs the official codes on the weights that are kept.
"""

import importlib
import sys
import types

import jax
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict
from making import arguments, write_or_check

SIZES = {"hidden_size": 64, "patches": types.SimpleNamespace(size=(8, 8)), "num_classes": 10}
ENCODER = {"num_layers": 3, "mlp_dim": 128, "num_heads": 4, "dropout_rate": 0.0, "attention_dropout_rate": 0.0}
# Published files number all parts of a block together. Newer Flax numbers each kind of part separately.
PUBLISHED = {
    "LayerNorm_1": "LayerNorm_2",
    "MultiHeadDotProductAttention_0": "MultiHeadDotProductAttention_1",
    "MlpBlock_0": "MlpBlock_3",
}
PUBLISHED_NORM = {"scale": "gamma", "bias": "beta"}


def parameter_shapes(model, image_shape):
    variables = jax.eval_shape(lambda: model.init(jax.random.key(0), np.zeros(image_shape, "float32"), train=False))
    return {path: x.shape for path, x in flatten_dict(variables["params"]).items()}


def make(args, name, model, image_shape, name_of, answers):
    """Makes a model. `name_of` maps the Flax path of a parameter to its name in the file."""
    shapes = parameter_shapes(model, image_shape)

    def run(weights, images):
        params = unflatten_dict({path: weights[name_of(path)] for path in shapes})
        return answers({"params": params}, images)

    write_or_check(args, f"{name}.npz", {name_of(path): x for path, x in shapes.items()}, image_shape, run)


def published_name(path):
    return "/".join(PUBLISHED.get(part, part) for part in path)


def vision_transformer(args):
    sys.path.insert(0, str(args.vision_transformer))
    models_vit = importlib.import_module("vit_jax.models_vit")
    taps = {"embedding", "Transformer/encoder_norm", "pre_logits"}
    taps |= {f"Transformer/encoderblock_{i}" for i in range(ENCODER["num_layers"])}

    def case(name, image_shape, **changes):
        model = models_vit.VisionTransformer(transformer=ENCODER, **{**SIZES, **changes})

        def answers(variables, images):
            logits, state = model.apply(variables, images, train=False, capture_intermediates=True)
            calls = flatten_dict(state["intermediates"], sep="/")
            found = {f"tap/{tap}": calls[f"{tap}/__call__"][0] for tap in taps}
            return {"logits": logits, **found}

        make(args, name, model, image_shape, published_name, answers)

    def resnet(stages, width_factor):
        return types.SimpleNamespace(num_layers=stages, width_factor=width_factor)

    case("vit_token", (3, 32, 32, 3))
    case("vit_token_prelogits", (3, 32, 32, 3), representation_size=48)
    case("vit_gap", (3, 32, 32, 3), classifier="gap")
    case("vit_nonsquare", (3, 48, 24, 3), num_classes=7)
    patches = types.SimpleNamespace(size=(1, 1))
    case("hybrid_r50ish_patch1", (3, 64, 64, 3), resnet=resnet((1, 2, 1), 0.5), patches=patches)
    case("hybrid_stem_only_patch8", (3, 64, 64, 3), resnet=resnet((), 1))


def big_vision(args):
    sys.path.insert(0, str(args.big_vision))
    vit = importlib.import_module("big_vision.models.vit")

    def case(name, **changes):
        model = vit.Model(10, patch_size=(8, 8), width=64, depth=3, mlp_dim=128, num_heads=4, **changes)

        def answers(variables, images):
            logits, out = model.apply(variables, images)
            taps = ("stem", "with_posemb", "encoded", "head_input", "pre_logits")
            return {"logits": logits, **{f"tap/{tap}": out[tap] for tap in taps}}

        make(args, name, model, (3, 32, 32, 3), lambda path: "/".join(("params", *path)), answers)

    case("bigvision_tok", pool_type="tok")
    case("bigvision_gap_sincos2d", posemb="sincos2d")
    case("bigvision_map", pool_type="map")
    case("bigvision_gap_rep", rep_size=True)


def bit_name(path):
    """Returns the name of a parameter in BiT's files, which older code wrote."""
    *owner, part, kind = path
    if part == "head":
        return f"resnet/head/conv2d/{kind}"
    layer = "standardized_conv2d/kernel" if kind == "kernel" else f"group_norm/{PUBLISHED_NORM[kind]}"
    if part == "norm-pre-head":
        return f"resnet/{layer}"
    place = (
        {"conv_root": "", "conv_proj": "a/proj/"}.get(part) if part[-1].isalpha() else "abc"[int(part[-1]) - 1] + "/"
    )
    return f"resnet/{'/'.join(owner)}/{place}{layer}"


def bit(args):
    """Makes BiT with big_vision, which also reads the files of the first BiT code."""
    sys.path.insert(0, str(args.big_vision))
    bit_paper = importlib.import_module("big_vision.models.bit_paper")
    model = bit_paper.Model(10, width=0.5, depth=(2, 1, 1, 1))
    shape = (2, 64, 64, 3)

    def stored(path, shape):
        if path[0] == "head" and path[1] == "kernel":
            return (1, 1, *shape)
        return shape[-1:] if path[-1] in PUBLISHED_NORM else shape

    params = parameter_shapes(model, shape)

    def answers(weights, images):
        params = bit_paper.maybe_convert_big_transfer_format(unflatten_dict(weights, sep="/"))
        logits, out = model.apply({"params": params}, images)
        return {"logits": logits, "tap/stem": out["stem"], "tap/pre_logits": out["pre_logits"]}

    shapes = {bit_name(path): stored(path, x) for path, x in params.items()}
    write_or_check(args, "bit_2111_x0.5.npz", shapes, shape, answers)


if __name__ == "__main__":
    jax.config.update("jax_default_matmul_precision", "highest")
    args = arguments("vision_transformer", "big_vision")
    vision_transformer(args)
    big_vision(args)
    bit(args)
