"""Finds the config of a model."""

import re

import keras

from keras_vit.config import BiTConfig, ViTConfig
from keras_vit.model_config import ModelConfig
from keras_vit.preprocessing import carrier_of
from keras_vit.variants import ROOT_WIDTH


def config_of(model: keras.Model) -> ModelConfig:
    """Returns the config of a model, or of the model of this package that it extends or contains.

    Args:
        model: A functional or Sequential `keras.Model`.

    Returns:
        A config, such as a `ViTConfig`. A new head does not change it; if the model contains several models, it is that
        of the first.

    Raises:
        ValueError: If no layer stores a config.

    Example:

    >>> backbone = keras_vit.ViTTi16(num_classes=0)
    >>> model = keras.Model(backbone.input, keras.layers.Dense(5)(backbone.output))
    >>> keras_vit.config_of(model).hidden_dim
    192
    """
    carrier = carrier_of(model)
    if getattr(carrier, "config", None) is not None:
        return carrier.config
    owner = None if carrier is None else _owner(model, carrier)
    names = {layer.name for layer in owner.layers} if owner else set()
    if not names >= {"patch_embedding", "block_00"} and not names >= {"root_conv", "root_pool", "stage_1_unit_01"}:
        raise ValueError(
            "Expected a model of this package's builders, or one that extends or contains it. Received: model "
            f"{model.name!r}, none of whose layers carries a record; they are "
            f"{', '.join(layer.name for layer in model.layers)}"
        )
    return _of_version_0_1(owner, carrier)


def _owner(model, layer):
    """Returns the model that directly holds a layer: the given one or one nested in it."""
    if layer in model.layers:
        return model
    within = (_owner(inner, layer) for inner in model.layers if isinstance(inner, keras.Model))
    return next((found for found in within if found is not None), None)


def _of_version_0_1(model, carrier):
    """Derives the config of a model saved before configs were stored, from its layers."""
    found = {layer.name: layer for layer in model.layers}
    head = found.get("head")
    fields = {
        "image_size": model.input_shape[1:3],
        "in_channels": model.input_shape[3],
        "num_classes": getattr(head, "units", 0),
        "classifier_activation": getattr(head, "activation", None),
        "preprocessing": carrier.preprocessing,
        "class_names": carrier.class_names,
        "multi_label": carrier.multi_label,
    }
    if "root_conv" in found:
        units = [re.fullmatch(r"stage_(\d+)_unit_\d+", name) for name in found]
        stages = [int(match[1]) for match in units if match]
        fields["stages"] = tuple(stages.count(stage) for stage in sorted(set(stages)))
        fields["width_factor"] = found["root_conv"].filters / ROOT_WIDTH
    if "patch_embedding" not in found:
        return BiTConfig(**fields, pool_padding=found["root_pool"].padding)
    blocks = [layer for name, layer in found.items() if re.fullmatch(r"block_\d+", name)]
    block, embedding, pooling = blocks[0], found["patch_embedding"], found.get("pooling")
    fields |= {
        "patch_size": embedding.patch_size,
        "hidden_dim": embedding.hidden_dim,
        "num_layers": len(blocks),
        "num_heads": block.num_heads,
        "head_dim": embedding.hidden_dim // block.num_heads,
        "mlp_dim": block.mlp_dim,
        "activation": block.activation,
        "layer_norm_epsilon": block.layer_norm_epsilon,
        "layer_scale_init": block.layer_scale_init,
        "qk_norm": block.qk_norm,
        "class_token": "class_token" in found,
        "distillation_token": "distillation_token" in found,
        "distillation_head": "pooling_dist" in found,
        "num_registers": found["registers"].num_tokens if "registers" in found else 0,
        "norm_after_pooling": "fc_norm" in found,
        "representation_size": getattr(found.get("pre_logits"), "units", None),
        # Attention pooling has no `method` attribute.
        "pooling": None if pooling is None else getattr(pooling, "method", "map"),
        "position_embedding": "relative" if block.max_relative_distance else "none",
    }
    fields["return_both_heads"] = fields["distillation_head"] and bool(head) and "mean_of_heads" not in found
    if positions := found.get("position_embedding"):
        fields |= {
            "position_embedding": positions.method,
            "position_interpolation": positions.interpolation,
            "class_token_position": positions.num_prefix_positions > 0 or not fields["class_token"],
            "grid_size": positions.grid_size if None in model.input_shape[1:3] else None,
        }
    return ViTConfig(**fields)
