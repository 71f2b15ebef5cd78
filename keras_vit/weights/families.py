"""The families beside ViT and BiT: how their checkpoints state a config, and what timm calls their models."""

from collections.abc import Callable
from typing import NamedTuple

from keras_vit.weights import efficientnet, timm_coatnet


class Family(NamedTuple):
    """What reading and writing the checkpoints of a family needs."""

    # (checkpoint, `Stated`): adds the fields that the file tells, and the unknown ones with the reason.
    add_fields: Callable
    # Checkpoint to {name: value} of the settings below; unknown ones are None.
    settings_of: Callable
    # The fields that decide the outputs and that no array shows.
    settings: tuple[str, ...]
    # Config to the name of timm's architecture, or None if timm has none.
    timm_name: Callable
    # Config to the arguments of that architecture, in JSON's types, that its name does not set.
    timm_arguments: Callable
    # The keys of timm's first convolution and of its head, without ".weight".
    timm_ends: tuple[str, str]
    # Checkpoint to (constants, whether it determines them); None: those of its source.
    preprocessing: Callable | None = None
    # Checkpoint to the name of its model's sizes, or None.
    model_name: Callable = lambda checkpoint: None


FAMILIES: dict[str, Family] = {
    "coatnet": Family(
        timm_coatnet.add_fields,
        timm_coatnet.settings_of,
        timm_coatnet.SETTINGS,
        timm_coatnet.timm_name,
        timm_coatnet.timm_arguments,
        ("stem.conv1", "head.fc"),
    ),
    "efficientnet": Family(
        efficientnet.add_fields,
        efficientnet.settings_of,
        efficientnet.SETTINGS,
        efficientnet.timm_name,
        efficientnet.timm_arguments,
        ("conv_stem", "classifier"),
        efficientnet.preprocessing,
        efficientnet.model_name,
    ),
}
