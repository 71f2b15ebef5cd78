"""What a model and a file are made of, read from the model's layers and from the file's shapes."""

import math
import re
from typing import NamedTuple


class Architecture(NamedTuple):
    """Sizes that decide whether a file fits a model. None where they could not be told."""

    hidden_dim: int | None
    num_layers: int
    num_heads: int | None
    head_dim: int | None
    mlp_dim: int | None
    patch_size: tuple | None
    in_channels: int | None
    num_classes: int
    grid_size: tuple | None

    def __str__(self):
        def by(size):
            return "unknown" if size is None else f"{size[0]} x {size[1]}"

        return (
            f"hidden_dim {self.hidden_dim}, {self.num_layers} blocks, {self.num_heads} heads, mlp_dim {self.mlp_dim}, "
            f"patch {by(self.patch_size)}, grid {by(self.grid_size)}, {self.num_classes} classes"
        )


def of_model(model):
    """Reads the Architecture of a ViT of this package's builders.

    Raises:
        ValueError: If the model has no blocks or patch embedding by the builders' names.
    """
    found = {layer.name: layer for layer in model.layers}
    missing = [name for name in ("patch_embedding", "block_00") if name not in found]
    if missing:
        raise ValueError(
            "Expected a ViT of this package's builders, with layers named patch_embedding, block_00, ... "
            f"Received: model {model.name!r} without {' and '.join(missing)}; its layers are {', '.join(found)}. "
            "Where one of them holds the ViT, pass that: model.get_layer(...)."
        )
    patch_embedding, block = found["patch_embedding"], found["block_00"]
    position_embedding = found.get("position_embedding")
    return Architecture(
        hidden_dim=patch_embedding.hidden_dim,
        num_layers=sum(bool(re.fullmatch(r"block_\d+", name)) for name in found),
        num_heads=block.attention.num_heads,
        head_dim=block.attention.key_dim,
        mlp_dim=block.mlp.mlp_dim,
        patch_size=patch_embedding.patch_size,
        in_channels=patch_embedding.kernel.shape[2],
        num_classes=found["head"].units if "head" in found else 0,
        grid_size=position_embedding and position_embedding.grid_size,
    )


def of_shapes(shapes, source, grid_size=None):
    """Reads the Architecture of a file from the shapes of its arrays.

    Args:
        shapes: Dict from the file's canonical keys to their shapes.
        source: The Source whose keys they are.
        grid_size: (rows, columns) of the position embeddings where it is known.
    """

    def shape(weight, rank, key=0):
        found = shapes.get(source.find(weight).keys[key], ())
        return found if len(found) == rank else (None,) * rank

    kernel = shape("patch_embedding/kernel", 4)
    query = shape("block_00/attention/qkv/kernel", 3)
    blocks = {source.layer_of(key) for key in shapes}
    return Architecture(
        hidden_dim=kernel[3],
        num_layers=sum(str(name).startswith("block_") for name in blocks),
        num_heads=query[1],
        head_dim=query[2],
        mlp_dim=shape("block_00/mlp/dense_1/kernel", 2)[1],
        patch_size=None if None in kernel else kernel[:2],
        in_channels=kernel[2],
        num_classes=shape("head/bias", 1)[0] or 0,
        grid_size=grid_size,
    )


def num_patch_positions(shapes, source):
    """How many of a file's position embeddings belong to patches; 0 if it has none."""
    positions = shapes.get(source.find("position_embedding/embeddings").keys[0], ())
    return max(positions[1] - num_prefix_positions(shapes, source), 0) if len(positions) == 3 else 0


def square_grid(count):
    """The square grid of that many patches, or None if their number is no square."""
    side = math.isqrt(count)
    return (side, side) if side and side * side == count else None


def num_prefix_positions(shapes, source):
    """How many of a file's position embeddings belong to prefix tokens."""
    tokens = shapes.get(source.find("class_token/tokens").keys[0])
    return tokens[1] if tokens is not None and len(tokens) == 3 else 0


def weights_of(model):
    """Returns {path: variable}, as in {"block_00/attention/qkv/kernel": ...}, for each weight of the model.

    The paths begin at the layer, whatever scope the model was built in.
    """
    return {
        f"{layer.name}/{variable.path.rpartition(f'{layer.name}/')[2]}": variable
        for layer in model.layers
        for variable in layer.weights
    }


SETTINGS = ("activation", "layer_norm_epsilon")


def differences(model, source, allow):
    """Yields (name, the model's value, the source's) for each setting by which the same weights compute something else.

    Args:
        model: A ViT of this package's builders.
        source: The Source whose code the weights come from or go to.
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
    config = model.get_layer("block_00").get_config()
    for name in SETTINGS:
        if name not in allow and config[name] != getattr(source, name):
            yield name, config[name], getattr(source, name)


def unwritten(model):
    """Yields what a model computes that neither its weights nor their names show, so that no file can say it."""
    found = {layer.name: layer for layer in model.layers}
    if getattr(found.get("position_embedding"), "method", None) == "sincos2d":
        yield 'position_embedding="sincos2d"'
    if getattr(found.get("pooling"), "method", None) == "gap" and "class_token" in found:
        yield 'pooling="gap" beside a class token'
