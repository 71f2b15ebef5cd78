"""Trains with few labels and many unlabelled images, by Noisy Student and Meta Pseudo Labels."""

from keras_vit.semi_supervised.meta_pseudo_labels import MetaPseudoLabels
from keras_vit.semi_supervised.pseudo_labels import PseudoLabels, noisy_student, pseudo_labels

__all__ = ["MetaPseudoLabels", "PseudoLabels", "noisy_student", "pseudo_labels"]
__dir__ = __all__.copy
