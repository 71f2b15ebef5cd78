import re

import keras

# A ViT's blocks, and where there are none a BiT's units. The ResNet of a hybrid belongs to its embedding.
BLOCK_NAMES = (r"block_\d+", r"stage_\d+_unit_\d+")


def layer_depths(model: keras.Model) -> dict[str, int]:
    """Tells how deep each layer of a model lies.

    Args:
        model: A model of this package's builders.

    Returns:
        A dict from the name of each layer to 0 for the embedding and all that is before the first block, 1 for the
        first block, ..., and the number of blocks + 1 for all that is after the last: norm, pooling, head.

    Raises:
        ValueError: If the model has no blocks.

    Example:

    >>> depths = layer_depths(keras_vit.ViT("Ti/16", num_layers=2))
    >>> [depths[name] for name in ("patch_embedding", "block_00", "block_01", "norm", "head")]
    [0, 1, 2, 3, 3]
    """
    names = [layer.name for layer in model.layers]
    found = ([name for name in names if re.fullmatch(pattern, name)] for pattern in BLOCK_NAMES)
    blocks = next(filter(None, found), None)
    if not blocks:
        raise ValueError(
            "Expected a model of this package's builders, with layers named block_00 or stage_1_unit_01 and so on. "
            f"Received: model {model.name!r} with layers {', '.join(names)}. Where one of them holds it, pass that: "
            "model.get_layer(...)."
        )
    depths, depth = {}, 0
    for name in names:
        if name in blocks:
            depth += 1
        depths[name] = depth
    last = names.index(blocks[-1])
    return depths | dict.fromkeys(names[last + 1 :], depth + 1)
