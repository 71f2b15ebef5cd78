"""The families and their sources of checkpoints, and how those of a file are recognised."""

import os
import re

from keras_vit import arguments
from keras_vit.models.bit import checkpoint as bit
from keras_vit.models.bit.model import BIT
from keras_vit.models.bit.names import BIT as OFFICIAL_BIT
from keras_vit.models.bit.names import HUGGINGFACE_BIT, TIMM_BIT
from keras_vit.models.coatnet import checkpoint as coatnet
from keras_vit.models.coatnet.model import COATNET
from keras_vit.models.coatnet.names import TIMM_COATNET
from keras_vit.models.efficientnet import checkpoint as efficientnet
from keras_vit.models.efficientnet.model import EFFICIENTNET
from keras_vit.models.efficientnet.names import EFFICIENTNET as OFFICIAL_EFFICIENTNET
from keras_vit.models.efficientnet.names import KERAS_APPLICATIONS, TIMM_EFFICIENTNET
from keras_vit.models.vit import checkpoint as vit
from keras_vit.models.vit.model import VIT
from keras_vit.models.vit.names.huggingface import CLIP, DINOV2, DINOV3, HUGGINGFACE, SIGLIP
from keras_vit.models.vit.names.keras import KERAS
from keras_vit.models.vit.names.official import BIG_VISION, OFFICIAL
from keras_vit.models.vit.names.original import (
    DINO,
    DINOV2_ORIGINAL,
    DINOV3_ORIGINAL,
    EVA02,
    IJEPA,
    MAE,
    OPEN_CLIP,
    OPEN_CLIP_TIMM,
    OPENAI_CLIP,
    of_state_dict,
)
from keras_vit.models.vit.names.timm import DEIT, TIMM
from keras_vit.models.vt_resnet.model import VT_RESNET
from keras_vit.weights.canonical import CanonicalFile, below
from keras_vit.weights.published import SOURCES_OF_FILES
from keras_vit.weights.source import unwrapped

FAMILIES = {family.name: family for family in (VIT, BIT, COATNET, EFFICIENTNET, VT_RESNET)}

_ORIGINAL = (DINO, DINOV2_ORIGINAL, DINOV3_ORIGINAL, EVA02, IJEPA, MAE, OPENAI_CLIP, OPEN_CLIP, OPEN_CLIP_TIMM)
_TRANSFORMERS = (HUGGINGFACE, HUGGINGFACE_BIT, DINOV2, DINOV3, SIGLIP, CLIP)
_EFFICIENTNETS = (TIMM_EFFICIENTNET, OFFICIAL_EFFICIENTNET, KERAS_APPLICATIONS)
_OTHERS = (OFFICIAL, BIG_VISION, OFFICIAL_BIT, TIMM, TIMM_BIT, TIMM_COATNET, DEIT)
SOURCES = {source.name: source for source in (*_OTHERS, *_TRANSFORMERS, *_ORIGINAL, *_EFFICIENTNETS, KERAS)}

# The sources of folders by model_type.
MODEL_TYPES = {
    **dict.fromkeys(("vit", "deit", "vit_mae", "vit_msn", "ijepa"), HUGGINGFACE),
    **dict.fromkeys(("dinov2", "dinov2_with_registers"), DINOV2),
    "dinov3_vit": DINOV3,
    **dict.fromkeys(("siglip", "siglip_vision_model"), SIGLIP),
    **dict.fromkeys(("clip", "clip_vision_model"), CLIP),
    "bit": HUGGINGFACE_BIT,
}


# The module that reads the configs of a family's checkpoints: `read_config`, and `SETTINGS`, the fields that decide the
# outputs and that no array shows.
CHECKPOINTS = {"vit": vit, "bit": bit, "coatnet": coatnet, "efficientnet": efficientnet}


def identify(file, source=None):
    """Returns (family, `CanonicalFile`) of a `WeightsFile`; `source` is the name of its source if it is given."""
    found, prefix = _source(file, source)
    canonical = CanonicalFile(file, found, prefix)
    return canonical.source.family, canonical


def read_config(file, grid_size=None):
    """Returns the `Found` of a `CanonicalFile` of any family."""
    if "config" not in file.own and set(file.own) - {"grid"}:
        raise ValueError(
            f"Cannot load {file.path!r}: keras_vit 0.1 wrote it. Load it with version 0.2, and save it again."
        )
    return CHECKPOINTS[file.source.family].read_config(file, grid_size)


def _source(file, source):
    """Returns the Source of a file, and the prefix of the model's keys if other modules surround it."""
    published = SOURCES.get(SOURCES_OF_FILES.get(os.path.basename(file.path)))
    if source is not None:
        given = SOURCES[arguments.one_of("source", source, SOURCES)]
    elif published is not None and published.knows(file.entries):
        given = published
    else:
        given = None

    def matching(keys):
        if given is not None:
            return given if given.knows(keys) else None
        return recognise(keys, file.container, file.facts)

    try:
        if found := matching(file.entries):
            return found, ""
        inner = {}
        for prefix in dict.fromkeys(f"{unwrapped(key).partition('.')[0]}." for key in file.entries):
            if found := matching(list(below(file.entries, prefix))):
                inner[prefix] = found
        if len(inner) > 1:
            raise ValueError(
                f"Expected the weights of one model. Received: several, whose keys start with {', '.join(inner)}. Save "
                "the state dict of one of them to a file."
            )
        if not inner and given is None:
            raise ValueError(
                "Its keys match no known source. Expected keys like embedding/kernel or patch_embed.proj.weight. "
                f"Received: {', '.join(list(file.entries)[:5])}"
            )
    except ValueError as error:
        raise ValueError(f"Cannot read weights from {file.path!r}: {error}") from None
    return next(((found, prefix) for prefix, found in inner.items()), (given, ""))


def recognise(keys, container, facts):
    """Returns the Source of a file, from its keys, container and facts, or None."""
    keys = list(dict.fromkeys(unwrapped(key) for key in keys))
    if container == "huggingface":
        return _of_model_type(facts["config"].get("model_type"))
    if OFFICIAL.knows(keys) or BIG_VISION.knows(keys):
        # Both name the patch embedding alike; the position table's key or the prefix tells them apart.
        keys = set(keys)
        old = any(key.endswith("posembed_input/pos_embedding") for key in keys)
        stacked = any("encoderblock/" in key for key in keys)
        prefixed = any(key.startswith("params/") or key.endswith("MAPHead_0/probe") for key in keys)
        return BIG_VISION if "pos_embedding" in keys or prefixed or (stacked and not old) else OFFICIAL
    original = of_state_dict(keys, facts)
    if original is not None:
        return original
    backbone = any(key.startswith("patch_embed.backbone.") for key in keys)
    if backbone or TIMM.knows(keys):
        return DEIT if container == "pth" and facts.get("wrapper") in ("model", "model_ema") and not backbone else TIMM
    if any(re.fullmatch(r"stages\.0\.blocks\.0\.conv1\.weight", key) for key in keys):
        return TIMM_BIT
    if DINOV2.knows(keys) and any(key.endswith(".layer_scale1.lambda1") for key in keys):
        return DINOV2
    if CLIP.knows(keys) and any(key.endswith("pre_layrnorm.weight") for key in keys):
        return CLIP
    if KERAS_APPLICATIONS.knows(keys) and any(key.startswith("block1a_") for key in keys):
        return KERAS_APPLICATIONS
    convolutional = (TIMM_COATNET, TIMM_EFFICIENTNET, OFFICIAL_EFFICIENTNET, OFFICIAL_BIT)
    others = (*convolutional, HUGGINGFACE, HUGGINGFACE_BIT, DINOV3, SIGLIP, KERAS)
    return next((source for source in others if source.knows(keys)), None)


def _of_model_type(model_type):
    """Returns the Source of a transformers folder with this model_type; raises if its models are not read."""
    if model_type in MODEL_TYPES:
        return MODEL_TYPES[model_type]
    why = ""
    if str(model_type).startswith("siglip2"):
        why = " SigLIP 2 with NaFlex needs patches as input and a mask for padding, which are not supported."
    raise ValueError(
        f"Its config.json says model_type={model_type!r}. Expected one of {', '.join(map(repr, MODEL_TYPES))}.{why}"
    )
