"""Writes SavedModel files and reads their signatures."""

import functools
import os
import tempfile
from pathlib import Path

import numpy as np

from keras_vit.export import parity
from keras_vit.layers import ImageNormalization

# TensorFlow Serving sends itself these requests on loading, so that no client waits for the first.
WARM_UP = Path("assets.extra", "tf_serving_warmup_requests")
# Fields of TensorFlow Serving messages, (name, number, type or None for string): no package supports every Python.
MESSAGES = {
    "ModelSpec": [("signature_name", 3, None)],
    "Input": [("key", 1, None), ("value", 2, "tensorflow.TensorProto")],
    "PredictRequest": [("model_spec", 1, "keras_vit.ModelSpec"), ("inputs", 2, "keras_vit.Input")],
    "PredictLog": [("request", 1, "keras_vit.PredictRequest")],
    "PredictionLog": [("predict_log", 6, "keras_vit.PredictLog")],
}


def write_saved_model(model, folder, settings, sample):
    """Writes a SavedModel on TensorFlow; returns its largest difference from the outputs in the file `sample`."""
    import tensorflow as tf

    from keras_vit.export.signatures import Classify, Server

    with tempfile.TemporaryDirectory(prefix="keras_vit_") as assets:
        postprocess = settings["postprocess"]
        if postprocess is not None:
            file = Path(assets, "labels.txt")
            file.write_text("".join(f"{name}\n" for name in postprocess["labels"]), encoding="utf-8")
            postprocess = Classify(labels_path=file, **postprocess)
        normalization = ImageNormalization(**settings["normalization"])
        size = tuple(settings["image_size"])
        server = Server(model, settings["names"], normalization, size, postprocess, **settings["limits"])
        try:
            tf.saved_model.save(server, folder, signatures=server.signatures(settings["attention"]))
        except tf.errors.OpError as error:
            # TensorFlow raises this for a full disk too, and names the temporary path.
            draft, reason = Path(folder), error.message.rpartition("; ")[2]
            raise OSError(f"Cannot write {str(draft.parent.parent / draft.name)!r}: {reason}") from error
    signatures = tf.saved_model.load(folder).signatures
    if settings["warm_up"]:
        _write_warm_up(folder, _requests(signatures, settings))
    images, *expected = np.load(sample).values()
    step = min(settings["limits"]["max_batch_size"], parity.BATCH)
    parts = []
    for batch in parity.batches_of(images, step):
        answer = signatures["serving_default"](images=tf.constant(batch))
        parts.append([answer[name].numpy() for name in settings["names"]])
    received = [np.concatenate(outputs) for outputs in zip(*parts, strict=True)]
    return parity.largest_difference([expected], [received])


def _requests(signatures, settings):
    """Yields one small request per signature and batch size."""
    import tensorflow as tf

    height, width = settings["image_size"]
    for count in settings["warm_up"]:
        for name, function in signatures.items():
            ((key, spec),) = function.structured_input_signature[1].items()
            if spec.dtype == tf.string:
                grey = tf.fill((height, width, 3), tf.constant(127, "uint8"))
                tensor = tf.make_tensor_proto([tf.io.encode_jpeg(grey).numpy()] * count)
            else:
                # A single value fills the whole tensor.
                tensor = tf.make_tensor_proto(0, spec.dtype, (count, height, width, spec.shape[-1]))
            yield name, key, tensor


def _write_warm_up(folder, requests):
    """Writes warm-up requests, (signature, input name, `TensorProto`), into a SavedModel folder."""
    import tensorflow as tf

    path = Path(folder, WARM_UP)
    path.parent.mkdir(exist_ok=True)
    with tf.io.TFRecordWriter(os.fspath(path)) as file:
        for signature, name, tensor in requests:
            record = prediction_log()()
            request = record.predict_log.request
            request.model_spec.signature_name = signature
            request.inputs.add(key=name, value=tensor)
            file.write(record.SerializeToString())


@functools.cache
def prediction_log():
    """Returns the message class of a warm-up record, PredictionLog."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
    from tensorflow.core.framework import tensor_pb2

    field_type = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="keras_vit/warm_up.proto", package="keras_vit")
    file.dependency.append(tensor_pb2.DESCRIPTOR.name)
    for message, fields in MESSAGES.items():
        entry = file.message_type.add(name=message)
        for name, number, kind in fields:
            field = entry.field.add(name=name, number=number, type=field_type.TYPE_STRING)
            field.label = field_type.LABEL_REPEATED if name == "inputs" else field_type.LABEL_OPTIONAL
            if kind is not None:
                field.type, field.type_name = field_type.TYPE_MESSAGE, f".{kind}"
    pool = descriptor_pool.Default()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("keras_vit.PredictionLog"))


def describe(path):
    """Describes the signatures of a SavedModel, one per line and sorted, without loading it.

    Args:
        path: Path of the folder that holds `saved_model.pb`. Reading it needs TensorFlow.

    Raises:
        FileNotFoundError: If there is no such file.

    Example:

    >>> print(keras_vit.export.describe("models/vit/1"))  # doctest: +SKIP
    serving_bytes: image_bytes string (None,) -> outputs float32 (None, 5), status string (None,)
    serving_default: images float32 (None, 16, 16, 3) -> outputs float32 (None, 5)
    serving_uint8: images uint8 (None, 16, 16, 3) -> outputs float32 (None, 5)
    """
    lines = []
    for name, sides in sorted(read_signatures(path).items()):
        inputs, outputs = (
            ", ".join(f"{key} {kind} {shape}" for key, (_, kind, shape) in sorted(side.items())) for side in sides
        )
        lines.append(f"{name}: {inputs} -> {outputs}")
    return "\n".join(lines)


def read_signatures(path):
    """Returns {signature: (inputs, outputs)}, each {name: (tensor name in the graph, dtype, shape)}."""
    import tensorflow as tf
    from tensorflow.core.protobuf import saved_model_pb2

    def side(entries):
        found = {}
        for name, entry in entries.items():
            shape = tf.TensorShape(entry.tensor_shape)
            shape = None if shape.rank is None else tuple(shape.as_list())
            found[name] = (entry.name, tf.dtypes.as_dtype(entry.dtype).name, shape)
        return found

    saved = saved_model_pb2.SavedModel.FromString(Path(path, "saved_model.pb").read_bytes())
    return {
        name: (side(definition.inputs), side(definition.outputs))
        for name, definition in saved.meta_graphs[0].signature_def.items()
        if name != "__saved_model_init_op"
    }
