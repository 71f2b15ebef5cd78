"""Rename tables: where each source keeps the weights of a model. One table a source, read in both directions."""

from keras_vit.weights.names.bit import BIT
from keras_vit.weights.names.huggingface import DINOV2, HUGGINGFACE, SIGLIP
from keras_vit.weights.names.keras import KERAS
from keras_vit.weights.names.official import BIG_VISION, OFFICIAL
from keras_vit.weights.names.source import Name, Source
from keras_vit.weights.names.timm import DEIT, TIMM

SOURCES = {
    source.name: source for source in (OFFICIAL, BIG_VISION, BIT, TIMM, DEIT, HUGGINGFACE, DINOV2, SIGLIP, KERAS)
}

__all__ = ["SOURCES", "Name", "Source", "recognise"]


def recognise(keys, container, facts):
    """Returns the Source that a file belongs to by its keys and container, or None."""
    if OFFICIAL.knows(keys) or BIG_VISION.knows(keys):
        # Both name the patch embedding alike; the table of positions tells them apart, and the prefix where there is
        # none.
        keys = set(keys)
        old = any(key.endswith("posembed_input/pos_embedding") for key in keys)
        new = (
            any(key.startswith("params/") or key.endswith("MAPHead_0/probe") for key in keys) or "pos_embedding" in keys
        )
        return BIG_VISION if new or (not old and any("encoderblock/" in key for key in keys)) else OFFICIAL
    if TIMM.knows(keys):
        return DEIT if container == "pth" and facts.get("wrapper") == "model" else TIMM
    if DINOV2.knows(keys) and any(key.endswith(".layer_scale1.lambda1") for key in keys):
        return DINOV2
    return next((source for source in (BIT, HUGGINGFACE, SIGLIP, KERAS) if source.knows(keys)), None)
