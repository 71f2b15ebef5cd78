import itertools
import numbers
import reprlib
from collections.abc import Sequence

import keras

from keras_vit import arguments
from keras_vit.config import config_of
from keras_vit.layers import PatchDropout, PatchMap
from keras_vit.models.backbone import find_blocks
from keras_vit.models.vt_resnet.layers import VTModule


def features(model: keras.Model, blocks: Sequence[int] | None = None, format: str | None = None) -> keras.Model:
    """Returns a new model that outputs the features of some blocks of `model`. Both models share their weights.

    Args:
        model: A model of this package's builders, with or without a head.
        blocks: Indices of the blocks, in the order of `model.config.block_names`. Negative indices count from the last
            block. If there are several, the new model returns a list. None: (3, 7, 11) for a ViT, and the last block of
            each stage for other families.
        format: "tokens" for outputs (batch, num_tokens, hidden_dim), with the class, distillation and register tokens;
            "map" for outputs (batch, rows, columns, hidden_dim). None: "tokens" for a ViT, "map" for other families.
            Only ViT and VTResNet have tokens.

    Raises:
        ValueError: If a block does not exist or has no output of this format, or if `format` is "map" and the model
            uses patch dropout or token merging.

    Example:

    >>> maps = keras_vit.features(keras_vit.ViTB16(num_classes=0), blocks=(3, 7, 11), format="map")
    >>> [y.shape for y in maps(np.zeros((1, 224, 224, 3)))]
    [(1, 14, 14, 768), (1, 14, 14, 768), (1, 14, 14, 768)]
    """
    found = find_blocks(model)
    is_vit = config_of(model).family == "vit"
    format = arguments.choice("format", format or ("tokens" if is_vit else "map"), ("tokens", "map"))
    if blocks is None:
        blocks = (3, 7, 11) if is_vit else _ends_of_stages(found)
    is_indices = isinstance(blocks, Sequence) and blocks and all(isinstance(i, numbers.Integral) for i in blocks)
    if not is_indices or not all(-len(found) <= i < len(found) for i in blocks):
        expected = f"block indices below {len(found)}, the model's depth, such as (0, -1)"
        raise ValueError(f"Expected {expected}. Received: blocks={reprlib.repr(blocks)}")
    # If a block of a ViT merges tokens, its first output is the tokens, and its second output is their sizes.
    outputs = [keras.tree.flatten(found[i].output)[0] if is_vit else _block_output(found[i], format) for i in blocks]
    if is_vit and format == "map":
        check_every_patch(model, found[: max(i % len(found) for i in blocks) + 1])
        config = config_of(model)
        # Pass the dtype, because the global policy may have a lower precision than the model.
        to_map = PatchMap(config.patch_size, config.num_prefix_tokens, dtype=outputs[0].dtype, name="patch_map")
        outputs = [to_map(x, model.get_layer("patch_embedding").input) for x in outputs]
    return keras.Model(model.input, outputs, name=f"{model.name}_features")


def _ends_of_stages(blocks):
    """Returns the index of the last block of each stage, given blocks with names such as "stage_2_block_03"."""
    stages = [block.name.rpartition("_")[0] for block in blocks if block.name.startswith("stage_")]
    lengths = [len(list(group)) for _, group in itertools.groupby(stages)]
    return [end - 1 for end in itertools.accumulate(lengths)]


def _block_output(block, format):
    """Returns the output of a block of a family other than ViT, as tokens or as a feature map."""
    *maps, last = keras.tree.flatten(block.output)
    is_module = isinstance(block, VTModule)
    outputs = {"tokens": last if is_module else None, "map": maps[0] if maps else None if is_module else last}
    if outputs[format] is None:
        expected = "VT modules" if format == "tokens" else "blocks with a feature map, which the last VT module lacks,"
        raise ValueError(f"Expected {expected} for format={format!r}. Received: block {block.name!r}")
    return outputs[format]


def check_every_patch(model, blocks):
    """Raises ValueError if a ViT drops patches, or if one of its `blocks` merges or omits tokens."""
    has_dropout = any(isinstance(layer, PatchDropout) for layer in model.layers)
    if has_dropout or any(block.token_merging or block.num_outputs for block in blocks):
        expected = "a model with patch_dropout_rate=0 and token_merging=0, without `num_outputs` in its blocks"
        received = f"Received: model {model.name!r}"
        raise ValueError(f"Expected {expected}. {received}. Build such a model with the same weights.")
