from collections.abc import Sequence

import keras

from keras_vit import arguments
from keras_vit.layers import PatchDropout, PatchMap, VTModule
from keras_vit.models.backbone import blocks_of, vit_blocks
from keras_vit.record import config_of


def features(model: keras.Model, blocks: Sequence[int] = (3, 7, 11), format: str = "tokens") -> keras.Model:
    """Returns a model of a ViT's or VT-ResNet's intermediate features, with shared weights.

    Args:
        model: A ViT or VT-ResNet of this package's builders, with or without a head.
        blocks: Indices of the blocks; negative ones count from the last. Several blocks give a list of outputs. Those
            of a VT-ResNet are its residual units, then its VT modules.
        format: "tokens", (batch, num_tokens, hidden_dim) with prefix tokens, or "map", (batch, rows, columns,
            hidden_dim) without. In a VT-ResNet, the visual tokens or the feature maps.

    Raises:
        ValueError: If a block does not exist, or format="map" with patch dropout, token merging or skipped patches, or
            a block of a VT-ResNet has no output of this format: units have no tokens, and its last module has no map.

    Example:

    >>> maps = keras_vit.features(keras_vit.ViTB16(num_classes=0), blocks=(3, 7, 11), format="map")
    >>> [y.shape for y in maps(np.zeros((1, 224, 224, 3)))]
    [(1, 14, 14, 768), (1, 14, 14, 768), (1, 14, 14, 768)]
    """
    arguments.one_of("format", format, ("tokens", "map"))
    found = blocks_of(model, "vt_resnet") or vit_blocks(model)
    for i in blocks:
        if not -len(found) <= i < len(found):
            raise ValueError(
                f"Expected block indices below {len(found)}, the model's depth. Received: blocks={tuple(blocks)}"
            )
    if config_of(model).family == "vt_resnet":
        outputs = [_output_of(found[i], format) for i in blocks]
        return keras.Model(model.input, outputs, name=f"{model.name}_features")
    # A block that merges tokens outputs their sizes too.
    outputs = [keras.tree.flatten(found[i].output)[0] for i in blocks]
    if format == "map":
        check_every_patch(model, found[: max(i % len(found) for i in blocks) + 1])
        config = config_of(model)
        patch_embedding = model.get_layer("patch_embedding")
        to_map = PatchMap(config.patch_size, config.num_prefix_tokens, name="patch_map")
        outputs = [to_map(x, patch_embedding.input) for x in outputs]
    return keras.Model(model.input, outputs, name=f"{model.name}_features")


def _output_of(block, format):
    """The tokens or the feature map that a residual unit or VT module outputs."""
    *maps, last = keras.tree.flatten(block.output)
    is_module = isinstance(block, VTModule)
    outputs = {"tokens": last if is_module else None, "map": maps[0] if maps else None if is_module else last}
    if outputs[format] is None:
        expected = "VT modules" if format == "tokens" else "residual units, or VT modules before the last"
        raise ValueError(f"Expected {expected} as `blocks` with format={format!r}. Received: block {block.name!r}")
    return outputs[format]


def check_every_patch(model, blocks):
    """Raises if patches of a ViT are dropped, merged or skipped in or before the last of these blocks."""
    has_dropout = any(isinstance(layer, PatchDropout) for layer in model.layers)
    if has_dropout or any(block.token_merging or block.num_outputs for block in blocks):
        raise ValueError(
            "Expected a model that keeps every patch, built with patch_dropout_rate=0, token_merging=0 and "
            f"skip_unused_tokens=False, which takes the same weights. Received: model {model.name!r}"
        )
