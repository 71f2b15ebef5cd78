"""Writes and runs SavedModels, and reads their signatures."""

import tempfile
from pathlib import Path

import keras
import numpy as np

from keras_vit.export import parity

# TensorFlow Serving runs these requests on loading, so that no client waits for the first request.
WARM_UP = Path("assets.extra", "tf_serving_warmup_requests")


def write_plain(model, folder, names):
    """Writes a SavedModel with one signature, without decoders and limits, which converters cannot read."""
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
            # TensorFlow also raises OpError for a full disk, and its message contains the temporary path.
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
    """Writes a request per signature and batch size into a SavedModel folder."""
    import tensorflow as tf
    from tensorflow_serving.apis import model_pb2, predict_pb2, prediction_log_pb2

    path, (height, width) = Path(folder, WARM_UP), settings["server"]["image_size"]
    path.parent.mkdir(exist_ok=True)
    picture = tf.io.encode_jpeg(tf.fill((height, width, 3), tf.constant(127, "uint8"))).numpy()
    with tf.io.TFRecordWriter(str(path)) as file:
        for name, (inputs, _) in sorted(read_signatures(folder).items()):
            ((key, (kind, shape)),) = inputs.items()
            for count in settings["warm_up"]:
                # A single value fills the whole tensor.
                zeros = (0, kind, (count, height, width, shape[-1]))
                tensor = tf.make_tensor_proto(*([[picture] * count] if kind == "string" else zeros))
                spec = model_pb2.ModelSpec(signature_name=name)
                request = predict_pb2.PredictRequest(model_spec=spec, inputs={key: tensor})
                log = prediction_log_pb2.PredictLog(request=request)
                file.write(prediction_log_pb2.PredictionLog(predict_log=log).SerializeToString())


def describe(path):
    """Describes the signatures of a SavedModel, one per line and sorted, without loading it.

    Args:
        path: Path of the folder that contains `saved_model.pb`. Reading it needs TensorFlow.

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
        texts = [", ".join(f"{key} {kind} {shape}" for key, (kind, shape) in sorted(side.items())) for side in sides]
        lines.append(f"{name}: {' -> '.join(texts)}")
    return "\n".join(lines)


def read_signatures(path):
    """Returns {signature: (inputs, outputs)}, each {name: (dtype, shape)}."""
    import tensorflow as tf
    from tensorflow.core.protobuf import saved_model_pb2

    def side(entries):
        found = {}
        for name, entry in entries.items():
            shape = tf.TensorShape(entry.tensor_shape)
            shape = None if shape.rank is None else tuple(shape.as_list())
            found[name] = (tf.dtypes.as_dtype(entry.dtype).name, shape)
        return found

    saved = saved_model_pb2.SavedModel.FromString(Path(path, "saved_model.pb").read_bytes())
    return {
        name: (side(definition.inputs), side(definition.outputs))
        for name, definition in saved.meta_graphs[0].signature_def.items()
        if name != "__saved_model_init_op"
    }
