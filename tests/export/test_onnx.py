import keras
import numpy as np
import pytest

from keras_vit import export
from keras_vit.export.parity import answers
from tests import tiny

pytest.importorskip("torch")
pytest.importorskip("onnxscript")
onnxruntime = pytest.importorskip("onnxruntime")


def test_onnxruntime_answers_any_number_of_images(tmp_path):
    model = tiny.build(activation="gelu")
    report = export.onnx(model, tmp_path / "vit.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "vit.onnx", providers=["CPUExecutionProvider"])
    assert [(x.name, x.shape[1:]) for x in session.get_inputs()] == [("images", [16, 16, 3])]
    assert [(y.name, y.shape[1:]) for y in session.get_outputs()] == [("outputs", [5])]
    for count in (1, 7, 33):
        images = np.random.default_rng(count).uniform(-1, 1, (count, 16, 16, 3)).astype("float32")
        (received,) = session.run(None, {"images": images})
        np.testing.assert_allclose(received, answers(model, images)[0], atol=1e-5)
    assert report.size == (tmp_path / "vit.onnx").stat().st_size
    assert [p.name for p in tmp_path.iterdir()] == ["vit.onnx"]


@pytest.mark.skipif(keras.backend.backend() != "torch", reason="PyTorch writes it for every backend")
@pytest.mark.parametrize("precision, image_size", [("float16", (None, None)), ("int8", 16)])
def test_smaller_weights_are_stored_as_such(tmp_path, precision, image_size):
    import onnx

    # The exporter computes constants of less than 8192 numbers in advance, which makes floats of them.
    model = tiny.build(image_size=image_size, hidden_dim=96, mlp_dim=192, num_layers=1)
    images = np.random.default_rng(0).uniform(-1, 1, (4, 16, 16, 3)).astype("float32")
    report = export.onnx(model, tmp_path / "vit.onnx", precision=precision, images=images)
    kind = {"float16": onnx.TensorProto.FLOAT16, "int8": onnx.TensorProto.INT8}[precision]
    initializers = onnx.load(tmp_path / "vit.onnx").graph.initializer
    stored = sum(int(np.prod(x.dims)) for x in initializers if x.data_type == kind)
    assert stored > 0.8 * model.count_params()
    assert report.difference < 1e-4
    assert 0 < report.change.largest < 0.1
