import keras
import numpy as np
import pytest

from keras_vit import export
from keras_vit.export.parity import answers
from tests import tiny

pytest.importorskip("tensorflow")
interpreter = pytest.importorskip("ai_edge_litert.interpreter")


def test_litert_answers_any_number_of_images(tmp_path):
    model = tiny.build(activation="gelu")
    export.litert(model, tmp_path / "vit.tflite")
    for count in (1, 7, 33):
        images = np.random.default_rng(count).uniform(-1, 1, (count, 16, 16, 3)).astype("float32")
        runner = interpreter.Interpreter(str(tmp_path / "vit.tflite")).get_signature_runner("serving_default")
        np.testing.assert_allclose(runner(images=images)["outputs"], answers(model, images)[0], atol=1e-5)
    assert [p.name for p in tmp_path.iterdir()] == ["vit.tflite"]


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="TensorFlow writes it for every backend")
@pytest.mark.parametrize("precision, share, image_size", [("float16", 2, (None, None)), ("int8", 1, 16)])
def test_smaller_weights_make_smaller_files(tmp_path, precision, share, image_size):
    sizes = {"hidden_dim": 96, "mlp_dim": 192, "num_layers": 1}
    model = tiny.build(image_size=image_size, **sizes)
    images = np.random.default_rng(0).uniform(-1, 1, (4, 16, 16, 3)).astype("float32")
    report = export.litert(model, tmp_path / "vit.tflite", precision=precision, images=images)
    # Bytes a weight, and what the operations take.
    assert report.size < share * model.count_params() + 60_000
    assert 0 < report.change.largest < 0.1


def test_bfloat16_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"for \.tflite files, one of float32, float16, int8"):
        export.litert(tiny.build(), tmp_path / "vit.tflite", precision="bfloat16")
