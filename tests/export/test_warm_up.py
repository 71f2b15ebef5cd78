import keras
import numpy as np
import pytest

tf = pytest.importorskip("tensorflow", reason="the file is TensorFlow's")

from keras_vit.export import warm_up  # noqa: E402

if keras.backend.backend() != "tensorflow":
    pytest.skip("the file is written by TensorFlow on every backend", allow_module_level=True)


def test_requests_come_back_as_they_were(tmp_path):
    bytes_input = np.array([b"abc", b"", b"x" * 300], object)
    requests = [
        ("one", {"images": np.zeros((2, 3, 4, 1), "float32")}),
        ("two", {"images": np.full((1, 2), 200, "uint8"), "other": np.arange(6.0).reshape(2, 3)}),
        ("n" * 200, {"image_bytes": bytes_input}),
    ]
    warm_up.write(tmp_path, requests)
    for (name, inputs), (expected_name, expected) in zip(warm_up.read(tmp_path), requests, strict=True):
        assert name == expected_name and set(inputs) == set(expected)
        for key, value in inputs.items():
            assert value.dtype == expected[key].dtype
            np.testing.assert_array_equal(value, expected[key])


def test_the_messages_are_those_that_the_server_reads(tmp_path):
    """Written out by hand from the field numbers of PredictionLog, PredictLog, PredictRequest and ModelSpec."""
    warm_up.write(tmp_path, [("s", {"x": np.array([b"a"], object)})])
    (record,) = tf.data.TFRecordDataset([str(tmp_path / warm_up.FILE)])
    tensor = tf.make_tensor_proto([b"a"]).SerializeToString()
    entry = b"\x0a\x01x" + b"\x12" + bytes([len(tensor)]) + tensor
    request = b"\x0a\x03" + b"\x1a\x01s" + b"\x12" + bytes([len(entry)]) + entry
    log = b"\x0a" + bytes([len(request)]) + request
    assert record.numpy() == b"\x32" + bytes([len(log)]) + log


def test_equal_numbers_take_a_few_bytes(tmp_path):
    warm_up.write(tmp_path, [("s", {"x": np.zeros((8, 384, 384, 3), "float32")})])
    assert (tmp_path / warm_up.FILE).stat().st_size < 200
