"""A model that merges tokens, whose sequence and its order depend on the images."""

import pytest

from keras_vit import export
from tests import tiny


def test_saved_model_answers_as_the_model(tmp_path):
    pytest.importorskip("tensorflow")
    model = tiny.build(token_merging=3, pooling="gap", num_registers=1)
    # In the format's own runtime, beside the model.
    assert export.saved_model(model, tmp_path / "1").difference < 1e-5


@pytest.mark.tried_on("torch")
def test_onnx_answers_as_the_model(tmp_path):
    for package in ("torch", "onnxscript", "onnxruntime"):
        pytest.importorskip(package)
    model = tiny.build(token_merging=3, pooling="gap", num_registers=1)
    assert export.onnx(model, tmp_path / "vit.onnx").difference < 1e-5
