"""Writes folders that Hugging Face transformers loads as ViT, DeiT and BiT models."""

import json
import re

from keras_vit.evaluation_transform import EvaluationTransform
from keras_vit.files import replacing
from keras_vit.preprocessing import Preprocessing
from keras_vit.variants import ROOT_WIDTH
from keras_vit.weights.names import HUGGINGFACE_BIT
from keras_vit.weights.write import write_safetensors

_ACTIVATIONS = {"gelu_tanh": "gelu_pytorch_tanh"}
_RESAMPLE = {"nearest": 0, "lanczos3": 1, "lanczos5": 1, "bilinear": 2, "bicubic": 3, "area": 4}
# Keys of the classifier, which have no backbone prefix.
_HEADS = ("classifier.", "distillation_classifier.")


def write_folder(path, arrays, sizes, facts):
    """Writes the files of a folder, each completely or not at all; `arrays` has the keys of `names.HUGGINGFACE`."""
    kinds = {"embedder.convolution.weight": "bit", "embeddings.distillation_token": "deit"}
    kind = next((kind for key, kind in kinds.items() if key in arrays), "vit")
    if kind == "deit" and not sizes["num_classes"]:
        raise ValueError(
            "The format 'huggingface' has no distilled model without its two heads. Received: num_classes=0"
        )
    if sizes["num_classes"] and "pooler.dense.weight" in arrays:
        raise ValueError("The format 'huggingface' has no model with both a pre_logits layer and a head.")
    path.mkdir(exist_ok=True)
    if kind == "bit":
        config = _bit_config(sizes)
    else:
        config = _config(kind, sizes, facts, has_pooler="pooler.dense.weight" in arrays)
    preprocessor = _preprocessor(facts, sizes["in_channels"])
    write_safetensors(path / "model.safetensors", _renamed(kind, sizes, arrays), facts)
    write_json(path / "preprocessor_config.json", preprocessor)
    write_json(path / "config.json", config)


def _renamed(kind, sizes, arrays):
    """Returns the arrays with the model class's keys: with a head, the backbone's have a prefix."""
    if not sizes["num_classes"]:
        return arrays
    found = {key if key.startswith(_HEADS) else f"{kind}.{key}": array for key, array in arrays.items()}
    if kind == "deit":
        found = {re.sub(r"^classifier\.", "cls_classifier.", key): array for key, array in found.items()}
    return found


def _config(kind, sizes, facts, has_pooler):
    if kind == "deit":
        architectures = ["DeiTForImageClassificationWithTeacher"]
    else:
        architectures = ["ViTForImageClassification" if sizes["num_classes"] else "ViTModel"]
    height, width = facts["image_size"] or [
        n * patch for n, patch in zip(sizes["grid_size"], sizes["patch_size"], strict=True)
    ]
    patch = sizes["patch_size"][0] if sizes["patch_size"][0] == sizes["patch_size"][1] else list(sizes["patch_size"])
    config = {
        "architectures": architectures,
        "model_type": kind,
        "hidden_size": sizes["hidden_dim"],
        "num_hidden_layers": sizes["num_layers"],
        "num_attention_heads": sizes["num_heads"],
        "intermediate_size": sizes["mlp_dim"],
        "hidden_act": _ACTIVATIONS.get(facts["activation"], facts["activation"]),
        "layer_norm_eps": facts["layer_norm_epsilon"],
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "image_size": height if height == width else [height, width],
        "patch_size": patch,
        "num_channels": sizes["in_channels"],
        "qkv_bias": True,
    }
    if has_pooler:
        config |= {"pooler_act": "tanh", "pooler_output_size": sizes["hidden_dim"]}
    return config | _labels(sizes["num_classes"])


def _bit_config(sizes):
    width = int(ROOT_WIDTH * sizes["width_factor"])
    return {
        "architectures": ["BitForImageClassification" if sizes["num_classes"] else "BitModel"],
        "model_type": "bit",
        "num_channels": sizes["in_channels"],
        # It has no width factor of the first convolution.
        "embedding_size": width,
        "hidden_sizes": [4 * width * 2**i for i in range(len(sizes["stages"]))],
        "depths": sizes["stages"],
        **HUGGINGFACE_BIT.config,
        **_labels(sizes["num_classes"]),
    }


def _labels(num_classes):
    labels = {str(i): f"LABEL_{i}" for i in range(num_classes)}
    return {"id2label": labels, "label2id": {label: int(i) for i, label in labels.items()}} if labels else {}


def _preprocessor(facts, channels):
    preprocessing = Preprocessing(**facts["preprocessing"])
    mean, std = unit_constants(preprocessing, channels)
    config = {
        "image_processor_type": "ViTImageProcessor",
        "do_resize": True,
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": mean,
        "image_std": std,
        # Pillow's filter numbers; transformers antialiases as Pillow does.
        "resample": _RESAMPLE[preprocessing.interpolation],
    }
    mode = preprocessing.resize_mode
    if facts["image_size"] is None:
        return config
    height, width = facts["image_size"]
    if mode == "pad" or (mode == "crop" and height != width):
        raise ValueError(
            "The format 'huggingface' resizes the whole image, or the shorter side for a square. Received: "
            f"resize_mode={mode!r} with images of {height} x {width}"
        )
    sides = EvaluationTransform((height, width), preprocessing).resized
    config["size"] = {"shortest_edge": sides[0]} if mode == "crop" else _size(sides)
    if mode == "crop" or preprocessing.crop_fraction < 1:
        # The image processors that crop.
        config["image_processor_type"] = f"{'Bit' if mode == 'crop' else 'DeiT'}ImageProcessor"
        config |= {"do_center_crop": True, "crop_size": _size((height, width))}
    return config


def unit_constants(preprocessing, channels):
    """Returns mean and std for images scaled to [0, 1], one number a channel."""
    low, high = preprocessing.value_range
    mean = [(value - low) / (high - low) for value in preprocessing.mean]
    std = [value / (high - low) for value in preprocessing.std]
    return tuple(values * (channels if len(values) == 1 else 1) for values in (mean, std))


def _size(sides):
    return dict(zip(("height", "width"), sides, strict=True))


def write_json(path, content):
    """Writes a dict as JSON, completely or not at all."""
    with replacing(path) as draft:
        draft.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
