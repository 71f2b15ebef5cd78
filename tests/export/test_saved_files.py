import numpy as np
import pytest

from tests.export.server import warm_up_requests

tf = pytest.importorskip("tensorflow")

from keras_vit.export.saved_files import WARM_UP, _write_warm_up  # noqa: E402


def test_warm_up_requests_are_read_back(tmp_path):
    requests = [
        ("one", "images", np.zeros((2, 3, 4, 1), "float32")),
        ("two", "images", np.full((1, 2), 200, "uint8")),
        ("n" * 200, "image_bytes", np.array([b"abc", b"", b"x" * 300], object)),
    ]
    _write_warm_up(tmp_path, [(name, key, tf.make_tensor_proto(array)) for name, key, array in requests])
    found = [(name, *inputs.items()) for name, inputs in warm_up_requests(tmp_path)]
    for (name, (key, value)), (expected_name, expected_key, expected) in zip(found, requests, strict=True):
        assert (name, key, value.dtype) == (expected_name, expected_key, expected.dtype)
        np.testing.assert_array_equal(value, expected)


def test_warm_up_message_has_tensorflow_serving_fields(tmp_path):
    """The expected bytes follow the field numbers of PredictionLog, PredictLog, PredictRequest and ModelSpec."""
    _write_warm_up(tmp_path, [("s", "x", tf.make_tensor_proto([b"a"]))])
    (record,) = tf.data.TFRecordDataset([str(tmp_path / WARM_UP)])
    tensor = tf.make_tensor_proto([b"a"]).SerializeToString()
    entry = b"\x0a\x01x" + b"\x12" + bytes([len(tensor)]) + tensor
    request = b"\x0a\x03" + b"\x1a\x01s" + b"\x12" + bytes([len(entry)]) + entry
    log = b"\x0a" + bytes([len(request)]) + request
    assert record.numpy() == b"\x32" + bytes([len(log)]) + log
