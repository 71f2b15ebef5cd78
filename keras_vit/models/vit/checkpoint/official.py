"""Reads the fields that files of the official code, big_vision and Keras imply in addition to their arrays."""

from keras_vit.weights.found import DEFAULT, put_preprocessing, put_settings

_KERAS = "keras files do not contain it"


def read_config(file, found):
    """Adds the fields of an .npz file of the official Flax code or of big_vision."""
    put_preprocessing(found, file.source)
    put_settings(found, file.source, "activation", "layer_norm_epsilon")
    pooling = pooling_from_arrays(found, file.weights)
    found.put(f"{DEFAULT} {file.source.name}", pooling=pooling, rotary_embedding=None, rotary_grid=None)
    put_fixed_positions(file, found, "sincos2d" if file.source.name == "big_vision" else None)


def read_keras(file, found):
    """Adds the fields of a Keras .weights.h5 file, which contains no settings."""
    put_preprocessing(found, file.source)
    if "num_heads" not in found.values:
        found.leave(_KERAS, "num_heads")
    if "class_token/tokens" in file.weights and "pooling/probe" not in file.weights:
        found.leave("with a class token the arrays do not show it", "pooling")
    else:
        found.put(f"{DEFAULT} keras", pooling=pooling_from_arrays(found, file.weights))
    put_settings(found, file.source, "activation", "layer_norm_epsilon")
    if file.facts.get("rotary"):
        found.leave(_KERAS, "rotary_embedding", "rotary_grid")
    else:
        found.put(f"{DEFAULT} keras", rotary_embedding=None, rotary_grid=None)
    put_fixed_positions(file, found)


def pooling_from_arrays(found, weights):
    """Returns the pooling that most sources use with these arrays."""
    if "pooling/probe" in weights:
        return "map"
    return "token" if found.get("class_token") else "gap"


def put_fixed_positions(file, found, method=None):
    """Adds the position_embedding of a file without a table: `method`, or unknown if `method` is None."""
    if "position_embedding/embeddings" in file.weights:
        return
    if method is None:
        found.leave("the file has no table of positions", "position_embedding")
    else:
        found.put(f"{DEFAULT} {file.source.name}", position_embedding=method)
