"""Checks and defaults of a pipeline's arguments."""

import dataclasses

import keras

from keras_vit.config import Preprocessing, carrier_of


def inputs_of(preprocessing, **given):
    """Returns image_size, channels, normalize and preprocessing as a dict, from `given` or from `preprocessing`."""
    found = {"image_size": 224, "channels": 3, "normalize": True}
    record = Preprocessing()
    if isinstance(preprocessing, Preprocessing):
        record = preprocessing
    elif preprocessing is not None:
        carrier = carrier_of(preprocessing) if hasattr(preprocessing, "layers") else None
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
        record = carrier.preprocessing
        found["normalize"] = not carrier.apply
        # A Sequential has no input shape before its first call.
        shape = getattr(preprocessing, "input_shape", None) or tuple(carrier.input.shape)
        if isinstance(shape, tuple) and len(shape) == 4:
            found["channels"] = shape[3] or 3
            if None not in shape[1:3]:
                found["image_size"] = shape[1:3]
    given = {name: value for name, value in given.items() if value is not None}
    fields = {field.name: given.pop(field.name) for field in dataclasses.fields(record) if field.name in given}
    if preprocessing is None and fields.get("interpolation") not in ("nearest", "area"):
        fields = {"antialias": False, **fields}
    return {**found, **given, "preprocessing": record.changed(**fields)}


def labels_of(source, labels, policy):
    """Returns the kind of labels in a batch: "int", "one_hot", "multi_hot", "float", or None for no labels."""
    if labels not in ("int", "one_hot", "none", None):
        raise ValueError(f"Expected `labels` to be 'int', 'one_hot', 'none' or None. Received: {labels!r}")
    if policy.mixes and (source.labels is None or labels in ("int", "none")):
        raise ValueError(f"Expected one-hot labels for a policy that mixes or smooths them. Received: {policy}")
    if policy.mixes and "weight" in source.records.element_spec:
        raise ValueError(
            f"Expected no sample weights with a policy that mixes the images of several samples. Received: {policy}"
        )
    if source.labels is None or labels == "none":
        return None
    if source.labels in ("soft", "multi_hot", "float"):
        if labels or (policy.label_smoothing and source.labels != "soft"):
            raise ValueError(
                "Expected soft labels, multi-label data or regression targets without `labels` and without label "
                f"smoothing. Received: labels={labels!r}, {policy}"
            )
        return source.labels
    return labels or ("one_hot" if policy.mixes else "int")
