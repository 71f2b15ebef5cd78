"""Reads the config fields that all model families share, and the config that `save_weights` wrote to a file."""

from keras_vit.config import ModelConfig
from keras_vit.weights.found import STATED, Found


def begin(file, entrance):
    """Returns a `Found` with the method by which positions are resized, and the numbers of classes and image channels.

    The number of channels is read from the model's first kernel. `entrance` is the path of this kernel.
    """
    found = Found(file.path)
    found.position_interpolation = file.source.position_interpolation
    found.put(STATED, in_channels=file.size(entrance, 4, 2), num_classes=file.size("head/bias", 1, 0) or 0)
    return found


def read_record(file, found):
    """Adds to `found` the config fields that `save_weights` wrote. Fields that are already in `found` do not change."""
    values = dict(file.own["config"])
    for name in ("activation", "classifier_activation"):
        try:
            ModelConfig(classifier_activation=values.get(name))
        except ValueError:
            del values[name]
            found.leave("it is a function defined by the user", name)
    try:
        config = ModelConfig.from_dict(values)
    except ValueError as error:
        raise ValueError(f"Cannot read weights from {file.path!r}: its config is damaged. {error}") from None
    # Version 0.2 wrote the fields "multi_label" and "regression", which are now the field "task".
    names = {"task" if name in ("multi_label", "regression") else name for name in values.keys() - {"family"}}
    fields = {name: getattr(config, name) for name in names}
    found.put(STATED, **{name: value for name, value in fields.items() if name not in found.values})
    method = getattr(config, "position_interpolation", None)
    # Version 0.2 wrote no version, and wrote "linear" for each model of a fixed image size. Ignore this "linear".
    if method is not None and (config.image_size == (None, None) or method != "linear" or "version" in file.own):
        found.position_interpolation = method
