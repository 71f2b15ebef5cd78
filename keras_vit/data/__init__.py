"""Input pipelines for `model.fit`: they read images from TFDS, folders and tables, with tf.data on every backend."""

from keras_vit.data.augment import POLICIES, Policy, RandAugment
from keras_vit.data.broken import BrokenImages
from keras_vit.data.crop import Crop
from keras_vit.data.folder import from_directory, resize_folder
from keras_vit.data.frame import from_dataframe
from keras_vit.data.joint import relabelled, with_pseudo_labels, with_unlabelled
from keras_vit.data.pipelines import pipeline
from keras_vit.data.source import Source
from keras_vit.data.splitting import folds, splits
from keras_vit.data.steps import Mix
from keras_vit.data.tfds import VTAB, load

__all__ = [
    "POLICIES",
    "VTAB",
    "BrokenImages",
    "Crop",
    "Mix",
    "Policy",
    "RandAugment",
    "Source",
    "folds",
    "from_dataframe",
    "from_directory",
    "load",
    "pipeline",
    "relabelled",
    "resize_folder",
    "splits",
    "with_pseudo_labels",
    "with_unlabelled",
]
__dir__ = __all__.copy
