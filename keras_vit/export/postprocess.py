"""Graph operations from a model's output to named classes."""

import os

import tensorflow as tf


class Classify(tf.Module):
    """Gives the probabilities and the most probable classes of logits.

    Args:
        activation: "softmax" (one class an image), "sigmoid" (any number of them) or None, where the outputs are
            probabilities.
        labels_path: Path of a text file of one name a line. It becomes an asset of the SavedModel; its names can be
            changed there later.
        top: Integer, how many classes to give.

    Call arguments:
        outputs: Float tensor, (batch, classes).

    Returns:
        Dict of `probabilities`, (batch, classes), and, most probable first, of `classes`, int32, `scores`, which are
        their probabilities, and `labels`, their names, each (batch, top).
    """

    def __init__(self, activation, labels_path, top):
        super().__init__()
        self.activation = {"softmax": tf.nn.softmax, "sigmoid": tf.sigmoid, None: tf.identity}[activation]
        self.top = top
        source = tf.lookup.TextFileInitializer(
            os.fspath(labels_path),
            "int64",
            tf.lookup.TextFileIndex.LINE_NUMBER,
            "string",
            tf.lookup.TextFileIndex.WHOLE_LINE,
        )
        self.labels = tf.lookup.StaticHashTable(source, default_value="")

    def __call__(self, outputs):
        probabilities = self.activation(outputs)
        scores, classes = tf.math.top_k(probabilities, self.top)
        labels = tf.ensure_shape(self.labels.lookup(tf.cast(classes, "int64")), (None, self.top))
        return {"probabilities": probabilities, "classes": classes, "scores": scores, "labels": labels}
