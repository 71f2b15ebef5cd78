"""The requests that TensorFlow Serving answers itself before it takes others, so that no client waits for the first.

They are a TFRecord file of PredictionLog messages beside the model. The few fields of those messages that are needed
are written here in protobuf's own wire format: their Python classes come with no package that runs on every Python.
"""

import os
from pathlib import Path

import numpy as np
import tensorflow as tf

FILE = Path("assets.extra", "tf_serving_warmup_requests")
# The class itself is not public.
_tensor_proto = type(tf.make_tensor_proto(0))
# Numbers of fields: PredictionLog.predict_log, PredictLog.request, PredictRequest.model_spec and .inputs, the latter's
# key and value, ModelSpec.signature_name.
_PREDICT_LOG, _REQUEST, _MODEL_SPEC, _INPUTS, _KEY, _VALUE, _SIGNATURE_NAME = 6, 1, 1, 2, 1, 2, 3


def write(folder, requests):
    """Writes requests beside a SavedModel.

    Args:
        folder: The SavedModel's folder.
        requests: Pairs of a signature's name and {input's name: array}. An array of one and the same number, whatever
            its shape, takes a few bytes.

    Example:

    >>> import tempfile
    >>> from keras_vit.export import warm_up
    >>> folder = tempfile.mkdtemp()
    >>> warm_up.write(folder, [("serving_default", {"images": np.zeros((1, 224, 224, 3), "float32")})])
    >>> [(name, inputs["images"].shape) for name, inputs in warm_up.read(folder)]
    [('serving_default', (1, 224, 224, 3))]
    """
    path = Path(folder, FILE)
    path.parent.mkdir(exist_ok=True)
    with tf.io.TFRecordWriter(os.fspath(path)) as file:
        for signature, inputs in requests:
            request = _field(_MODEL_SPEC, _field(_SIGNATURE_NAME, signature.encode()))
            for name, array in inputs.items():
                tensor = _tensor(np.asarray(array)).SerializeToString()
                request += _field(_INPUTS, _field(_KEY, name.encode()) + _field(_VALUE, tensor))
            file.write(_field(_PREDICT_LOG, _field(_REQUEST, request)))


def read(folder):
    """Reads the requests beside a SavedModel, those that `write` wrote or another program did.

    Args:
        folder: The SavedModel's folder.

    Returns:
        List of pairs of a signature's name and {input's name: array}.
    """
    requests = []
    for record in tf.data.TFRecordDataset([os.fspath(Path(folder, FILE))]):
        request = _fields(_fields(_fields(record.numpy())[_PREDICT_LOG][0])[_REQUEST][0])
        signature = _fields(request[_MODEL_SPEC][0])[_SIGNATURE_NAME][0].decode()
        inputs = {}
        for entry in map(_fields, request[_INPUTS]):
            inputs[entry[_KEY][0].decode()] = tf.make_ndarray(_tensor_proto.FromString(entry[_VALUE][0]))
        requests.append((signature, inputs))
    return requests


def _tensor(array):
    """An array as TensorProto, in which one number stands for all that follow."""
    if array.dtype.kind not in "fiu" or array.size == 0 or (array != array.flat[0]).any():
        return tf.make_tensor_proto(array)
    tensor = tf.make_tensor_proto(array.flat[:1].copy())
    tensor.tensor_shape.CopyFrom(tf.TensorShape(array.shape).as_proto())
    return tensor


def _field(number, payload):
    """A field whose value is bytes: a string or a message."""
    return _varint(number << 3 | 2) + _varint(len(payload)) + payload


def _varint(value):
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])


def _fields(message):
    """The values of a message's fields by number, each a list."""
    fields, at = {}, 0

    def varint():
        nonlocal at
        value, shift = 0, 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(message):
        number, kind = divmod(varint(), 8)
        if kind == 0:
            value = varint()
        else:
            # Fixed widths of 8 and 4 bytes, or a length and so many bytes.
            size = {1: 8, 5: 4}[kind] if kind != 2 else varint()
            value = message[at : at + size]
            at += size
        fields.setdefault(number, []).append(value)
    return fields
