"""Photograph-like JPEGs of odd sizes, and the pictures in TensorBoard's logs."""

import numpy as np
from PIL import Image


def write_jpegs(folder, count=20):
    """Writes smooth pictures with grain on them, and returns their paths in order of name."""
    rng, paths = np.random.default_rng(0), []
    for i in range(count):
        width, height = (2 * int(side) + 1 for side in rng.integers(50, 160, 2))
        coarse = Image.fromarray(rng.integers(0, 256, (9, 11, 3)).astype("uint8")).resize((width, height), 3)
        grain = rng.normal(0, 12, (height, width, 1))
        paths.append(folder / f"{i:02}.jpg")
        pixels = np.clip(np.asarray(coarse) + grain, 0, 255).astype("uint8")
        Image.fromarray(pixels).save(paths[-1], quality=92)
    return paths


def logged(folder, tag):
    """Returns {step: pictures} of the logs in a folder, which must all have this tag."""
    import tensorflow as tf

    pictures = {}
    for file in folder.iterdir():
        for record in tf.data.TFRecordDataset(str(file)):
            event = tf.compat.v1.Event.FromString(record.numpy())
            for value in event.summary.value:
                assert value.tag == tag
                _, _, *encoded = tf.make_ndarray(value.tensor)
                pictures[event.step] = np.stack([tf.io.decode_png(image).numpy() for image in encoded])
    return pictures
