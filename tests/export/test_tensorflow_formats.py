import subprocess
import sys

import keras
import numpy as np
import pytest

from keras_vit import export
from keras_vit.export.parity import outputs_of
from keras_vit.layers import fused_attention
from tests import tiny

pytest.importorskip("tensorflow")
interpreter = pytest.importorskip("ai_edge_litert.interpreter")
openvino = pytest.importorskip("openvino")
here = pytest.mark.backends("tensorflow")


def compiled(path):
    return openvino.Core().compile_model(path, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})


def test_openvino_answers_any_number_of_images(tmp_path):
    model = tiny.build(activation="gelu")
    report = export.openvino(model, tmp_path / "vit.xml")
    files = sorted(tmp_path.iterdir())
    assert [p.name for p in files] == ["vit.bin", "vit.xml"]
    assert report.size == sum(p.stat().st_size for p in files)
    run = compiled(tmp_path / "vit.xml")
    for count in (1, 7, 33):
        images = np.random.default_rng(count).uniform(-1, 1, (count, 16, 16, 3)).astype("float32")
        np.testing.assert_allclose(run({"images": images})["outputs"], outputs_of(model, images)[0], atol=1e-5)


@here
def test_several_outputs_keep_their_names_and_order(tmp_path):
    vit = tiny.build(num_classes=0)
    outputs = [keras.layers.Dense(2, name=name)(vit.output) for name in ("second", "first")]
    model = keras.Model(vit.input, outputs)
    export.openvino(model, tmp_path / "vit.xml")
    images = np.random.default_rng(0).uniform(-1, 1, (2, 16, 16, 3)).astype("float32")
    answer = compiled(tmp_path / "vit.xml")(images)
    for name, wanted in zip(("second", "first"), outputs_of(model, images), strict=True):
        np.testing.assert_allclose(answer[name], wanted, atol=1e-5)


@here
def test_int8_kernels_of_openvino_are_stored_in_a_byte(tmp_path):
    sizes = {"hidden_dim": 96, "mlp_dim": 192, "num_layers": 1}
    model = tiny.build(**sizes)
    images = np.random.default_rng(0).uniform(-1, 1, (4, 16, 16, 3)).astype("float32")
    report = export.openvino(model, tmp_path / "vit.xml", precision="int8", images=images)
    # The patch embedding, norms, positions and biases stay as they are.
    assert (tmp_path / "vit.bin").stat().st_size < 1.5 * model.count_params()
    assert report.difference < 1e-5 < report.change.largest < 0.1


def test_litert_answers_any_number_of_images(tmp_path):
    model = tiny.build(activation="gelu")
    export.litert(model, tmp_path / "vit.tflite")
    for count in (1, 7, 33):
        images = np.random.default_rng(count).uniform(-1, 1, (count, 16, 16, 3)).astype("float32")
        runner = interpreter.Interpreter(str(tmp_path / "vit.tflite")).get_signature_runner("serving_default")
        np.testing.assert_allclose(runner(images=images)["outputs"], outputs_of(model, images)[0], atol=1e-5)
    assert [p.name for p in tmp_path.iterdir()] == ["vit.tflite"]


@here
@pytest.mark.parametrize("write, name", [(export.litert, "vit.tflite"), (export.openvino, "vit.xml")])
def test_a_long_sequence_is_exported(tmp_path, monkeypatch, write, name):
    monkeypatch.setattr(fused_attention, "_LONG", 4)
    monkeypatch.setattr(fused_attention, "_SLICE", 3)
    assert write(tiny.build(num_layers=1), tmp_path / name).difference < 1e-5


@here
@pytest.mark.parametrize("precision, share, image_size", [("float16", 2, (None, None)), ("int8", 1, 16)])
def test_smaller_weights_make_smaller_litert_files(tmp_path, precision, share, image_size):
    sizes = {"hidden_dim": 96, "mlp_dim": 192, "num_layers": 1}
    model = tiny.build(image_size=image_size, **sizes)
    images = np.random.default_rng(0).uniform(-1, 1, (4, 16, 16, 3)).astype("float32")
    report = export.litert(model, tmp_path / "vit.tflite", precision=precision, images=images)
    # Bytes a weight, and what the operations take.
    assert report.size < share * model.count_params() + 60_000
    assert 0 < report.change.largest < 0.1


def test_litert_refuses_bfloat16(tmp_path):
    with pytest.raises(ValueError, match="`precision`. Expected one of 'float32', 'float16', 'int8'. Received"):
        export.litert(tiny.build(), tmp_path / "vit.tflite", precision="bfloat16")


@here
def test_static_int8_computes_in_int8_and_keeps_the_classes(tmp_path):
    pytest.importorskip("nncf")
    model = tiny.build(hidden_dim=96, mlp_dim=192, num_layers=1, head_init="glorot_uniform")
    images = np.random.default_rng(0).uniform(-1, 1, (24, 16, 16, 3)).astype("float32")
    report = export.openvino(model, tmp_path / "vit.xml", precision="int8_static", images=images)
    assert report.change.num_images == 24 and report.change.same_top1 >= 20
    assert report.change.largest > 0
    assert sorted(p.name for p in tmp_path.iterdir()) == ["vit.bin", "vit.xml"]
    # Scales of channels would fit these images alone.
    assert "nncf_smooth_quant" not in (tmp_path / "vit.xml").read_text()
    kinds = [op.get_type_name() for op in openvino.Core().read_model(tmp_path / "vit.xml").get_ops()]
    # Of the tokens and of the four kernels of a block.
    assert kinds.count("FakeQuantize") >= 4
    for count in (1, 5):
        assert compiled(tmp_path / "vit.xml")(images[:count])["outputs"].shape == (count, 5)


@here
def test_static_int8_clips_no_image_that_it_was_calibrated_on(tmp_path):
    pytest.importorskip("nncf")
    model = tiny.build(hidden_dim=96, mlp_dim=192, num_layers=1, head_init="glorot_uniform")
    images = np.random.default_rng(0).uniform(-0.05, 0.05, (24, 16, 16, 3)).astype("float32")
    # By the mean of all ranges, it would be clipped to a tenth.
    images[0] *= 20
    export.openvino(model, tmp_path / "vit.xml", precision="int8_static", images=images)
    (of_images,) = [
        op
        for op in openvino.Core().read_model(tmp_path / "vit.xml").get_ops()
        if op.get_type_name() == "FakeQuantize"
        and op.input_value(0).get_node().get_type_name() != "Constant"
        and "patch_embedding" in "".join(t.get_node().get_friendly_name() for t in op.output(0).get_target_inputs())
    ]
    assert np.max(of_images.input_value(2).get_node().data) == pytest.approx(images.max(), rel=0.05)


@here
def test_static_int8_leaves_products_of_outliers_in_float(tmp_path, monkeypatch):
    pytest.importorskip("nncf")
    # A unit of 192 that is large in all tokens is 14 times the root mean square.
    monkeypatch.setattr("keras_vit.export.tensorflow_formats._OUTLIER", 12)
    model = tiny.build(hidden_dim=96, mlp_dim=192, head_init="glorot_uniform")
    bias = model.get_layer("block_00").mlp.dense_1.bias
    bias.assign(500.0 * (np.arange(192) == 7))
    images = np.random.default_rng(0).uniform(-1, 1, (8, 16, 16, 3)).astype("float32")
    export.openvino(model, tmp_path / "vit.xml", precision="int8_static", images=images, tolerance=5)
    kernels = {
        op.get_friendly_name(): op.input_value(1).get_node().get_type_name()
        for op in openvino.Core().read_model(tmp_path / "vit.xml").get_ops()
        if op.get_type_name() == "MatMul"
    }
    in_float = [name for name, kind in kernels.items() if kind == "Constant"]
    assert len(in_float) == 1 and "block_00" in in_float[0] and "dense_2" in in_float[0]


@here
def test_static_int8_of_products_that_share_an_input_which_is_an_output(tmp_path):
    pytest.importorskip("nncf")
    vit = tiny.build(hidden_dim=96, mlp_dim=192, num_layers=1, num_classes=0, pooling="map")
    heads = [keras.layers.Dense(2, name=name)(vit.output) for name in ("second", "first")]
    model = keras.Model(vit.input, [vit.output, *heads])
    images = np.random.default_rng(0).uniform(-1, 1, (4, 16, 16, 3)).astype("float32")
    report = export.openvino(model, tmp_path / "vit.xml", precision="int8_static", images=images)
    assert report.change.num_images == 4
    answer = compiled(tmp_path / "vit.xml")(images)
    assert [answer[name].shape for name in ("second", "first")] == [(4, 2), (4, 2)]


def test_static_int8_needs_images(tmp_path):
    with pytest.raises(ValueError, match="Expected `images` to calibrate with for precision='int8_static'"):
        export.openvino(tiny.build(), tmp_path / "vit.xml", precision="int8_static")
    with pytest.raises(ValueError, match="`precision`. Expected one of"):
        export.onnx(tiny.build(), tmp_path / "vit.onnx", precision="int8_static")
    assert not list(tmp_path.iterdir())


def test_openvino_reports_to_nobody():
    script = (
        "import sys\nfrom keras_vit.export import tensorflow_formats\nopenvino = tensorflow_formats._openvino()\n"
        "assert 'openvino_telemetry' not in sys.modules, 'imported'\nimport openvino_telemetry"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
