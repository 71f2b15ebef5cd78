"""Training: what model.fit needs beside Keras' own."""

from keras_vit.training.callbacks import Resume
from keras_vit.training.decay_groups import decay_groups
from keras_vit.training.depth import layer_depths
from keras_vit.training.fitting import fit
from keras_vit.training.freezing import count_parameters, freeze, unfreeze
from keras_vit.training.layer_decay import LayerDecay, layer_multipliers
from keras_vit.training.lora import enable_lora, merge_lora
from keras_vit.training.optimizers import SGD, AdamW, adam, adamw, sgd
from keras_vit.training.preflight import preflight
from keras_vit.training.recipes import RECIPES, recipe
from keras_vit.training.run import run
from keras_vit.training.sam import SAM
from keras_vit.training.schedules import WarmupDecay
from keras_vit.training.settings import Recipe

__all__ = [
    "RECIPES",
    "SAM",
    "SGD",
    "AdamW",
    "LayerDecay",
    "Recipe",
    "Resume",
    "WarmupDecay",
    "adam",
    "adamw",
    "count_parameters",
    "decay_groups",
    "enable_lora",
    "fit",
    "freeze",
    "layer_depths",
    "layer_multipliers",
    "merge_lora",
    "preflight",
    "recipe",
    "run",
    "sgd",
    "unfreeze",
]
