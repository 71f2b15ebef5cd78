"""Writes and runs LiteRT and OpenVINO files, converted from a plain SavedModel on TensorFlow."""

import functools
import os
import tempfile
from pathlib import Path

import numpy as np

from keras_vit.export.parity import STATIC, stored
from keras_vit.export.saved_files import write_plain
from keras_vit.layers.kernels import in_one_piece

# Limit of largest value / root mean square. Above it, a step of 8 bits is over a third of the root mean square.
_OUTLIER = 100


def write_litert(model, path, settings):
    """Writes a LiteRT file."""
    import tensorflow as tf

    with tempfile.TemporaryDirectory(prefix="keras_vit_") as folder:
        # LiteRT cannot loop over slices of an unknown number of images.
        with in_one_piece():
            write_plain(model, folder, settings["names"])
        converter = tf.lite.TFLiteConverter.from_saved_model(folder, signature_keys=["serving_default"])
        if settings["precision"] == "float16":
            converter.optimizations = [tf.lite.Optimize.DEFAULT]
            converter.target_spec.supported_types = [tf.float16]
        Path(path).write_bytes(converter.convert())


def run_litert(path, batches, settings):
    """Yields the outputs of a LiteRT file."""
    from ai_edge_litert.interpreter import Interpreter

    for batch in batches:
        # An interpreter cannot be resized while its outputs are referenced, so make one per batch.
        outputs = Interpreter(model_path=os.fspath(path)).get_signature_runner("serving_default")(images=batch)
        yield [np.array(outputs[name], "float32") for name in settings["names"]]


def write_openvino(model, path, settings):
    """Writes OpenVINO's .xml and .bin; stores weights in the precision if that is exact."""
    import openvino

    with tempfile.TemporaryDirectory(prefix="keras_vit_") as folder:
        write_plain(model, folder, settings["names"])
        # `openvino.convert_model` reports its use to Intel, so avoid it.
        converted = openvino.Core().read_model(folder)
        if settings["precision"] not in ("float32", STATIC):
            _shrink(converted, settings["precision"])
        openvino.save_model(converted, os.fspath(path), compress_to_fp16=False)


def run_openvino(path, batches, settings):
    """Yields the outputs of OpenVINO's files on the CPU in float32."""
    compiled = _compiled(os.fspath(path))
    for batch in batches:
        outputs = compiled(batch)
        yield [np.array(outputs[name], "float32") for name in settings["names"]]


def calibrate_openvino(path, batches):
    """Quantizes OpenVINO's files to int8: weights, and activations by their range on the images.

    Dense layers whose input has outliers stay in float.
    """
    # NNCF reports its use to Intel unless this variable is set before the import.
    os.environ.setdefault("NNCF_CI", "1")
    import nncf
    import openvino
    from nncf.quantization.advanced_parameters import AdvancedSmoothQuantParameters
    from nncf.quantization.range_estimator import RangeEstimatorParametersSet

    images = [batch[i : i + 1] for batch in batches for i in range(len(batch))]
    read = functools.partial(openvino.Core().read_model, os.fspath(path))
    quantized = nncf.quantize(
        read(),
        nncf.Dataset(images),
        model_type=nncf.ModelType.TRANSFORMER,
        subset_size=len(images),
        ignored_scope=nncf.IgnoredScope(names=_with_outliers(read(), images)),
        advanced_parameters=nncf.AdvancedQuantizationParameters(
            # Use kernels of 7 bits: with 8 bits, sums saturate on processors without VNNI.
            overflow_fix=nncf.OverflowFix.ENABLE,
            # NNCF's default, the mean of the images' ranges, clips the largest values of half of the images.
            activations_range_estimator_params=RangeEstimatorParametersSet.MINMAX,
            # NNCF scales each channel to its range on these images by default, which clips values of other images.
            smooth_quant_alphas=AdvancedSmoothQuantParameters(convolution=-1, matmul=-1),
        ),
    )
    # The model keeps its file of weights open, so write to another folder.
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        openvino.save_model(quantized, os.path.join(folder, path.name), compress_to_fp16=False)
        del quantized
        for file in Path(folder).iterdir():
            os.replace(file, path.with_name(file.name))


def _with_outliers(model, images):
    """Returns the names of the dense products whose largest input is above `_OUTLIER` times the root mean square.

    Trained ViTs have such inputs in the MLPs of some blocks (arXiv 2402.17762).
    """
    import openvino
    from openvino import opset13

    products = [op for op in model.get_ops() if op.get_type_name() == "MatMul"]
    products = [op for op in products if op.input_value(1).get_node().get_type_name() == "Constant"]
    if not products:
        return []
    figures = []
    for x in (op.input_value(0) for op in products):
        axes = np.arange(x.get_partial_shape().rank.get_length())
        figures.append(opset13.reduce_max(opset13.abs(x), axes))
        figures.append(opset13.reduce_mean(opset13.multiply(x, x), axes))
    compiled = _compiled(openvino.Model(figures, model.get_parameters()))
    received = np.array([compiled(image).to_tuple() for image in images], "float64")
    largest, squares = received[:, ::2].max(0), received[:, 1::2].mean(0)
    large = largest > _OUTLIER * squares**0.5
    return [op.get_friendly_name() for op, is_large in zip(products, large, strict=True) if is_large]


def _compiled(model):
    """Compiles a model or a model file for the CPU in float32."""
    import openvino

    return openvino.Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})


def _shrink(converted, precision):
    """Stores constants in a precision if that is exact; OpenVINO's compression would also round epsilons."""
    import openvino
    from openvino import opset13

    kind = {"float16": openvino.Type.f16, "bfloat16": openvino.Type.bf16, "int8": openvino.Type.i8}[precision]
    for constant in [op for op in converted.get_ops() if op.get_type_name() == "Constant"]:
        if constant.get_element_type() != openvino.Type.f32 or stored(constant.data, precision) is None:
            continue
        restored = opset13.convert(opset13.constant(np.array(constant.data), kind), "f32")
        for target in constant.output(0).get_target_inputs():
            target.replace_source_output(restored.output(0))
