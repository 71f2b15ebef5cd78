"""Trains a distiller on one batch; as a program on two replicas of TensorFlow, which must be told before all else."""

import json

import keras
import numpy as np

from keras_vit.distillation import Distiller
from tests import tiny
from tests.distillation.models import IMAGES, LABELS, conv_teacher, weights


def train():
    """What came of it, in plain numbers."""
    keras.utils.set_random_seed(0)
    student = tiny.build(image_size=6, patch_size=3, num_layers=1, distillation_token=True)
    student.get_layer("head").kernel.regularizer = keras.regularizers.L2(0.1)
    distiller = Distiller(student, conv_teacher())
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    distiller.compile("sgd", loss, metrics=["accuracy"], jit_compile=False)
    history = distiller.fit(IMAGES, LABELS, batch_size=8, validation_data=(IMAGES, LABELS), verbose=0).history
    return {name: value[0] for name, value in history.items()} | {
        "weights": [float(np.abs(value).sum()) for value in weights(student)],
        "predicted": len(distiller.predict(IMAGES, verbose=0)),
    }


if __name__ == "__main__":
    import tensorflow as tf

    (cpu,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        print(json.dumps(train()))
