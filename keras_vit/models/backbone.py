"""Finds the backbone within a model, and the layers around it."""

from typing import NamedTuple

import keras

from keras_vit import arguments
from keras_vit.config import config_of, find_normalization
from keras_vit.models.catalog import FAMILIES
from keras_vit.models.graph import is_graph, nodes_before, operations_before, producing_call

# The names of the heads. If a model has both, "head" reads the class token, and "head_dist" the distillation token.
HEADS = ("head", "head_dist")


class BackboneParts(NamedTuple):
    """The layers of a model, grouped by their place in or around the backbone.

    Each layer is in exactly one of the first four lists.
    """

    below: list  # before the blocks: normalization, a hybrid's ResNet, embeddings
    blocks: list  # in order
    above: list  # between the last block and the head: norm, pooling, pre_logits
    others: list  # the heads, and the layers of outer models around a nested backbone
    models: list  # from the outermost model, through nested models, to the backbone


def find_parts(model):
    """Returns the `BackboneParts` of a model; raises ValueError if it contains no backbone, or more than one."""
    ways = list(_ways_to_blocks(model))
    if len(ways) != 1:
        names = ", ".join(layer.name for layer in model.layers)
        how_many = f"{len(ways)} such models in it" if ways else f"the layers {names}"
        raise ValueError(
            "Expected a model built by keras_vit, or a model that contains exactly one such model. "
            f"Received: model {model.name!r} with {how_many}."
        )
    models = ways[0]
    backbone = models[-1]
    blocks = _blocks(backbone)
    before = {id(operation) for operation in operations_before(backbone, blocks[-1])}
    parts = BackboneParts([], blocks, [], [], models)
    for layer in backbone.layers:
        if layer in blocks:
            continue
        if id(layer) in before:
            parts.below.append(layer)
        elif layer.name in FAMILIES[config_of(backbone).family].above:
            parts.above.append(layer)
        else:
            parts.others.extend(_flat(layer))
    for outer in models[:-1]:
        parts.others.extend(inner for layer in outer.layers if layer not in models for inner in _flat(layer))
    return parts


def _parts_or_none(model):
    try:
        return find_parts(model)
    except ValueError:
        return None


def head_inputs(model):
    """Returns the symbolic tensors that a model's backbone passes to other layers; [] if there is no backbone."""
    parts = _parts_or_none(model)
    if parts is None:
        return []
    own = {id(layer) for layer in (*parts.below, *parts.blocks, *parts.above, *parts.models)}
    found = {
        id(x): x
        for operation, inputs in nodes_before(model.outputs)
        for x in inputs
        if id(operation) not in own and id(producing_call(x)[0]) in own
    }
    return list(found.values())


def head_within(model):
    """Returns True if the backbone is in a nested model, and this nested model has a head with weights."""
    parts = _parts_or_none(model)
    if parts is None or len(parts.models) == 1:
        return False
    inner = parts.models[-1].layers
    return any(layer.weights for layer in parts.others if layer in inner)


def gives_features(model):
    """Returns True if a model outputs the features of a backbone, without a head."""
    last = _last_with_weights(model.outputs)
    if last is None:
        return True
    parts = _parts_or_none(model)
    # If there is no backbone, it is unknown whether the outputs are features, so the result is False.
    return parts is not None and last in (*parts.below, *parts.blocks, *parts.above)


def _last_with_weights(tensors):
    """Walks back through the graph from `tensors`. Returns the first operation that has weights, or None."""
    for operation, _ in nodes_before(tensors):
        if getattr(operation, "weights", None):
            return _last_with_weights(operation.outputs) if is_graph(operation) else operation
    return None


def _blocks(model):
    """Returns the model's blocks, in order, without the blocks of nested models."""
    names = config_of(model).block_names if find_normalization(model) is not None else ()
    return [layer for layer in model.layers if layer.name in names]


def find_blocks(model, family=None):
    """Returns a model's blocks in order. Raises ValueError if there are no blocks, or the family is not `family`."""
    blocks = _blocks(model) if isinstance(model, keras.Model) else []
    if not blocks or family not in (None, config_of(model).family):
        is_vit = family == "vit"
        what = "ViT" if is_vit else "model"
        names = "normalization, patch_embedding, block_00" if is_vit else "normalization, stage_1_unit_01"
        raise ValueError(
            f"Expected a {what} built by keras_vit, with layers named {names}, ... Received: {model!r}. "
            f"If the {what} is a layer of this model, pass the layer: model.get_layer(...)."
        )
    return blocks


def _ways_to_blocks(model):
    """Yields a list for each model that directly contains blocks: the models from `model` down to this model."""
    if is_graph(model) and _blocks(model):
        yield [model]
        return
    for layer in arguments.model(model).layers:
        if isinstance(layer, keras.Model):
            yield from ([model, *way] for way in _ways_to_blocks(layer))


def _flat(layer):
    """Returns [layer]. If the layer is a functional or sequential model, returns its layers at any depth instead."""
    return [inner for each in layer.layers for inner in _flat(each)] if is_graph(layer) else [layer]
