"""Loads checkpoints into models of the same settings."""

import os
from collections.abc import Sequence

import keras

from keras_vit.config import config_of
from keras_vit.models.catalog import CHECKPOINTS, identify, read_config
from keras_vit.models.checkpoint import open_file
from keras_vit.models.coatnet.checkpoint import TABLE
from keras_vit.models.model_settings import (
    allowed_settings,
    describe_sizes,
    fields_of,
    heads_of,
    sizes_of,
    sizes_of_file,
)
from keras_vit.models.vit.checkpoint import positions_for
from keras_vit.weights.load import Layout, Plan
from keras_vit.weights.report import LoadReport
from keras_vit.weights.tokens import weights_of


def load_weights(
    model: keras.Model,
    path: str | os.PathLike,
    *,
    source: str | None = None,
    skip: str | Sequence[str] = (),
    allow: str | Sequence[str] = (),
    grid_size: tuple[int, int] | None = None,
    position_interpolation: str | None = None,
    sha256: str | None = None,
) -> LoadReport:
    """Loads a checkpoint from any supported code base into a model of this package.

    Nothing is loaded unless every weight of the file and the model is accounted for. Position embeddings are resized as
    in the source's code, the patch-embedding kernel by FlexiViT's pseudo-inverse resize; its channels are summed for 1,
    or tiled and rescaled for N. Prefix tokens absorb position embeddings that the model's table has no rows for, and
    missing rows are zero. If the numbers of classes differ, the head is set to zero, and a pre_logits layer that only
    the file has is left out.

    Args:
        model: A model of a family of this package but VT-ResNet.
        path: Path of the file: an .npz of the official code, big_vision or BiT; a state dict of timm or DeiT as
            .safetensors or .pth (no code in it is run); a folder of timm or Hugging Face; Keras' .weights.h5; weights
            of EfficientNets of keras.applications (.h5); or a checkpoint of TensorFlow 1, by its folder or its .index,
            which needs TensorFlow. Or a hub's name, whose files are downloaded once:
            `hf://owner/name[@revision][/file or folder]` (a branch, tag or commit) or
            `kaggle://owner/model/framework/variation[/version][/file]`.
        source: "official", "big_vision", "bit", "timm", "timm_bit", "timm_coatnet", "timm_efficientnet", "deit",
            "huggingface" (its ViT and DeiT), "huggingface_bit", "dinov2", "siglip", "dinov3", "clip" (all Hugging
            Face's), "dino", "dinov2_original", "dinov3_original", "mae", "ijepa", "eva02", "openai_clip", "open_clip",
            "open_clip_timm", "efficientnet" (the official checkpoints), "keras_applications" or "keras". None:
            recognised by the file's keys.
        skip: Names of layers to leave out on both sides, such as ("head",). A skipped head is set to zero; other
            layers keep the model's weights.
        allow: Settings that may differ although they change the outputs: "activation", "layer_norm_epsilon", "pooling",
            "position_embedding", "rotary_embedding", "rotary_grid", "key_bias", "resnet_epsilons", "pool_padding",
            "padding", "batch_norm_epsilon".
        grid_size: (rows, columns) of the file's position embeddings, if neither square nor stated by the file.
        position_interpolation: "linear" (official code, big_vision), "bicubic" (DeiT, Hugging Face),
            "bicubic_antialias" (timm) or "bicubic_offset" (DINO); for the tables of CoAtNet "bilinear" (its paper) or
            "geometric" (timm). None: as in the source's code.
        sha256: The expected SHA-256, in hexadecimal digits. None: as in `<path>.sha256` or Hugging Face's cache.
            Without any, and without checksums in the format, files with a weight above 10,000 or below -10,000 are
            refused.

    Returns:
        A `LoadReport`, which prints what was loaded, resized, adapted and skipped.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If the file is damaged, of no known source, holds NaN or was trained with other settings, or the
            model's preprocessing is folded. If it does not fit: `WeightsMismatchError`. The model stays unchanged.
        ImportError: If the file needs PyTorch, which is not installed.

    Example:

    >>> model = keras_vit.ViTB16(image_size=384, num_classes=17)
    >>> print(keras_vit.load_weights(model, "ViT-B_16.npz"))  # doctest: +SKIP

    Reference: arXiv 2010.11929, section 3.2; the official code's `load_pretrained`.
    """
    _, file = identify(open_file(path, sha256), source)
    found = read_config(file, grid_size)
    options = {"skip": skip, "allow": allow, "position_interpolation": position_interpolation}
    return load_file(model, file, found, whole=True, **options)


def load_file(model, file, found, *, skip=(), allow=(), position_interpolation=None, whole=False):
    """Loads a `CanonicalFile` with this `Found`; otherwise like `load_weights`. `whole` is as in `Plan.load`."""
    if any(getattr(layer, "folded", False) for layer in model.layers):
        raise ValueError(
            f"Expected a model whose preprocessing is not folded into its weights. Received: model {model.name!r}. "
            "Load the weights into the model that fold_preprocessing was called on, and fold it again."
        )
    here = _layout_of(model)
    plan = Plan(model, file, _layout_of_file(file, found, here), here, skip, position_interpolation)
    exempt = set(allowed_settings(allow))
    if "head/kernel" not in plan.rows or "class_token" in plan.dropped:
        # The pooling may differ with a new head, or without the class token.
        exempt.add("pooling")
    if "position_embedding" in plan.dropped:
        exempt.add("position_embedding")
    if found.get("key_bias") is False:
        # The biases of the keys are set to zero, which computes the same.
        exempt.add("key_bias")
    names = [name for name in CHECKPOINTS[file.source.family].SETTINGS if name not in exempt]
    for name, theirs, ours in found.differences(fields_of(model), names):
        raise ValueError(
            f"{file.path!r} was trained with {name}={theirs!r}, and model {model.name!r} was built with "
            f"{name}={ours!r}. Nothing was loaded. Build the model with {name}={theirs!r}, or call "
            f"load_weights with allow=({name!r},) to load it nevertheless."
        )
    return plan.load(whole)


def _layout_of(model):
    """Returns the `Layout` of a model."""
    sizes, config = sizes_of(model), config_of(model)
    tables = [weight for weight in weights_of(model) if weight.endswith(TABLE)]
    positions = {layer.name: layer for layer in model.layers}.get("position_embedding")
    return Layout(
        *heads_of(sizes),
        sizes["num_classes"],
        sizes["grid_size"],
        getattr(positions, "num_prefix_positions", 0),
        getattr(config, "position_interpolation", "linear"),
        {weight: config.grid(int(weight.split("_")[1])) for weight in tables},
        sizes,
        describe_sizes(sizes),
    )


def _layout_of_file(file, found, here):
    """Returns the `Layout` of a checkpoint that is loaded into a model with the `Layout` `here`."""
    sizes = sizes_of_file(file, found)
    prefix, grid = positions_for(file, found.positions, here.grid, here.num_prefix_positions)
    return Layout(
        sizes["num_heads"],
        None,
        sizes["num_classes"],
        grid,
        prefix,
        found.position_interpolation,
        found.tables,
        sizes,
        describe_sizes(sizes),
    )
