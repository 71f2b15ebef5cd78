"""Checks and defaults of a pipeline's arguments."""

import dataclasses

import keras

from keras_vit.config import Preprocessing, find_normalization

RENAMED = {"policy": "augment", "shuffle_buffer": "shuffle"}
PREPROCESSING = tuple(field.name for field in dataclasses.fields(Preprocessing))


def refuse_removed(removed, preprocessing):
    """Raises a TypeError for unknown arguments; for arguments of version 0.2 it contains the replacement."""
    lines = [f"{RENAMED[name]}={value!r}" for name, value in removed.items() if name in RENAMED]
    if fields := ", ".join(f"{name}={value!r}" for name, value in removed.items() if name in PREPROCESSING):
        of_model = hasattr(preprocessing, "layers")
        start = "keras_vit.config_of(model).preprocessing.changed" if of_model else "keras_vit.Preprocessing"
        lines.append(f"preprocessing={start}({fields})")
    if removed:
        instead = f". Write {', '.join(lines)}" if lines else ""
        raise TypeError(f"Expected the arguments of keras_vit.data.pipeline. Received: {', '.join(removed)}{instead}")


def input_options(preprocessing, **given):
    """Returns image_size, channels, normalize and preprocessing as a dict, from `given` or from `preprocessing`."""
    found = {"image_size": 224, "channels": 3, "normalize": True, "preprocessing": preprocessing}
    if preprocessing is None:
        found["preprocessing"] = Preprocessing()
    elif not isinstance(preprocessing, Preprocessing):
        carrier = find_normalization(preprocessing) if hasattr(preprocessing, "layers") else None
        if carrier is None:
            raise ValueError(
                "Expected `preprocessing` to be a keras_vit.Preprocessing, or a model that carries one, as all of "
                f"keras_vit's do. Received: {getattr(preprocessing, 'name', preprocessing)!r}, of "
                f"{type(preprocessing).__name__}, which carries none"
            )
        scaling_layers = (keras.layers.Rescaling, keras.layers.Normalization)
        if given["normalize"] is None and any(isinstance(layer, scaling_layers) for layer in preprocessing.layers):
            raise ValueError(
                "Expected `normalize` with a model that scales its images in another layer. Received: "
                f"preprocessing={preprocessing.name!r}, normalize=None"
            )
        found |= {"preprocessing": carrier.preprocessing, "normalize": not carrier.apply}
        # A Sequential has no input shape before its first call.
        shape = getattr(preprocessing, "input_shape", None) or tuple(carrier.input.shape)
        if isinstance(shape, tuple) and len(shape) == 4:
            found["channels"] = shape[3] or 3
            if None not in shape[1:3]:
                found["image_size"] = shape[1:3]
    return found | {name: value for name, value in given.items() if value is not None}


def kind_of_batch_labels(source, labels, augmentation):
    """Returns the kind of labels in a batch: "int", "one_hot", "multi_hot", "float", or None for no labels."""
    if labels not in ("int", "one_hot", "none", None):
        raise ValueError(f"Expected `labels` to be 'int', 'one_hot', 'none' or None. Received: {labels!r}")
    mixes = augmentation.mixes
    if mixes and (source.labels is None or labels in ("int", "none")):
        raise ValueError(f"Expected one-hot labels for `augment` that mixes or smooths them. Received: {augmentation}")
    if mixes and "weight" in source.records.element_spec:
        expected = "no sample weights with `augment` that mixes the images of several samples"
        raise ValueError(f"Expected {expected}. Received: {augmentation}")
    if source.labels is None or labels == "none":
        return None
    if source.labels in ("soft", "multi_hot", "float"):
        if labels or (augmentation.policy.label_smoothing and source.labels != "soft"):
            raise ValueError(
                "Expected soft labels, multi-label data or regression targets without `labels` and without label "
                f"smoothing. Received: labels={labels!r}, {augmentation}"
            )
        return source.labels
    return labels or ("one_hot" if mixes else "int")
