import subprocess
import sys

import keras
import numpy as np
import pytest

from keras_vit import export
from keras_vit.export.parity import model_outputs
from tests import tiny
from tests.models.coatnet.test_model import build as coatnet

if keras.backend.backend() != "torch":
    pytest.skip("the formats are tested on PyTorch, which takes seconds to import", allow_module_level=True)
torch = pytest.importorskip("torch")
pytest.importorskip("onnxscript")
onnxruntime = pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.backends("torch")
READER = """
import sys
sys.modules.update(keras=None, keras_vit=None)
import numpy, torch

program = torch.export.load(sys.argv[1]).module()
numpy.save(sys.argv[3], program(torch.from_numpy(numpy.load(sys.argv[2])))[0].detach())
"""
ANY_SIZE = {"image_size": (None, None), "patch_size": 16}
ANY_SIZE_BFLOAT16 = {"image_size": (None, None), "dtype": "mixed_bfloat16", "num_layers": 1}


def long(*case):
    return pytest.param(*case, marks=pytest.mark.long)


def images_alone(count, size=(16, 16)):
    return np.random.default_rng(0).uniform(-1, 1, (count, *size, 3)).astype("float32")


def run_onnx(path, images):
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    assert [x.name for x in session.get_inputs()] == ["images"]
    assert [y.name for y in session.get_outputs()] == ["outputs"]
    return session.run(None, {"images": images})[0]


def test_onnx_returns_outputs_for_any_batch(tmp_path):
    model = tiny.build(activation="gelu")
    report = export.onnx(model, tmp_path / "vit.onnx")
    for images in map(images_alone, (1, 7, 33)):
        received = run_onnx(tmp_path / "vit.onnx", images)
        np.testing.assert_allclose(received, model_outputs(model, images)[0], atol=1e-5)
    assert report["size"] == (tmp_path / "vit.onnx").stat().st_size
    assert [p.name for p in tmp_path.iterdir()] == ["vit.onnx"]


@pytest.mark.parametrize("precision, image_size", [("float16", 16), long("float16", (None, None)), long("int8", 16)])
def test_onnx_stores_weights_in_precision(tmp_path, precision, image_size):
    import onnx

    # The exporter folds operations on constants of less than 8192 numbers, so small weights would become floats.
    model = tiny.build(image_size=image_size, hidden_dim=96, mlp_dim=192, num_layers=1)
    report = export.onnx(model, tmp_path / "vit.onnx", precision=precision, images=images_alone(4))
    kind = {"float16": onnx.TensorProto.FLOAT16, "int8": onnx.TensorProto.INT8}[precision]
    initializers = onnx.load(tmp_path / "vit.onnx").graph.initializer
    stored = sum(int(np.prod(x.dims)) for x in initializers if x.data_type == kind)
    assert stored > 0.8 * model.count_params()
    assert report["difference"] < 1e-4
    assert 0 < report["change"]["largest"] < 0.1


@pytest.mark.long
def test_onnx_of_coatnet_and_token_merging_matches_model(tmp_path):
    # For images of any size, the sizes of each stage are longer terms, which take the exporter minutes.
    model, images = coatnet(depths=(1, 1, 1, 1), image_size=(64, 96)), images_alone(3, (64, 96))
    export.onnx(model, tmp_path / "model.onnx")
    np.testing.assert_allclose(run_onnx(tmp_path / "model.onnx", images), model_outputs(model, images)[0], atol=1e-5)
    # With token merging, the number of tokens and their order depend on the images.
    model = tiny.build(token_merging=3, pooling="gap", num_registers=1)
    assert export.onnx(model, tmp_path / "vit.onnx")["difference"] < 1e-5


@pytest.mark.long
def test_float16_program_runs_without_keras(tmp_path):
    # With dropout the model has variables that are not weights.
    model = tiny.build(dropout_rate=0.5, hidden_dim=48, mlp_dim=96, num_layers=1)
    images = images_alone(7)
    report = export.torch_export(model, tmp_path / "vit.pt2", precision="float16", images=images)
    assert report["difference"] < 1e-5
    assert 0 < report["change"]["largest"] < 0.01
    assert [p.name for p in tmp_path.iterdir()] == ["vit.pt2"]
    weights = torch.export.load(tmp_path / "vit.pt2").state_dict.values()
    assert sum(w.numel() for w in weights if w.dtype == torch.float16) > 0.9 * model.count_params()
    np.save(tmp_path / "images.npy", images)
    files = [tmp_path / name for name in ("vit.pt2", "images.npy", "outputs.npy")]
    subprocess.run([sys.executable, "-c", READER, *files], check=True)
    np.testing.assert_allclose(np.load(tmp_path / "outputs.npy"), model_outputs(model, images)[0], atol=0.01)


@pytest.mark.parametrize(
    "changes, sizes",
    [
        (ANY_SIZE, [(1, 32, 48), (3, 96, 80), (70, 48, 48)]),
        long(ANY_SIZE_BFLOAT16, [(1, 16, 16), (70, 16, 16), (1, 84, 84)]),
        long({}, [(70, 16, 16)]),
        long({"dtype": "mixed_bfloat16"}, [(1, 16, 16), (70, 16, 16)]),
    ],
)
def test_program_accepts_sizes_other_than_traced(changes, sizes, tmp_path):
    """Products choose their way by the number of rows, and the attention by the number of tokens."""
    model = tiny.build(**changes)
    export.torch_export(model, tmp_path / "vit.pt2")
    program = torch.export.load(tmp_path / "vit.pt2").module()
    for count, *size in sizes:
        images = images_alone(count, size)
        expected = model.predict(images, verbose=0)
        with torch.no_grad():
            answer = keras.tree.flatten(program(torch.tensor(images)))[0].numpy()
        np.testing.assert_allclose(answer, expected, atol=0.05 if "dtype" in changes else 1e-5)


@pytest.mark.parametrize("changes", [{}, long({"dtype": "mixed_bfloat16"}), long({**ANY_SIZE, "patch_size": 8})])
def test_torch_module_follows_weights_of_model(changes):
    model = tiny.build(**changes)
    module = export.torch_module(model)
    assert not any(isinstance(part, keras.Layer) for part in module.modules())
    for count in (1, 5):
        images = images_alone(count)
        expected = model.predict(images, verbose=0)
        with torch.inference_mode():
            outputs = module(torch.tensor(images)).float()
            compiled = torch.compile(module, backend="eager", fullgraph=True)(torch.tensor(images)).float()
        np.testing.assert_allclose(outputs, expected, atol=0.05 if "dtype" in changes else 1e-5)
        torch.testing.assert_close(compiled, outputs)
        tiny.randomize(model, seed=count, scale=0.1)


def test_torch_module_keeps_conversion_that_copies():
    class Twice(keras.layers.Layer):
        def call(self, x):
            y = x.to(torch.float32, copy=True)
            y.add_(1.0)
            return y + x

        def compute_output_shape(self, shape):
            return shape

    inputs = keras.Input((4,))
    module = export.torch_module(keras.Model(inputs, Twice()(inputs)))
    x = torch.arange(8.0).reshape(2, 4)
    torch.testing.assert_close(module(x), 2 * torch.arange(8.0).reshape(2, 4) + 1)


def test_torch_module_ignores_train_and_checks_dtype():
    module = export.torch_module(tiny.build(num_layers=1, dropout_rate=0.5))
    images = torch.ones(2, 16, 16, 3)
    expected = module(images)
    torch.nn.Sequential(module).train()
    torch.testing.assert_close(module(images), expected)
    torch.nn.Sequential(module).eval()
    torch.testing.assert_close(module(images), expected)
    with pytest.raises(RuntimeError, match="(?i)dtype"):
        module(images.double())
