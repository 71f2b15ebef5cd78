"""Graph operations from a model's output to named classes."""

import os

import tensorflow as tf


class Classify(tf.Module):
    """Gives the probabilities and the most probable classes of logits.

    Args:
        activation: "softmax" (one class an image), "sigmoid" (any number of them) or None, where the outputs are
            probabilities.
        labels: List of strings, the classes' names in order.
        labels_path: Path of a text file of the same, one a line. A copy of it becomes an asset of the SavedModel, for
            those who read it; the names that are answered are in the graph.
        top: Integer, how many classes to give.

    Call arguments:
        outputs: Float tensor, (batch, classes).

    Returns:
        Dict of `probabilities`, (batch, classes), and, most probable first, of `classes`, int32, `scores`, which are
        their probabilities, and `labels`, their names, each (batch, top).
    """

    def __init__(self, activation, labels, labels_path, top):
        super().__init__()
        self.activation = {"softmax": tf.nn.softmax, "sigmoid": tf.sigmoid, None: tf.identity}[activation]
        self.top = top
        self.labels_file = tf.saved_model.Asset(os.fspath(labels_path))
        # Not a table that is filled from the asset when the model is loaded: OpenVINO reads no SavedModel with one.
        self.labels = list(labels)

    def __call__(self, outputs):
        probabilities = self.activation(outputs)
        scores, classes = tf.math.top_k(probabilities, self.top)
        labels = tf.gather(tf.constant(self.labels), classes)
        return {"probabilities": probabilities, "classes": classes, "scores": scores, "labels": labels}
