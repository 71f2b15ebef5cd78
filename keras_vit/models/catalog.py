"""Lists the model families, and recognises the family of a checkpoint and the code base that wrote it."""

import os
import re

from keras_vit import arguments
from keras_vit.models import saved
from keras_vit.models.bit.model import BIT
from keras_vit.models.coatnet.model import COATNET
from keras_vit.models.efficientnet.model import EFFICIENTNET
from keras_vit.models.vit.model import VIT
from keras_vit.models.vt_resnet.model import VT_RESNET
from keras_vit.weights.canonical import CanonicalFile, below
from keras_vit.weights.found import DEFAULT, KNOWN
from keras_vit.weights.published import SOURCES_OF_FILES
from keras_vit.weights.source import unwrapped

FAMILIES = {family.name: family for family in (VIT, BIT, COATNET, EFFICIENTNET, VT_RESNET)}


def sources():
    """Returns {name: `Source`} for all families.

    Several families have a source named "keras". The dict contains only the source of the last such family.
    """
    return {source.name: source for source in _all_sources()}


def _all_sources():
    return [source for family in FAMILIES.values() for source in family.sources]


def identify(file, source=None):
    """Returns the `Family` of a `WeightsFile`, and the file as a `CanonicalFile`.

    If `source` is None, the source follows from the file's keys and, for published files, from the file's name.
    """
    if file.container == "keras" and source is not None:
        raise arguments.invalid("source", "None for a .keras file", source)
    canonical = CanonicalFile(file, *(file.identified() if file.container == "keras" else _source(file, source)))
    return FAMILIES[canonical.source.family], canonical


def read_config(file, grid_size=None, published=None):
    """Returns the config fields that a `CanonicalFile` implies, as a `Found`.

    `grid_size` is (rows, columns) of the file's position embeddings, or None. `published` is the file's
    `PublishedCheckpoint`, or None.
    """
    if "config" not in file.own and set(file.own) - {"grid"}:
        raise ValueError(
            f"Expected a file of keras_vit 0.2 or newer. Received: {file.path!r}, which keras_vit 0.1 wrote. Load it "
            "with keras_vit 0.2, and save it again."
        )
    read = saved.read_config if file.container == "keras" else FAMILIES[file.source.family].read_config
    found = read(file, grid_size)
    if "position_embedding/embeddings" in file.weights and "position_interpolation" not in found.values:
        found.put(f"{DEFAULT} {file.source.name}", position_interpolation=found.position_interpolation)
    if published is not None:
        found.put(f"{KNOWN} {published.name}", preprocessing=published.preprocessing)
        if published.source == "bit":
            # The code that was published with BiT's weights uses these settings.
            found.put(f"{KNOWN} {published.name}", image_size=published.resolution, pool_padding="zeros")
    return found


def _source(file, source):
    """Returns (`Source` of a file, prefix of its keys).

    If the model was saved as a part of a larger module, the prefix is the name of this part and a dot; if not, "".
    """
    name = SOURCES_OF_FILES.get(os.path.basename(file.path)) if source is None else source

    def matching(keys):
        if found := next((each for each in _all_sources() if each.name == name and each.matches(keys)), None):
            return found
        return recognise(keys, file.container, file.facts) if source is None else None

    try:
        if found := matching(file.entries):
            return found, ""
        inner = {}
        for prefix in dict.fromkeys(f"{unwrapped(key).partition('.')[0]}." for key in file.entries):
            if found := matching(list(below(file.entries, prefix))):
                inner[prefix] = found
        if len(inner) > 1:
            raise ValueError(
                "Expected the weights of one model. Received: several models, whose keys start with "
                f"{', '.join(inner)}. Save the state dict of one model to a file."
            )
        if not inner and source is not None:
            fitting = dict.fromkeys(each.name for each in _all_sources() if each.matches(file.entries)) or sources()
            expected = f"one of {', '.join(map(repr, fitting))}, or None to recognise it by the file's keys"
            raise arguments.invalid("source", expected, source, fitting)
        if not inner:
            raise ValueError(
                "The keys match no known source. Expected keys such as embedding/kernel or patch_embed.proj.weight. "
                f"Received: {', '.join(list(file.entries)[:5])}"
            )
    except ValueError as error:
        raise ValueError(f"Cannot read weights from {file.path!r}: {error}") from None
    ((prefix, found),) = inner.items()
    return found, prefix


def recognise(keys, container, facts):
    """Returns the `Source` of a file, or None; `container` is the file's format, and `facts` are its metadata."""
    keys = list(dict.fromkeys(unwrapped(key) for key in keys))
    if container == "huggingface":
        known, model_type = {name: s for s in _all_sources() for name in s.model_types}, facts["config"]["model_type"]
        if model_type in known:
            return known[model_type]
        why = ""
        if str(model_type).startswith("siglip2"):
            why = " SigLIP 2 with NaFlex needs patches as input and a mask for padding, which are not supported."
        raise ValueError(
            f"The config.json contains model_type={model_type!r}. Expected one of {', '.join(map(repr, known))}.{why}"
        )
    for family in FAMILIES.values():
        if container == "h5" and any(re.match(family.refused_h5, key) for key in keys):
            raise ValueError(
                f"Expected another file than the .weights.h5 of a {family.builder}. Build the same model, and call "
                "model.load_weights(path)."
            )
        found = family.recognise(keys, container, facts)
        own = (source for source in family.sources if source.name != "keras" and source.recognises(keys))
        if found := found or next(own, None):
            return found
    # Check the sources "keras" (Keras' .weights.h5 files) last, because files of keras.applications may have the same
    # keys.
    return next((source for source in _all_sources() if source.name == "keras" and source.recognises(keys)), None)
