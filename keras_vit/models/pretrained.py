"""Builds the model that a checkpoint holds."""

import os
from collections.abc import Sequence

import keras

from keras_vit import arguments, variants
from keras_vit.config import DEFAULT_IMAGE_SIZE, ViTConfig, total_stride
from keras_vit.models.bit import BiT
from keras_vit.models.vit import ViT
from keras_vit.preprocessing import Preprocessing
from keras_vit.weights import zoo
from keras_vit.weights.checkpoint import Checkpoint
from keras_vit.weights.load import load_checkpoint

# The width of a head in every published ViT up to L, and in DeiT.
COMMON_HEAD_DIM = 64


def from_pretrained(
    path: str | os.PathLike,
    *,
    image_size: int | tuple[int, int] | tuple[None, None] | None = None,
    num_classes: int | None = None,
    num_heads: int | None = None,
    source: str | None = None,
    skip: str | Sequence[str] = (),
    grid: tuple[int, int] | None = None,
    position_resize: str | None = None,
    sha256: str | None = None,
    **kwargs,
) -> keras.Model:
    """Builds the model that a checkpoint holds and loads it: sizes from the shapes, settings from what the file says.

    The `normalization` layer carries the image preprocessing that the checkpoint was trained with. What no shape and no
    config says is taken from the table of published sizes or from the usual convention, and named under "assumed" in
    the report, which the logger "keras_vit" tells: as a warning where anything was assumed, resized, adapted, left out
    or is new.

    Args:
        path: Path of a file or folder as in `load_weights`, or the name of a published checkpoint, as
            "ViTB16.imagenet21k" (see `list_weights`), which is downloaded once.
        image_size: Int, (height, width), or (None, None) for any size at run time, in pixels. None takes the one that
            the file's config or its position embeddings tell; 224 if it has neither.
        num_classes: Int, the number of classes; 0 for no head. None takes the file's. With another number than the
            file's the head is new and zero, and a pre_logits layer goes with the old one.
        num_heads: Int, the heads of a block, where the file does not tell. None takes the file's, else that of the
            published size with the same widths and depth, else one for each 64 channels.
        source: As in `load_weights`.
        skip: As in `load_weights`.
        grid: As in `load_weights`.
        position_resize: As in `load_weights`.
        sha256: As in `load_weights`.
        **kwargs: Other arguments of `ViT` or `BiT`, which overrule what the file says: `dropout_rate`, `in_channels`,
            `patch_size`, `include_preprocessing`, `activation`, `mean`, `name`, ...

    Returns:
        A `keras.Model`, as `ViT` or `BiT` builds it.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If the file is damaged or of no known source, or does not tell something that must be passed.
        ImportError: If the file needs PyTorch to be read and there is none.

    Example:

    >>> model = keras_vit.from_pretrained("ViT-B_16.npz", image_size=384)  # doctest: +SKIP
    """
    row = zoo.find(os.fspath(path))
    checkpoint = Checkpoint(_local_path(path, row), source, grid, sha256)
    build, options, assumed = (
        _of_resnet(checkpoint)
        if not checkpoint.architecture.num_layers
        else _of_vit(checkpoint, image_size, num_classes, num_heads, position_resize)
    )
    if not checkpoint.says_preprocessing:
        assumed["preprocessing"] = ", ".join(f"{key} {value}" for key, value in checkpoint.preprocessing.items())
    options["in_channels"] = checkpoint.architecture.in_channels
    options["preprocessing"] = Preprocessing(**_of_channels(checkpoint.preprocessing, kwargs.get("in_channels", 3)))
    if row is not None:
        # What was assumed of the file is known of the checkpoint.
        assumed.pop("preprocessing", None)
        if row.source == "bit":
            options["image_size"] = row.resolution
            assumed.pop("image_size")
    options["num_classes"] = checkpoint.architecture.num_classes if num_classes is None else num_classes
    if image_size is not None:
        options["image_size"] = image_size
        assumed.pop("image_size", None)
    model = build(**{**options, **kwargs})
    allow = [name for name in ("activation", "layer_norm_epsilon", "pooling") if name in kwargs]
    report = load_checkpoint(model, checkpoint, skip=skip, allow=allow, position_resize=position_resize)
    report.assumed.update({name: how for name, how in assumed.items() if name not in kwargs})
    report.log()
    return model


def _local_path(path, row):
    if row is not None:
        return zoo.fetch(row)
    path = os.fspath(path)
    if not os.path.exists(path):
        raise FileNotFoundError(
            "Invalid value received for argument `path`. Expected a file or folder of weights, or the name of a "
            f'published checkpoint out of `list_weights`, as "ViTB16.imagenet21k". Received: {path!r}'
        )
    return path


def _of_channels(preprocessing, channels):
    """The constants for images of another number of channels than the weights': the mean of all channels for each."""
    return {
        key: sum(value) / len(value) if isinstance(value, (tuple, list)) and len(value) not in (1, channels) else value
        for key, value in preprocessing.items()
    }


def _of_resnet(checkpoint):
    sizes = checkpoint.architecture
    if not sizes.stages:
        raise ValueError(f"Expected a ViT or a ResNet in {checkpoint.path!r}. Received: {sizes}")
    # Any variant's name does, since its sizes are passed; it also names the model.
    variant = (sizes.name or "BiT-R50x1").removeprefix("BiT-")
    assumed = {
        "image_size": f"{DEFAULT_IMAGE_SIZE}, which the file does not tell",
        "pool_padding": "'lowest', which the file does not tell",
    }
    return BiT, {"variant": variant, "stages": sizes.stages, "width_factor": sizes.width_factor}, assumed


def _of_vit(checkpoint, image_size, num_classes, num_heads, position_resize):
    """The builder, its arguments as the file has them, and {argument: how it was assumed}."""
    sizes, weights, assumed = checkpoint.architecture, checkpoint.weights, {}
    any_size = image_size is not None and arguments.image_size(image_size) == (None, None)
    unknown = [name for name in ("hidden_dim", "mlp_dim", "patch_size") if getattr(sizes, name) is None]
    if unknown:
        raise ValueError(f"Cannot tell {' and '.join(unknown)} from the shapes in {checkpoint.path!r}.")
    has_class_token = "class_token/tokens" in weights
    options = {
        "variant": (sizes.name or "B/16").replace("ViT-", ""),
        "hidden_dim": sizes.hidden_dim,
        "num_layers": sizes.num_layers,
        "mlp_dim": sizes.mlp_dim,
        "patch_size": sizes.patch_size,
        "num_heads": _num_heads(checkpoint, num_heads, assumed),
        "class_token": has_class_token,
        "class_token_position": checkpoint.num_prefix_positions > 0,
        "distillation_token": "distillation_token/tokens" in weights,
        "distillation_head": "head_dist/kernel" in weights or "head/kernel" not in weights,
        "num_registers": weights["registers/tokens"][1] if "registers/tokens" in weights else 0,
        "qk_norm": "block_00/attention/query_norm/gamma" in weights,
        "norm_after_pooling": "fc_norm/gamma" in weights,
    }
    options["head_dim"] = options["hidden_dim"] // options["num_heads"]
    if not sizes.name:
        options["name"] = "vit"
    if sizes.stages is not None:
        options |= {"stages": sizes.stages, "width_factor": sizes.width_factor}
    if "block_00/layer_scale_1/gamma" in weights:
        # The file's values replace it.
        options["layer_scale_init"] = 1.0
    if "pre_logits/kernel" in weights and num_classes in (None, sizes.num_classes):
        options["representation_size"] = weights["pre_logits/kernel"][1]
    options["pooling"] = checkpoint.settings["pooling"]
    if options["pooling"] is None:
        options["pooling"] = "token" if has_class_token and not options["norm_after_pooling"] else "gap"
        assumed["pooling"] = f"{options['pooling']!r}, which the file does not tell"
    elif options["pooling"] == "none":
        options["pooling"] = None
    if checkpoint.source.name == "timm" and not checkpoint.says_settings:
        assumed["activation"] = f"{checkpoint.settings['activation']!r}, timm's usual one"
    if any_size:
        options |= {"grid_size": checkpoint.grid_size, "position_interpolation": position_resize}
        if position_resize is None:
            options["position_interpolation"] = checkpoint.position_resize
    if "position_embedding/embeddings" not in weights:
        options["position_embedding"] = "sincos2d" if checkpoint.source.name == "big_vision" else "none"
        assumed["position_embedding"] = f"{options['position_embedding']!r}, since the file has no table of positions"
    for name, default in (("activation", ViTConfig.activation), ("layer_norm_epsilon", 1e-6)):
        options[name] = checkpoint.settings[name]
        if options[name] is None:
            options[name] = default
            assumed[name] = f"{default!r}, which {checkpoint.source.name} files do not tell"
    if image_size is None:
        options["image_size"] = _image_size(checkpoint, assumed)
    return ViT, options, assumed


def _num_heads(checkpoint, num_heads, assumed):
    sizes = checkpoint.architecture
    if num_heads is not None:
        return arguments.positive_int("num_heads", num_heads)
    if sizes.num_heads is not None:
        return sizes.num_heads
    published = variants.num_heads_of(sizes.hidden_dim, sizes.num_layers, sizes.mlp_dim)
    if published is not None:
        assumed["num_heads"] = f"{published}, those of the published size with these widths and depth"
        return published
    if sizes.hidden_dim % COMMON_HEAD_DIM:
        raise ValueError(
            f"{checkpoint.path!r} does not tell the number of attention heads, and its {sizes.hidden_dim} channels are "
            f"no multiple of {COMMON_HEAD_DIM}. Pass num_heads."
        )
    assumed["num_heads"] = f"{sizes.hidden_dim // COMMON_HEAD_DIM}, one for each {COMMON_HEAD_DIM} channels"
    return sizes.hidden_dim // COMMON_HEAD_DIM


def _image_size(checkpoint, assumed):
    """The size in the file's config, else that of its grid of whole patches."""
    if checkpoint.image_size is not None:
        return checkpoint.image_size
    sizes = checkpoint.architecture
    if checkpoint.grid_size is None:
        if "position_embedding/embeddings" in checkpoint.weights:
            raise ValueError(
                f"The number of position embeddings in {checkpoint.path!r} is no square: pass grid=(rows, columns) of "
                "the file and, if it is to be another, image_size."
            )
        assumed["image_size"] = f"{DEFAULT_IMAGE_SIZE}, since the file has no table of positions"
        return DEFAULT_IMAGE_SIZE
    if checkpoint.source.name == "keras" and not checkpoint.says_grid:
        assumed["image_size"] = f"that of a grid of {checkpoint.grid_size[0]} x {checkpoint.grid_size[1]} patches"
    stride = 1 if sizes.stages is None else total_stride(sizes.stages)
    return tuple(n * patch * stride for n, patch in zip(checkpoint.grid_size, sizes.patch_size, strict=True))
