from pathlib import Path


def describe(path):
    """Says what a SavedModel takes and gives, as its files do, without loading it.

    Args:
        path: The SavedModel's folder.

    Returns:
        Text of one line a signature, sorted.

    Example:

    >>> print(keras_vit.export.describe("models/vit/1"))  # doctest: +SKIP
    serving_bytes: image_bytes string (None,) -> outputs float32 (None, 5), status string (None,)
    serving_default: images float32 (None, 16, 16, 3) -> outputs float32 (None, 5)
    serving_uint8: images uint8 (None, 16, 16, 3) -> outputs float32 (None, 5)
    """
    lines = []
    for name, signature in sorted(read_signatures(path).items()):
        sides = [
            ", ".join(f"{key} {kind} {shape}" for key, (_, kind, shape) in sorted(side.items())) for side in signature
        ]
        lines.append(f"{name}: {' -> '.join(sides)}")
    return "\n".join(lines)


def read_signatures(path):
    """Reads the signatures of a SavedModel from its file.

    Args:
        path: The SavedModel's folder.

    Returns:
        {signature: (inputs, outputs)}, each side {name: (tensor's name in the graph, type, shape)}.
    """
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
