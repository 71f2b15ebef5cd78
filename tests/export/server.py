"""Answers requests with a SavedModel."""

from keras_vit.export.tensorflow_formats import WARM_UP


def warm_up_requests(folder):
    """Reads the warm-up requests of a SavedModel: pairs of a signature name and {input name: array}."""
    import tensorflow as tf
    from tensorflow_serving.apis.prediction_log_pb2 import PredictionLog

    found = []
    for record in tf.data.TFRecordDataset([str(folder / WARM_UP)]):
        request = PredictionLog.FromString(record.numpy()).predict_log.request
        inputs = {key: tf.make_ndarray(tensor) for key, tensor in request.inputs.items()}
        found.append((request.model_spec.signature_name, inputs))
    return found


class Refused(Exception):
    """The response is an error."""


class Server:
    """Runs a SavedModel through TensorFlow's runtime, without the checks of TensorFlow's Python API."""

    def __init__(self, folder):
        import tensorflow as tf

        self.model = tf.saved_model.load(str(folder))
        self.signatures = self.model.signatures

    def ask(self, signature, **inputs):
        """Returns {output name: array}; raises Refused."""
        import tensorflow as tf

        function = self.signatures[signature]
        try:
            # The op, unlike the function, neither casts nor checks its arguments in Python.
            outputs = tf.raw_ops.StatefulPartitionedCall(
                args=[tf.constant(inputs[key]) for key in sorted(inputs)] + function.captured_inputs,
                Tout=[output.dtype for output in function.outputs],
                f=function,
            )
        except (tf.errors.OpError, ValueError, TypeError) as error:
            raise Refused(str(error)) from error
        keys = sorted(function.structured_outputs)
        return {key: output.numpy() for key, output in zip(keys, outputs, strict=True)}
