import keras

from keras_vit.models.backbone import parts_of


def layer_depths(model: keras.Model) -> dict[str, int]:
    """Tells how deep each layer of a model lies.

    Args:
        model: A model of this package's builders, with a head of its own or of yours; or one in which such a model is
            nested as a layer, whose layers are then named in its place.

    Returns:
        A dict from the name of each layer to 0 for the embedding and all else of the backbone before its first block, 1
        for the first block, ..., and the number of blocks + 1 for all that is after the last, norm, pooling, head, and
        for the layers around a nested model.

    Raises:
        ValueError: If the model has no blocks, or a layer around a nested model has the name of one in it.

    Example:

    >>> depths = layer_depths(keras_vit.ViT("Ti/16", num_layers=2))
    >>> [depths[name] for name in ("patch_embedding", "block_00", "block_01", "norm", "head")]
    [0, 1, 2, 3, 3]
    """
    parts = parts_of(model)
    depths = {layer.name: 0 for layer in parts.below}
    depths |= {layer.name: depth for depth, layer in enumerate(parts.blocks, 1)}
    top = len(parts.blocks) + 1
    depths |= {layer.name: top for layer in parts.above}
    with_weights = {layer.name for layer in (*parts.below, *parts.blocks, *parts.above) if layer.weights}
    for layer in parts.others:
        if layer.name in with_weights and layer.weights:
            raise ValueError(
                "Expected names for the layers around the model that no layer in it has. "
                f"Received: model {model.name!r} with two layers named {layer.name!r}"
            )
        if layer.weights or layer.name not in depths:
            depths[layer.name] = top
    return depths
