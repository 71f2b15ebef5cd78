"""Reads checkpoint files safely: no code in a file is run, and the error for a damaged file contains its path."""

from keras_vit.weights.read.file import WeightsFile, check_sha256, sha256
from keras_vit.weights.read.open import open_checkpoint

__all__ = ["WeightsFile", "check_sha256", "open_checkpoint", "sha256"]
