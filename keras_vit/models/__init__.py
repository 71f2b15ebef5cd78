"""`FamilyModel`, the class of the models that the builders of `keras_vit` return."""

from keras_vit.models.family import FamilyModel

__all__ = ["FamilyModel"]
__dir__ = __all__.copy
