"""Features of classes that overlap, for the tests."""

import numpy as np


def blobs(num_images, num_classes=4, num_features=12, seed=0, spread=1.5):
    """(features, labels) around one centre a class, the same for each seed."""
    centres = np.random.default_rng(99).normal(size=(num_classes, num_features))
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.arange(num_images) % num_classes)
    return (centres[labels] + spread * rng.normal(size=(num_images, num_features))).astype("float32"), labels
