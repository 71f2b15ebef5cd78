"""Writes folders that transformers loads: what the models of all families share."""

import json

from keras_vit.config import Preprocessing
from keras_vit.files import replacing
from keras_vit.images.evaluation_transform import EvaluationTransform
from keras_vit.weights.labels import TASKS
from keras_vit.weights.write import write_safetensors

# Pillow's filter numbers.
_RESAMPLE = {"nearest": 0, "lanczos3": 1, "lanczos5": 1, "bilinear": 2, "bicubic": 3, "area": 4}
# Keys of the classifiers and the projection, which have no backbone prefix.
_HEADS = ("classifier.", "distillation_classifier.", "visual_projection.")


def write_folder(path, arrays, config, facts, preprocessor=None):
    """Writes the files of a folder, each completely or not at all; config.json is the last."""
    path.mkdir(exist_ok=True)
    write_safetensors(path / "model.safetensors", arrays, facts)
    if preprocessor is not None:
        write_json(path / "preprocessor_config.json", preprocessor)
    write_json(path / "config.json", config)


def with_prefix(arrays, prefix):
    """Returns the arrays with a prefix before the backbone's keys."""
    return {key if key.startswith(_HEADS) else f"{prefix}{key}": array for key, array in arrays.items()}


def id2label(config):
    """Returns the entries of transformers' config.json for the class names and the task of a config."""
    labels = config.class_names or [f"LABEL_{i}" for i in range(config.num_classes)]
    if not labels:
        return {}
    found = {
        "id2label": {str(i): label for i, label in enumerate(labels)},
        "label2id": {label: i for i, label in enumerate(labels)},
    }
    task = config.task
    return found if task == "single_label" else {**found, "problem_type": {v: k for k, v in TASKS.items()}[task]}


def preprocessor_config(facts, channels):
    """Returns the contents of preprocessor_config.json."""
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
