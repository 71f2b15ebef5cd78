"""Reads the fields that files of the official code, big_vision and Keras imply in addition to their arrays."""

from keras_vit.weights.found import DEFAULT, put_preprocessing, put_settings

_KERAS = "keras files do not contain it"


def read_config(file, found):
    """Adds the fields of an .npz file of the official Flax code or of big_vision."""
    put_preprocessing(found, file.source)
    put_settings(found, file.source, "activation", "layer_norm_epsilon")
    put_pooling(file, found)
    found.put(f"{DEFAULT} {file.source.name}", rotary_embedding=None, rotary_grid=None)
    put_fixed_positions(file, found, "sincos2d" if file.source.name == "big_vision" else None)


def read_keras(file, found):
    """Adds the fields of a Keras .weights.h5 file, which contains no settings."""
    put_preprocessing(found, file.source)
    if "num_heads" not in found.values:
        found.leave(_KERAS, "num_heads")
    put_pooling(file, found)
    put_settings(found, file.source, "activation", "layer_norm_epsilon")
    if file.facts.get("rotary"):
        found.leave(_KERAS, "rotary_embedding", "rotary_grid")
    else:
        found.put(f"{DEFAULT} keras", rotary_embedding=None, rotary_grid=None)
    put_fixed_positions(file, found)


def put_pooling(file, found):
    """Adds the pooling of the source's models with such arrays, or leaves it unknown if they differ in it."""
    source, normed, origin = file.source.name, found.get("norm_after_pooling"), f"{DEFAULT} {file.source.name}"
    # SigLIP's classifier averages the tokens, although the file has the attention pooling too. DINOv2's classifiers
    # read the class token and the mean of the patches.
    of_head = {"siglip": "gap", "dinov2": "token_gap", "dinov2_original": "token_gap"}
    # If the attention pooling is missing, SigLIP's code returns all tokens.
    pooling = "token" if found.get("class_token") else "none" if source == "siglip" else "gap"
    if "head/kernel" in file.weights and source in of_head:
        pooling = of_head[source]
    elif "pooling/probe" in file.weights:
        pooling = "map"
    # EVA-02's pre-training has no pooling, and OpenCLIP's models without the first norm average the patches.
    hidden = {"eva02": not normed, "open_clip": not found.get("norm_before_blocks")}
    if pooling == "token" and hidden.get(source, source in ("keras", "open_clip_timm")):
        found.leave("with a class token the arrays do not show it", "pooling")
    elif pooling == "token" and source in ("timm", "deit", "mae", "eva02", "open_clip"):
        # With a class token, these code bases average the patches only if a norm follows.
        found.put(origin, certain=False, pooling="gap" if normed else "token")
    else:
        found.put(origin, pooling=pooling)


def put_fixed_positions(file, found, method=None):
    """Adds the position_embedding of a file without a table: `method`, or unknown if `method` is None."""
    if "position_embedding/embeddings" in file.weights:
        return
    if method is None:
        found.leave("the file has no table of positions", "position_embedding")
    else:
        found.put(f"{DEFAULT} {file.source.name}", position_embedding=method)
