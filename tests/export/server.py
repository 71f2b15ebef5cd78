"""A process that answers requests with a SavedModel."""

import os
import pickle
import subprocess
import sys
from pathlib import Path

from keras_vit.export.saved_files import WARM_UP, read_signatures


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
    """Runs session.py in another process, so that a crash does not end the tests."""

    def __init__(self, folder):
        self.signatures = read_signatures(folder)
        environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
        self.process = subprocess.Popen(
            [sys.executable, Path(__file__).with_name("session.py"), str(folder)],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )

    def ask(self, signature, **inputs):
        """Returns {output name: array}; raises Refused, or EOFError if the process has ended."""
        pickle.dump((signature, inputs), self.process.stdin)
        self.process.stdin.flush()
        answer = pickle.load(self.process.stdout)
        if isinstance(answer, str):
            raise Refused(answer)
        return answer

    def close(self):
        self.process.stdin.close()
        self.process.wait(timeout=60)
