import subprocess
import sys

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit import export
from keras_vit.export.parity import outputs_of
from tests import tiny
from tests.models.test_coatnet import build as coatnet

pytest.importorskip("torch")
pytest.importorskip("onnxscript")
onnxruntime = pytest.importorskip("onnxruntime")
here = pytest.mark.backends("torch")
READER = """
import sys
sys.modules.update(keras=None, keras_vit=None)
import numpy, torch

program = torch.export.load(sys.argv[1]).module()
numpy.save(sys.argv[3], program(torch.from_numpy(numpy.load(sys.argv[2])))[0].detach())
"""


@pytest.mark.backends("tensorflow", "torch")
def test_onnxruntime_answers_any_number_of_images(tmp_path):
    model = tiny.build(activation="gelu")
    report = export.onnx(model, tmp_path / "vit.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "vit.onnx", providers=["CPUExecutionProvider"])
    assert [(x.name, x.shape[1:]) for x in session.get_inputs()] == [("images", [16, 16, 3])]
    assert [(y.name, y.shape[1:]) for y in session.get_outputs()] == [("outputs", [5])]
    for count in (1, 7, 33):
        images = np.random.default_rng(count).uniform(-1, 1, (count, 16, 16, 3)).astype("float32")
        (received,) = session.run(None, {"images": images})
        np.testing.assert_allclose(received, outputs_of(model, images)[0], atol=1e-5)
    assert report.size == (tmp_path / "vit.onnx").stat().st_size
    assert [p.name for p in tmp_path.iterdir()] == ["vit.onnx"]


@here
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


# With KERAS_VIT_EVERYWHERE=1 alone, since each stage's sizes are longer terms, which take the exporter minutes.
@pytest.mark.long
@here
def test_a_coatnet_of_any_size(tmp_path):
    model = coatnet(depths=(1, 1, 1, 1), image_size=(None, None))
    export.onnx(model, tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    images = np.random.default_rng(0).uniform(-1, 1, (3, 64, 96, 3)).astype("float32")
    (received,) = session.run(None, {"images": images})
    np.testing.assert_allclose(received, outputs_of(model, images)[0], atol=1e-5)


@here
def test_a_model_that_merges_tokens(tmp_path):
    # The sequence and its order depend on the images.
    model = tiny.build(token_merging=3, pooling="gap", num_registers=1)
    assert export.onnx(model, tmp_path / "vit.onnx").difference < 1e-5


@here
def test_a_model_of_any_size_with_small_weights_keeps_its_answers(tmp_path):
    sizes = {"hidden_dim": 48, "mlp_dim": 96, "num_layers": 1}
    # With dropout the model has variables that are no weights.
    model = tiny.build(image_size=(None, None), dropout_rate=0.5, **sizes)
    images = np.random.default_rng(0).uniform(-1, 1, (7, 16, 16, 3)).astype("float32")
    report = export.torch_export(model, tmp_path / "vit.pt2", precision="float16", images=images)
    assert report.difference < 1e-5
    assert 0 < report.change.largest < 0.01
    assert [p.name for p in tmp_path.iterdir()] == ["vit.pt2"]
    import torch

    weights = torch.export.load(tmp_path / "vit.pt2").state_dict.values()
    assert sum(w.numel() for w in weights if w.dtype == torch.float16) > 0.9 * model.count_params()
    # It runs where there is no Keras.
    np.save(tmp_path / "images.npy", images)
    files = [tmp_path / name for name in ("vit.pt2", "images.npy", "outputs.npy")]
    subprocess.run([sys.executable, "-c", READER, *files], check=True)
    np.testing.assert_allclose(np.load(tmp_path / "outputs.npy"), outputs_of(model, images)[0], atol=0.01)


@here
@pytest.mark.parametrize(
    ("changes", "sizes"),
    [
        ({}, [(70, 16, 16)]),
        ({"dtype": "mixed_bfloat16"}, [(1, 16, 16), (70, 16, 16)]),
        ({"image_size": (None, None), "patch_size": 16}, [(1, 32, 48), (3, 96, 80), (70, 48, 48)]),
        ({"image_size": (None, None), "dtype": "mixed_bfloat16", "num_layers": 1}, [(1, 84, 84)]),
    ],
    ids=["plain", "bfloat16", "any size", "more tokens"],
)
def test_a_program_is_not_tied_to_the_sizes_that_it_was_made_with(changes, sizes, tmp_path):
    """Which way a product takes here depends on its rows, and that of the attention on the tokens."""
    import torch

    model = tiny.build(**changes)
    export.torch_export(model, tmp_path / "vit.pt2")
    program = torch.export.load(tmp_path / "vit.pt2").module()
    for size in sizes:
        images = np.random.default_rng(0).uniform(-1, 1, (*size, 3)).astype("float32")
        with torch.no_grad():
            answer = program(torch.tensor(images))
        expected = model.predict(images, verbose=0)
        tolerance = 0.05 if "dtype" in changes else 1e-5
        np.testing.assert_allclose(keras.tree.flatten(answer)[0].numpy(), expected, atol=tolerance)


@here
@pytest.mark.parametrize("changes", [{}, {"image_size": (None, None), "patch_size": 8}, {"dtype": "mixed_bfloat16"}])
def test_a_module_computes_with_the_weights_of_its_model(changes):
    import torch

    model = tiny.build(**changes)
    module = export.torch_module(model)
    assert not any(isinstance(part, keras.Layer) for part in module.modules())
    for count in (1, 5):
        images = np.random.default_rng(count).uniform(-1, 1, (count, 16, 16, 3)).astype("float32")
        for _ in range(2):
            expected = model.predict(images, verbose=0)
            with torch.inference_mode():
                outputs = module(torch.tensor(images)).float()
                compiled = torch.compile(module, backend="eager", fullgraph=True)(torch.tensor(images)).float()
            np.testing.assert_allclose(outputs, expected, atol=0.05 if "dtype" in changes else 1e-5)
            torch.testing.assert_close(compiled, outputs)
            tiny.randomize(model, seed=count, scale=0.1)


@here
def test_a_module_has_no_operation_that_changes_nothing():
    import torch

    nodes = list(export.torch_module(tiny.build(num_layers=1)).program.graph.nodes)
    # The patches, the attention's output and the MLP's two: the only block has a single query.
    assert [str(node.target) for node in nodes].count("aten.linear.default") == 4
    assert not [node for node in nodes if str(node.target).startswith("aten.to.")]
    # What a user passes is checked, and nothing else.
    assert {node.args[0].name for node in nodes if "_assert_tensor_metadata" in str(node.target)} == {"images"}
    # Where numbers change their type it stays.
    mixed = export.torch_module(tiny.build(num_layers=1, dtype="mixed_bfloat16"))
    assert any(str(node.target).startswith("aten.to.") for node in mixed.program.graph.nodes)
    assert mixed(torch.zeros(1, 16, 16, 3)).shape == (1, 5)


@here
def test_a_module_of_several_outputs_returns_a_tuple():
    import torch

    model = keras_vit.features(tiny.build(), blocks=(0, 1))
    outputs = export.torch_module(model)(torch.zeros(2, 16, 16, 3))
    assert [tuple(y.shape) for y in outputs] == [
        tuple(y.shape) for y in keras.tree.flatten(model(np.zeros((2, 16, 16, 3))))
    ]


@pytest.mark.backends("tensorflow", "jax")
def test_a_module_is_made_on_pytorch_alone():
    with pytest.raises(ValueError, match="Expected a model built on PyTorch.*torch_export"):
        export.torch_module(tiny.build())


@here
def test_a_copy_is_a_conversion_that_changes_something():
    import torch

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


@here
def test_a_module_has_one_mode_and_tells_of_other_dtypes():
    import torch

    module = export.torch_module(tiny.build(num_layers=1, dropout_rate=0.5))
    images = torch.ones(2, 16, 16, 3)
    expected = module(images)
    torch.nn.Sequential(module).train()
    torch.testing.assert_close(module(images), expected)
    torch.nn.Sequential(module).eval()
    torch.testing.assert_close(module(images), expected)
    with pytest.raises(RuntimeError, match="(?i)dtype"):
        module(images.double())
