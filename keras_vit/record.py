"""Finds the config of a model."""

import keras

from keras_vit.model_config import ModelConfig
from keras_vit.preprocessing import carrier_of


def config_of(model: keras.Model) -> ModelConfig:
    """Returns the config of a model, or of the model of this package that it extends or contains.

    Args:
        model: A functional or Sequential `keras.Model`.

    Returns:
        A config, such as a `ViTConfig`. A new head does not change it; if the model contains several models, it is that
        of the first.

    Raises:
        ValueError: If no layer stores a config.

    Example:

    >>> backbone = keras_vit.ViTTi16(num_classes=0)
    >>> model = keras.Model(backbone.input, keras.layers.Dense(5)(backbone.output))
    >>> keras_vit.config_of(model).hidden_dim
    192
    """
    config = getattr(carrier_of(model), "config", None)
    if config is None:
        raise ValueError(
            "Expected a model of this package's builders, or one that extends or contains it. Received: model "
            f"{model.name!r}, none of whose layers stores a config. Its layers are "
            f"{', '.join(layer.name for layer in model.layers)}"
        )
    return config
