"""A teacher and a student that compile in a moment."""

import keras
import numpy as np

RNG = np.random.default_rng(0)
IMAGES, LABELS = RNG.normal(size=(8, 6, 6, 3)).astype("float32"), np.arange(8) % 5


def conv_teacher(shape=(6, 6, 3), num_classes=5, activation=None):
    """Builds a model with batch normalization and dropout, which both reveal a call in training mode."""
    layers = [keras.layers.Conv2D(4, 3), keras.layers.BatchNormalization(), keras.layers.Dropout(0.5)]
    head = keras.layers.Dense(num_classes, activation=activation)
    model = keras.Sequential([keras.Input(shape), *layers, keras.layers.GlobalAveragePooling2D(), head])
    rng = np.random.default_rng(1)
    model.set_weights([np.abs(rng.normal(size=w.shape)) for w in model.get_weights()])
    return model


def linear_student(shape=(6, 6, 3), num_classes=5, **options):
    return keras.Sequential(
        [keras.Input(shape), keras.layers.Flatten(), keras.layers.Dense(num_classes, **options)], name="student"
    )


def weights(model):
    """Copies all state, including the seeds."""
    return [np.array(numpy(v)) for v in model.variables]


def numpy(x):
    return keras.ops.convert_to_numpy(x)
