"""What a model and a file are made of, read from the model's layers and from the file's shapes."""

import math
import re
from typing import NamedTuple

from keras_vit import variants
from keras_vit.config import ViTConfig
from keras_vit.preprocessing import carrier_of
from keras_vit.record import config_of


class Architecture(NamedTuple):
    """Sizes that decide whether a file fits a model. None where there is none, or where it could not be told."""

    hidden_dim: int | None = None
    num_layers: int = 0
    num_heads: int | None = None
    head_dim: int | None = None
    mlp_dim: int | None = None
    patch_size: tuple | None = None
    in_channels: int | None = None
    num_classes: int = 0
    grid_size: tuple | None = None
    # The ResNet: units of each stage, and its width as a multiple of the common one; None without a ResNet.
    stages: tuple | None = None
    width_factor: float | None = None

    @property
    def name(self):
        """The name of the variant, as "ViT-L/16" or "BiT-R50x1", or None if it is none of the published ones."""
        return variants.name_of(self)

    @property
    def heads(self):
        """(num_heads, head_dim)."""
        return self.num_heads, self.head_dim

    def __str__(self):
        def by(size):
            return "unknown" if size is None else f"{size[0]} x {size[1]}"

        parts = []
        if self.stages is not None:
            parts.append(f"a ResNet of stages {self.stages}, width factor {self.width_factor:g}")
        if self.num_layers:
            parts.append(
                f"hidden_dim {self.hidden_dim}, {self.num_layers} blocks, {self.num_heads or '?'} heads, "
                f"mlp_dim {self.mlp_dim}, patch {by(self.patch_size)}, grid {by(self.grid_size)}"
            )
        text = ", ".join([*parts, f"{self.num_classes} classes"])
        return f"{self.name} ({text})" if self.name else text


def of_model(model):
    """Reads the Architecture of a model of this package's builders.

    Raises:
        ValueError: If the model has no blocks, patch embedding or ResNet by the builders' names.
    """
    found = {layer.name: layer for layer in model.layers}
    expected = ("root_conv", "stage_1_unit_01") if "root_conv" in found else ("patch_embedding", "block_00")
    if "patch_embedding" in found:
        expected = ("patch_embedding", "block_00")
    missing = [name for name in expected if name not in found]
    if missing:
        raise ValueError(
            "Expected a ViT of this package's builders, with layers named patch_embedding, block_00, ... "
            f"Received: model {model.name!r} without {' and '.join(missing)}; its layers are {', '.join(found)}. "
            "Where one of them holds the ViT, pass that: model.get_layer(...)."
        )
    config = config_of(model)
    sizes = {name: getattr(config, name) for name in Architecture._fields if hasattr(config, name)}
    if isinstance(config, ViTConfig):
        block = found["block_00"].attention
        positions = found.get("position_embedding")
        sizes |= {"head_dim": block.key_dim, "grid_size": positions and positions.grid_size}
        sizes["width_factor"] = None if config.stages is None else config.width_factor
        # Of a model that ends early, those that it has.
        sizes["num_layers"] = sum(name in found for name in config.block_names)
    # Of a head of the user's own as well, if it is called so.
    sizes["num_classes"] = getattr(found.get("head"), "units", 0)
    return Architecture(**sizes)


def of_shapes(shapes, heads=(None, None), grid_size=None):
    """Reads the Architecture from the shapes of a model's weights, whether they lie in a model or in a file.

    Args:
        shapes: Dict from the weights' paths in the model to their shapes.
        heads: (num_heads, head_dim) where they are known.
        grid_size: (rows, columns) of the position embeddings where it is known.
    """

    def size(weight, rank, axis):
        shape = shapes.get(weight)
        return shape[axis] if shape is not None and len(shape) == rank else None

    patch = tuple(size("patch_embedding/kernel", 4, axis) for axis in (0, 1))
    layers = {weight.split("/")[0] for weight in shapes}
    hidden_dim = size("patch_embedding/kernel", 4, 3)
    root_width = size("root_conv/kernel", 4, 3)
    return Architecture(
        hidden_dim=hidden_dim,
        num_layers=sum(bool(re.fullmatch(r"block_\d+", name)) for name in layers),
        num_heads=heads[0],
        head_dim=heads[1],
        mlp_dim=size("block_00/mlp/dense_1/kernel", 2, 1),
        patch_size=None if None in patch else patch,
        in_channels=size("patch_embedding/kernel" if root_width is None else "root_conv/kernel", 4, 2),
        num_classes=size("head/bias", 1, 0) or 0,
        grid_size=grid_size,
        stages=None if root_width is None else _stages(layers),
        width_factor=None if root_width is None else root_width / variants.ROOT_WIDTH,
    )


def _stages(layers):
    """How many units each stage has, from the names of the layers."""
    units = [tuple(map(int, m.groups())) for m in (re.fullmatch(r"stage_(\d+)_unit_(\d+)", n) for n in layers) if m]
    return tuple(sum(stage == i for stage, _ in units) for i in sorted({stage for stage, _ in units}))


def square_grid(count):
    """The square grid of that many patches, or None if their number is no square."""
    side = math.isqrt(count) if count > 0 else 0
    return (side, side) if side and side * side == count else None


# Tokens that stand before the patches and may have a position embedding, in their order.
PREFIX_TOKENS = ("class_token/tokens", "distillation_token/tokens")
REGISTERS = ("registers/tokens",)


def rows_of_tokens(rows, counts, kept):
    """Yields (weight, its rows) for the prefix tokens whose positions a table has no room for.

    To add the rows to the tokens themselves computes the same.

    Args:
        rows: The positions of prefix tokens, (1, positions, hidden_dim).
        counts: Dict from the weights of the prefix tokens, in their order, to how many tokens each holds.
        kept: Int, how many of the positions, from the first, the table keeps.
    """
    start = 0
    for weight, count in counts.items():
        own = rows[:, start : start + count]
        if start >= kept and own.size:
            yield weight, own
        start += count


def weights_of(model):
    """Returns {path: variable}, as in {"block_00/attention/qkv/kernel": ...}, for each weight of the model.

    The paths begin at the layer, whatever scope the model was built in.
    """
    return {
        f"{layer.name}/{variable.path.rpartition(f'{layer.name}/')[2]}": variable
        for layer in model.layers
        for variable in layer.weights
    }


SETTINGS = ("activation", "layer_norm_epsilon", "pooling")


def settings_of(model):
    """The settings of a model by which the same weights compute something else: {} where it has no blocks."""
    config = config_of(model)
    if not isinstance(config, ViTConfig):
        return {}
    return {
        "activation": config.activation if isinstance(config.activation, str) else repr(config.activation),
        "layer_norm_epsilon": config.layer_norm_epsilon,
        "pooling": _pooling(model, config) or "none",
    }


def _pooling(model, config):
    """How a model pools; None where it goes on from the tokens in a way of its user's own."""
    return config.pooling if any(layer.name == "pooling" for layer in model.layers) else None


def differences(model, settings, allow):
    """Yields (name, the model's value, the other's) for each setting by which the same weights compute something else.

    Args:
        model: A model of this package's builders.
        settings: Dict of the settings that the weights come from or go to; a value None is not known.
        allow: Names of settings that may differ.

    Raises:
        ValueError: If `allow` names anything but such a setting.
    """
    allow = (allow,) if isinstance(allow, str) else tuple(allow)
    unknown = [name for name in allow if name not in SETTINGS]
    if unknown:
        raise ValueError(
            f"Invalid value received for argument `allow`. Expected names out of {SETTINGS}. Received: {unknown}"
        )
    for name, here in settings_of(model).items():
        there = settings.get(name)
        if name not in allow and there is not None and here != there:
            yield name, here, there


def unwritten(model, source):
    """Yields what a model computes that neither its weights nor their names show, so that no file can say it.

    Args:
        model: A model of this package's builders.
        source: Name of the source whose code is to read the file.
    """
    if carrier_of(model).folded:
        yield "preprocessing folded into its patch embedding"
    config = config_of(model)
    if not isinstance(config, ViTConfig):
        return
    # Without a table big_vision's code takes sines and cosines, and no other's does.
    if config.position_embedding == ("none" if source == "big_vision" else "sincos2d"):
        yield f'position_embedding="{config.position_embedding}"'
    pooling = _pooling(model, config)
    if pooling is None:
        yield "pooling=None"
    if pooling == "gap" and config.class_token and not config.norm_after_pooling:
        yield 'pooling="gap" beside a class token'
