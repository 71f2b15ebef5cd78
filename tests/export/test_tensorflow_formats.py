import keras
import numpy as np
import pytest

from keras_vit import export
from keras_vit.export.parity import model_outputs
from keras_vit.layers import kernels
from tests import tiny
from tests.errors import refuses

if keras.backend.backend() == "jax":
    pytest.skip("no test runs on JAX, and OpenVINO takes seconds to import", allow_module_level=True)
pytest.importorskip("tensorflow")
interpreter = pytest.importorskip("ai_edge_litert.interpreter")
openvino = pytest.importorskip("openvino")
# Only products of enough numbers are quantized.
WIDE = {"hidden_dim": 96, "mlp_dim": 192, "num_layers": 1}
BATCHES = (1, 7, 33)
PRECISIONS = [pytest.param("int8", 1.5), pytest.param("float16", 2.5)]
PRECISIONS += [pytest.param("int8", 1.5, marks=[pytest.mark.backends("torch"), pytest.mark.long])]


def compiled(path):
    return openvino.Core().compile_model(path, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})


def images_alone(count, limit=1):
    return np.random.default_rng(0).uniform(-limit, limit, (count, 16, 16, 3)).astype("float32")


def operations(path, kind):
    return [op for op in openvino.Core().read_model(path).get_ops() if op.get_type_name() == kind]


def kind_of_input(operation, i):
    return operation.input_value(i).get_node().get_type_name()


def test_openvino_returns_outputs_by_name_for_any_batch(tmp_path):
    vit = tiny.build(num_classes=0, activation="gelu")
    outputs = [keras.layers.Dense(2, name=name)(vit.output) for name in ("second", "first")]
    model = keras.Model(vit.input, outputs)
    report = export.openvino(model, tmp_path / "vit.xml")
    files = sorted(tmp_path.iterdir())
    assert [p.name for p in files] == ["vit.bin", "vit.xml"]
    assert report["size"] == sum(p.stat().st_size for p in files)
    run = compiled(tmp_path / "vit.xml")
    for images in map(images_alone, BATCHES):
        answer = run({"images": images})
        for name, wanted in zip(("second", "first"), model_outputs(model, images), strict=True):
            np.testing.assert_allclose(answer[name], wanted, atol=1e-5)


# PyTorch exports in a child process, which quantizes the model to int8 again.
@pytest.mark.parametrize("precision, share", PRECISIONS)
def test_openvino_stores_weights_in_precision(tmp_path, precision, share):
    model = tiny.build(**WIDE)
    report = export.openvino(model, tmp_path / "vit.xml", precision=precision, images=images_alone(4))
    # In int8, the patch embedding, norms, positions and biases stay in float32.
    assert (tmp_path / "vit.bin").stat().st_size < share * model.count_params()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["vit.bin", "vit.xml"]
    assert report["difference"] < 1e-5 < report["change"]["largest"] < 0.1


def test_litert_returns_outputs_for_any_batch(tmp_path):
    model = tiny.build(activation="gelu")
    export.litert(model, tmp_path / "vit.tflite")
    for images in map(images_alone, BATCHES):
        runner = interpreter.Interpreter(str(tmp_path / "vit.tflite")).get_signature_runner("serving_default")
        np.testing.assert_allclose(runner(images=images)["outputs"], model_outputs(model, images)[0], atol=1e-5)
    assert [p.name for p in tmp_path.iterdir()] == ["vit.tflite"]


@pytest.mark.parametrize("write, name", [(export.litert, "vit.tflite"), (export.openvino, "vit.xml")])
def test_attention_in_slices_is_exported(tmp_path, monkeypatch, write, name):
    monkeypatch.setattr(kernels, "_LONG", 4)
    monkeypatch.setattr(kernels, "_SLICE", 3)
    assert write(tiny.build(num_layers=1), tmp_path / name)["difference"] < 1e-5


@pytest.mark.parametrize("precision, share, image_size", [("float16", 2, (None, None)), ("int8", 1, 16)])
def test_litert_file_size_follows_precision(tmp_path, precision, share, image_size):
    model = tiny.build(**WIDE, image_size=image_size)
    report = export.litert(model, tmp_path / "vit.tflite", precision=precision, images=images_alone(4))
    # The operations take 60 kB in addition to the weights.
    assert report["size"] < share * model.count_params() + 60_000
    assert 0 < report["change"]["largest"] < 0.1


def test_static_int8_quantizes_products_and_keeps_top1(tmp_path):
    pytest.importorskip("nncf")
    model = tiny.build(**WIDE)
    images = images_alone(24)
    report = export.openvino(model, tmp_path / "vit.xml", precision="int8_static", images=images)
    assert report["change"]["num_images"] == 24 and report["change"]["same_top1"] >= 20
    assert report["change"]["largest"] > 0
    assert sorted(p.name for p in tmp_path.iterdir()) == ["vit.bin", "vit.xml"]
    # Scales of channels would fit these images only.
    assert "nncf_smooth_quant" not in (tmp_path / "vit.xml").read_text()
    # The tokens and the four kernels of a block are quantized.
    assert len(operations(tmp_path / "vit.xml", "FakeQuantize")) >= 4
    for count in (1, 5):
        assert compiled(tmp_path / "vit.xml")(images[:count])["outputs"].shape == (count, 5)


@pytest.mark.long
def test_static_int8_range_covers_every_calibration_image(tmp_path):
    pytest.importorskip("nncf")
    images = images_alone(24, 0.05)
    # The mean of all ranges would clip this image to a tenth.
    images[0] *= 20
    export.openvino(tiny.build(**WIDE), tmp_path / "vit.xml", precision="int8_static", images=images)
    quantized = [op for op in operations(tmp_path / "vit.xml", "FakeQuantize") if kind_of_input(op, 0) != "Constant"]
    readers = [[x.get_node().get_friendly_name() for x in op.output(0).get_target_inputs()] for op in quantized]
    (of_images,) = (op for op, names in zip(quantized, readers, strict=True) if "patch_embedding" in "".join(names))
    assert np.max(of_images.input_value(2).get_node().data) == pytest.approx(images.max(), rel=0.05)


@pytest.mark.long
def test_static_int8_leaves_dense_layer_with_outliers_in_float(tmp_path, monkeypatch):
    pytest.importorskip("nncf")
    # A unit of 192 that is large in all tokens is 14 times the root mean square.
    monkeypatch.setattr("keras_vit.export.tensorflow_formats._OUTLIER", 12)
    model = tiny.build(**{**WIDE, "num_layers": 2})
    model.get_layer("block_00").mlp.dense_1.bias.assign(500.0 * (np.arange(192) == 7))
    options = {"precision": "int8_static", "images": images_alone(8), "tolerance": 5}
    export.openvino(model, tmp_path / "vit.xml", **options)
    (in_float,) = (op for op in operations(tmp_path / "vit.xml", "MatMul") if kind_of_input(op, 1) == "Constant")
    # Only the second layer of the MLP has an input of the MLP's width.
    assert "block_00" in in_float.get_friendly_name() and in_float.input_value(0).get_partial_shape()[-1] == 192


def test_precision_beyond_format_or_images_raises(tmp_path):
    for write, name, precision, message in (
        (export.openvino, "vit.xml", "int8_static", "Expected `images` for the calibration of precision='int8_static'"),
        (export.onnx, "vit.onnx", "int8_static", "`precision`. Expected one of"),
        (export.litert, "vit.tflite", "bfloat16", "one of 'float32', 'float16', 'int8'. Received"),
    ):
        refuses(message, write, tiny.build(), tmp_path / name, precision=precision)
    assert not list(tmp_path.iterdir())


def test_openvino_export_reports_no_use(tmp_path, monkeypatch):
    def refuse(*_, **__):
        pytest.fail("the use was reported")

    monkeypatch.setattr(pytest.importorskip("openvino_telemetry.main").Telemetry, "init", refuse)
    export.openvino(tiny.build(num_layers=1), tmp_path / "vit.xml")
