"""Opens and describes files of weights."""

import dataclasses
import math

from keras_vit.models import catalog
from keras_vit.models.model_settings import describe_sizes, sizes_of_file
from keras_vit.weights import hub
from keras_vit.weights.read import check_sha256, open_checkpoint
from keras_vit.weights.read.folders import ShardedFile


def open_file(path, sha256=None):
    """Returns the `WeightsFile` of a path or of a hub's name, checked against a SHA-256."""
    file = open_checkpoint(hub.local_path(path))
    if sha256 is not None:
        check_sha256(file.path, sha256)
        # The SHA-256 of an index does not cover the files that it names.
        file.verified |= not isinstance(file, ShardedFile)
    return file


def describe(path, source=None):
    """Describes a checkpoint: path, source, sizes, settings, preprocessing and arrays, one per line."""
    family, file = catalog.identify(open_file(path), source)
    found = catalog.read_config(file, None)
    count = sum(math.prod(shape) for shape in file.shapes.values())
    unknown = [key for key in file.shapes if file.source.weight_of(key) is None]
    names = [name for name in catalog.CHECKPOINTS[family].SETTINGS if name in found.values]
    rows = {
        "file": file.path,
        "source": file.source.name,
        "model": describe_sizes(sizes_of_file(file, found)),
        "holds": f"{len(file.shapes)} arrays, {count:,} parameters",
        **{name: found.get(name) for name in names},
        **({} if "preprocessing" not in found.values else dataclasses.asdict(found.get("preprocessing"))),
        "positions": f"{found.positions.num_prefix} of prefix tokens",
        "unknown keys": ", ".join(unknown) or "none",
        "to pass": ", ".join(found.unknown) or "nothing",
    }
    width = max(map(len, rows))
    return "\n".join(f"{name:{width}}  {value}" for name, value in rows.items())
