"""Sets config fields that a source's files do not contain. The values are the same for all models of the source."""

from keras_vit.images.constants import IMAGENET_PREPROCESSING
from keras_vit.weights.found import DEFAULT, put_preprocessing, put_settings

# {source: `position_embedding` of a model whose file contains no position table}.
_FIXED_POSITIONS = {"big_vision": "sincos2d", **dict.fromkeys(("timm", "deit", "dinov3", "dinov3_original"), "none")}


def put_usual(file, found):
    """Adds the settings that all models of the source share. Marks a setting as unknown if the models differ in it."""
    source, origin = file.source, f"{DEFAULT} {file.source.name}"
    _put_preprocessing(file, found)
    _put_pooling(file, found)
    put_settings(found, source, "activation", "layer_norm_epsilon")
    if found.get("gated_mlp") and source.gated_activation:
        found.put(origin, activation=source.gated_activation)
    found.put(origin, rotary_embedding=None, rotary_grid=None)
    if "position_embedding/embeddings" in file.weights:
        return
    if source.name in _FIXED_POSITIONS:
        found.put(origin, position_embedding=_FIXED_POSITIONS[source.name])
    else:
        found.leave("the file has no table of positions", "position_embedding")


def _put_preprocessing(file, found):
    source, grid, patch = file.source.name, found.positions.grid, found.get("patch_size")
    constants, scaled = file.source.preprocessing, "block_00/layer_scale_1/gamma" in file.weights
    if source == "timm" and "distillation_token/tokens" in file.weights:
        # Among timm's models only DeiT's have a distillation token.
        constants = IMAGENET_PREPROCESSING
    larger = source == "mae" and grid and patch and max(n * side for n, side in zip(grid, patch, strict=True)) > 224
    if larger or (source == "deit" and scaled):
        # The evaluation of DeiT III, and of MAE above 224 pixels, crops only the longer side of an image.
        constants = {**IMAGENET_PREPROCESSING, "crop_fraction": 1.0, "resize_mode": "crop"}
    # At these widths, DINOv3 has models for photos and for satellite images, which differ in their preprocessing.
    two_kinds = source.startswith("dinov3") and found.get("hidden_dim") in (1024, 4096)
    put_preprocessing(found, file.source, None if two_kinds else constants)


def _put_pooling(file, found):
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
    # The arrays do not show the pooling of two kinds of models. EVA-02's models have no pooling in pre-training, and
    # OpenCLIP's models without a norm before the blocks average the patches although they have a class token.
    hidden = {"eva02": not normed, "open_clip": not found.get("norm_before_blocks")}
    if pooling == "token" and hidden.get(source, source in ("keras", "open_clip_timm")):
        found.leave("with a class token the arrays do not show it", "pooling")
    elif pooling == "token" and source in ("timm", "deit", "mae", "eva02", "open_clip"):
        # If there is a class token, these code bases average the patches only if a norm follows the pooling.
        found.put(origin, certain=False, pooling="gap" if normed else "token")
    else:
        found.put(origin, pooling=pooling)
