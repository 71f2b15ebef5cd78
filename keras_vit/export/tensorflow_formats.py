"""Writes SavedModels on TensorFlow, converts them to LiteRT and OpenVINO files, and runs all three formats."""

import functools
import os
import tempfile
from pathlib import Path

import keras
import numpy as np

from keras_vit import arguments
from keras_vit.export import parity
from keras_vit.export.parity import STATIC, stored
from keras_vit.layers.kernels import in_one_piece

# This file in the folder of a SavedModel contains warm-up requests. TensorFlow Serving runs them while it loads the
# model, so that no client waits for the first request.
WARM_UP = Path("assets.extra", "tf_serving_warmup_requests")


def write_plain(model, folder, names):
    """Writes a SavedModel of one signature. Converters cannot read image decoders and input limits, so it has none."""
    import tensorflow as tf

    def serve(images):
        return dict(zip(names, keras.tree.flatten(model(images, training=False)), strict=True))

    (x,) = model.inputs
    signature = tf.function(serve, autograph=False, input_signature=[tf.TensorSpec(x.shape, x.dtype, name="images")])
    _save(model, folder, {"serving_default": signature.get_concrete_function()})


def _save(model, folder, signatures, asset=None):
    import tensorflow as tf

    # Track only the weights: if the layers were tracked too, each variable would be stored twice.
    module = tf.Module()
    module.weights, module.asset = [variable.value for variable in model.variables], asset
    tf.saved_model.save(module, str(folder), signatures=signatures)


def write_saved_model(model, folder, settings):
    """Writes a SavedModel for TensorFlow Serving; needs the TensorFlow backend."""
    import tensorflow as tf

    from keras_vit.export.signatures import Server

    server = Server(model, **settings["server"], names=settings["names"])
    with tempfile.TemporaryDirectory(prefix="keras_vit_") as assets:
        asset = None
        if (postprocess := settings["server"]["postprocess"]) is not None:
            file = Path(assets, "labels.txt")
            file.write_text("".join(f"{name}\n" for name in postprocess["labels"]), encoding="utf-8")
            asset = tf.saved_model.Asset(str(file))
        try:
            _save(model, folder, server.signatures(settings["attention"]), asset)
        except tf.errors.OpError as error:
            # If the disk is full, TensorFlow raises OpError with the temporary path in its message. Raise OSError with
            # the user's path instead.
            reason = error.message.rpartition("; ")[2]
            raise OSError(f"Cannot write '{folder.parent.parent / folder.name}': {reason}") from error
    if settings["warm_up"]:
        _write_warm_up(folder, settings)


def run_saved_model(folder, batches, settings):
    """Yields the outputs of the signature `serving_default`."""
    import tensorflow as tf

    serve = tf.saved_model.load(str(folder)).signatures["serving_default"]
    step = min(settings["server"]["max_batch_size"], parity.BATCH)
    for batch in batches:
        answers = [serve(images=tf.constant(part)) for part in parity.split_batches(batch, step)]
        yield [np.concatenate([answer[name].numpy() for answer in answers]) for name in settings["names"]]


def _write_warm_up(folder, settings):
    """Writes a warm-up request for each signature and each batch size into a SavedModel folder."""
    import tensorflow as tf
    from tensorflow_serving.apis import model_pb2, predict_pb2, prediction_log_pb2

    path, (height, width) = Path(folder, WARM_UP), settings["server"]["image_size"]
    path.parent.mkdir(exist_ok=True)
    picture = tf.io.encode_jpeg(tf.fill((height, width, 3), tf.constant(127, "uint8"))).numpy()
    with tf.io.TFRecordWriter(str(path)) as file:
        for name, (inputs, _) in sorted(read_signatures(folder).items()):
            ((key, (kind, shape)),) = inputs.items()
            for count in settings["warm_up"]:
                # `make_tensor_proto` fills the shape with the single value 0.
                zeros = (0, kind, (count, height, width, shape[-1]))
                tensor = tf.make_tensor_proto(*([[picture] * count] if kind == "string" else zeros))
                spec = model_pb2.ModelSpec(signature_name=name)
                request = predict_pb2.PredictRequest(model_spec=spec, inputs={key: tensor})
                log = prediction_log_pb2.PredictLog(request=request)
                file.write(prediction_log_pb2.PredictionLog(predict_log=log).SerializeToString())


def describe(path):
    """Returns a text with one line for each signature of a SavedModel, sorted by name. The model is not loaded.

    Args:
        path: Path of the folder that contains `saved_model.pb`. Reading this file needs TensorFlow.

    Raises:
        FileNotFoundError: If the folder does not contain this file.

    Example:
    >>> print(keras_vit.export.describe("models/vit/1"))  # doctest: +SKIP
    serving_bytes: image_bytes string (None,) -> outputs float32 (None, 5), status string (None,)
    serving_default: images float32 (None, 16, 16, 3) -> outputs float32 (None, 5)
    serving_uint8: images uint8 (None, 16, 16, 3) -> outputs float32 (None, 5)
    """
    lines = []
    for name, sides in sorted(read_signatures(path).items()):
        texts = [", ".join(f"{key} {kind} {shape}" for key, (kind, shape) in sorted(side.items())) for side in sides]
        lines.append(f"{name}: {' -> '.join(texts)}")
    return "\n".join(lines)


def read_signatures(path):
    """Returns {signature: (inputs, outputs)}. Both are dicts {name: (dtype, shape)}."""
    import tensorflow as tf
    from tensorflow.core.protobuf import saved_model_pb2

    def side(entries):
        found = {}
        for name, entry in entries.items():
            shape = tf.TensorShape(entry.tensor_shape)
            shape = None if shape.rank is None else tuple(shape.as_list())
            found[name] = (tf.dtypes.as_dtype(entry.dtype).name, shape)
        return found

    saved = saved_model_pb2.SavedModel.FromString(Path(arguments.path("path", path), "saved_model.pb").read_bytes())
    return {
        name: (side(definition.inputs), side(definition.outputs))
        for name, definition in saved.meta_graphs[0].signature_def.items()
        if name != "__saved_model_init_op"
    }


# A layer's input has outliers if its largest absolute value is more than this factor times its root mean square. In
# int8, such an input would be rounded to steps of more than a third of the root mean square.
_OUTLIER = 100


def write_litert(model, path, settings):
    """Writes a LiteRT file."""
    import tensorflow as tf

    with tempfile.TemporaryDirectory(prefix="keras_vit_") as folder:
        # Long attention is computed in slices. LiteRT cannot run this loop over slices if the batch size is unknown.
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
    """Writes OpenVINO's .xml and .bin files. Weights are stored in the export's precision if they stay exact."""
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
    """Quantizes to int8 by the ranges of the activations on `batches`. Layers with outliers stay in float."""
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
            # NNCF uses the mean of the images' ranges by default. This clips the largest values of half of the images.
            activations_range_estimator_params=RangeEstimatorParametersSet.MINMAX,
            # NNCF also scales each channel to its range on `images` by default. It clips values of other images.
            smooth_quant_alphas=AdvancedSmoothQuantParameters(convolution=-1, matmul=-1),
        ),
    )
    # `quantized` keeps the old .bin file open, so write the new files to another folder first.
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        openvino.save_model(quantized, os.path.join(folder, path.name), compress_to_fp16=False)
        del quantized
        for file in Path(folder).iterdir():
            os.replace(file, path.with_name(file.name))


def _with_outliers(model, images):
    """Returns the names of the matrix products whose input has outliers, as in trained ViTs (arXiv 2402.17762)."""
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
    """Stores float32 constants in a precision that keeps their values. OpenVINO's compression would round epsilons."""
    import openvino
    from openvino import opset13

    kind = {"float16": openvino.Type.f16, "bfloat16": openvino.Type.bf16, "int8": openvino.Type.i8}[precision]
    for constant in [op for op in converted.get_ops() if op.get_type_name() == "Constant"]:
        if constant.get_element_type() != openvino.Type.f32 or stored(constant.data, precision) is None:
            continue
        restored = opset13.convert(opset13.constant(np.array(constant.data), kind), "f32")
        for target in constant.output(0).get_target_inputs():
            target.replace_source_output(restored.output(0))
