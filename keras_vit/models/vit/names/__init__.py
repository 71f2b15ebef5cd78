"""The names of weights in checkpoints of Vision Transformers."""

from keras_vit.models.vit.names.official import BIG_VISION, OFFICIAL
from keras_vit.models.vit.names.original import recognise_state_dict
from keras_vit.models.vit.names.timm import DEIT, TIMM


def recognise(keys, container, facts):
    """Returns the Source of a file whose first layer occurs in several sources, or None."""
    if OFFICIAL.matches(keys) or BIG_VISION.matches(keys):
        # Both have the same key for the patch embedding; the position table's key or the prefix differs.
        keys = set(keys)
        old = any(key.endswith("posembed_input/pos_embedding") for key in keys)
        stacked = any("encoderblock/" in key for key in keys)
        prefixed = any(key.startswith("params/") or key.endswith("MAPHead_0/probe") for key in keys)
        return BIG_VISION if "pos_embedding" in keys or prefixed or (stacked and not old) else OFFICIAL
    original = recognise_state_dict(keys, facts)
    if original is not None:
        return original
    backbone = any(key.startswith("patch_embed.backbone.") for key in keys)
    if backbone or TIMM.matches(keys):
        return DEIT if container == "pth" and facts.get("wrapper") in ("model", "model_ema") and not backbone else TIMM
    return None
