"""Training: recipes, and schedules, optimizers and callbacks that Keras does not have."""

from keras_vit.training.checks import preflight
from keras_vit.training.fitting import TerminateOnNaN, compile_forward, fit
from keras_vit.training.optimizers import SGD, AdamW, LayerDecay, WarmupDecay
from keras_vit.training.recipes import RECIPES
from keras_vit.training.running import run
from keras_vit.training.sam import SAM
from keras_vit.training.settings import Recipe
from keras_vit.training.trainable import enable_lora, freeze, merge_lora, unfreeze

__all__ = [
    "RECIPES",
    "SAM",
    "SGD",
    "AdamW",
    "LayerDecay",
    "Recipe",
    "TerminateOnNaN",
    "WarmupDecay",
    "compile_forward",
    "enable_lora",
    "fit",
    "freeze",
    "merge_lora",
    "preflight",
    "run",
    "unfreeze",
]
__dir__ = __all__.copy
