"""Reads and writes the keys of transformers' config.json and preprocessor_config.json that all families share."""

import functools
import json
import re
import shutil

from keras_vit import arguments
from keras_vit.config import Preprocessing
from keras_vit.files import replacing
from keras_vit.images.constants import CLIP_PREPROCESSING, IMAGENET_PREPROCESSING
from keras_vit.images.evaluation_transform import EvaluationTransform
from keras_vit.weights import timm_config
from keras_vit.weights.found import DEFAULT, attempt_preprocessing
from keras_vit.weights.labels import TASKS, read_labels
from keras_vit.weights.write import write_safetensors

# The defaults of transformers' config classes, by model_type.
_CONFIG = {"num_attention_heads": 12, "hidden_act": "gelu", "layer_norm_eps": 1e-6, "pooler_act": "tanh"}
_CONFIG |= {"rope_theta": 100.0}
CONFIGS = {
    name: {**_CONFIG, **changes}
    for names, changes in (
        ("vit deit vit_mae ijepa", {"layer_norm_eps": 1e-12}),
        ("vit_msn dinov2 dinov2_with_registers", {}),
        ("dinov3_vit", {"num_attention_heads": 6, "layer_norm_eps": 1e-5}),
        ("siglip siglip_vision_model", {"hidden_act": "gelu_pytorch_tanh"}),
        ("clip clip_vision_model", {"hidden_act": "quick_gelu", "layer_norm_eps": 1e-5}),
    )
    for name in names.split()
}
# The defaults of transformers' image processors. "ViT" in the table stands for ViTImageProcessor.
_IMAGENET = {"image_mean": IMAGENET_PREPROCESSING["mean"], "image_std": IMAGENET_PREPROCESSING["std"]}
_STANDARD = {"image_mean": 0.5, "image_std": 0.5}
_CLIP = {
    "image_mean": CLIP_PREPROCESSING["mean"],
    "image_std": CLIP_PREPROCESSING["std"],
    "resample": 3,
    "size": {"shortest_edge": 224},
    "do_center_crop": True,
    "crop_size": 224,
    "default_to_square": False,
}
PROCESSORS = {
    "ViT": {**_STANDARD, "resample": 2, "size": 224},
    "DeiT": {**_STANDARD, "resample": 3, "size": 256, "do_center_crop": True, "crop_size": 224},
    "CLIP": _CLIP,
    "Bit": _CLIP,
    "Siglip": {**_STANDARD, "resample": 3, "size": {"height": 224, "width": 224}, "default_to_square": False},
    "DINOv3ViT": {**_IMAGENET, "resample": 2, "size": 224},
    "ConvNext": {
        **_STANDARD,
        "resample": 3,
        "size": {"shortest_edge": 384},
        "crop_pct": 224 / 256,
        "default_to_square": False,
    },
}
# {model type: image processor} for folders whose preprocessor_config.json names no processor. The default is "ViT".
_PROCESSOR_OF = {
    **{"deit": "DeiT", "dinov3_vit": "DINOv3ViT", "bit": "Bit", "dinov2": "Bit", "dinov2_with_registers": "Bit"},
    **dict.fromkeys(("clip", "clip_vision_model"), "CLIP"),
    **dict.fromkeys(("siglip", "siglip_vision_model"), "Siglip"),
}
# At this target size or above, ConvNextImageProcessor changes the aspect ratio. Below this size, it keeps the aspect
# ratio and crops.
_SQUASHED_BY_CONVNEXT = 384
# The interpolation methods, in the order of Pillow's numbers for them. preprocessor_config.json contains such a number.
_RESAMPLE = ("nearest", "lanczos3", "bilinear", "bicubic", "area")
# {key of an image processor: the fields of `Preprocessing` that it sets}. No key sets antialiasing or the rounding of
# crops, so `load_weights` does not compare these two settings between the file and the model.
_CONSTANTS = {
    **{"image_mean": ("mean", "value_range"), "image_std": ("std",), "resample": ("interpolation",)},
    **dict.fromkeys(("size", "do_center_crop", "crop_size", "crop_pct"), ("crop_fraction", "resize_mode")),
}
# Keys of an image processor that this module reads, and keys that do not change the pixels.
_READ = {
    *("image_processor_type", "feature_extractor_type", "do_resize", "size", "default_to_square", "resample"),
    *("do_center_crop", "crop_size", "crop_pct", "do_rescale", "rescale_factor", "do_normalize", "image_mean"),
    "image_std",
}
_HARMLESS = {
    *("processor_class", "do_convert_rgb", "data_format", "input_data_format", "device", "return_tensors"),
    *("disable_grouping", "model_type", "auto_map", "_valid_processor_keys", "do_classify", "size_divisor"),
    *("image_seq_length", "num_channels", "transformers_version"),
}
# Keys of config.json that do not change a classifier's outputs: they affect training, text or other outputs.
_HARMLESS_IN_CONFIG = (
    r"id2label|label2id|problem_type|num_labels|image_size|num_channels|loss_.*|.*dropout(_prob)?|drop_path_rate|"
    r"initializer_(range|factor)|encoder_stride|decoder_.*|"
    r"mask_ratio|norm_pix_loss|pos_embed_(shift|jitter|rescale)|apply_layernorm|reshape_hidden_states|use_mask_token|"
    r"stage_names|out_(features|indices)|architectures|model_type|_.*|transformers_version|(torch_)?dtype|"
    r"output_(attentions|hidden_states|scores)|return_dict(_in_generate)?|torchscript|use_bfloat16|tf_legacy_loss|"
    r"chunk_size_feed_forward|is_(encoder_)?decoder|tie_(word_embeddings|encoder_decoder)|finetuning_task|pruned_heads|"
    r"tokenizer_class|task_specific_params|add_cross_attention|cross_attention_.*|.*_token_id|prefix|suppress_tokens|"
    r"(vision|text)_config(_dict)?|logit_scale_init_value|use_cache|gradient_checkpointing|auto_map|"
    r"(encoder_)?no_repeat_ngram_size|(min|max)_length|num_(beams|beam_groups|return_sequences)|do_sample|top_[kp]|"
    r"typical_p|temperature|diversity_penalty|repetition_penalty|length_penalty|early_stopping|bad_words_ids|"
    r"remove_invalid_values|exponential_decay_length_penalty|begin_suppress_tokens|attn_implementation|"
    r"use_memory_efficient_attention|attention_type|quantization_config"
)


def read_folder(file, found, read):
    """Reads into `found` the settings that all families share.

    `read` are the keys of config.json that the code of the model's family reads.
    """
    config, preprocessor = file.config, file.facts.get("preprocessor")
    keys = [key for key in config if key not in read and not re.fullmatch(_HARMLESS_IN_CONFIG, key)]
    if unread := {key: config[key] for key in keys if config[key]}:
        raise ValueError(
            f"Cannot load {file.path!r}: its config.json has keys that keras_vit does not read: "
            f"{', '.join(f'{key}={value!r}' for key, value in unread.items())}. Remove the keys that do not "
            "change the outputs."
        )
    if isinstance(preprocessor, dict):
        read = functools.partial(preprocessing_from_processor, file.path, preprocessor, config)
        attempt_preprocessing(found, f"{DEFAULT} transformers", preprocessor, _CONSTANTS, read)
    # If a model has one output and no problem_type, transformers trains it for regression.
    usual = "regression" if found.get("num_classes") == 1 else "single_label"
    read_labels(found, config, config.get("id2label"), usual=usual)
    size = config.get("image_size")
    if size is None and isinstance(preprocessor, dict) and found.get("patch_size") is None:
        # The config.json of BiT models contains no image size.
        size = size_of_images(file.path, preprocessor)
    timm_config.read_image_size(file, found, size)


def preprocessing_from_processor(path, preprocessor, config):
    """Converts a preprocessor_config.json to arguments of `Preprocessing`. Missing keys get transformers' defaults."""
    kind = preprocessor.get("image_processor_type") or preprocessor.get("feature_extractor_type")
    name = _PROCESSOR_OF.get(config.get("model_type"), "ViT")
    if kind is not None:
        name = re.sub(r"(ImageProcessor|FeatureExtractor)(Fast|Pil)?$", "", str(kind))
    unknown = {key: value for key, value in preprocessor.items() if value and key not in _READ | _HARMLESS}
    stated = PROCESSORS.get(name, {}) | {key: value for key, value in preprocessor.items() if value is not None}
    factor, resample, size = stated.get("rescale_factor", 1 / 255), stated.get("resample"), stated.get("size")
    scales = isinstance(factor, (int, float)) and abs(factor * 255 - 1) <= 1e-3 and stated.get("do_rescale", True)
    if isinstance(size, dict):
        size = {side: number for side, number in size.items() if number is not None}
    known = ", ".join(f"{known}ImageProcessor" for known in PROCESSORS)
    for holds, expected, value in (
        (not unknown, "only keys that keras_vit supports", unknown),
        (name in PROCESSORS, f"image_processor_type as one of {known}", kind),
        (stated.get("do_resize") is not False, "do_resize=true", False),
        (scales, "do_rescale=true and rescale_factor=1/255", (stated.get("do_rescale"), factor)),
        (type(resample) is int and resample in range(len(_RESAMPLE)), "resample as one of 0, 1, 2, 3, 4", resample),
    ):
        if not holds:
            raise _unreadable(path, expected, value)
    if stated.get("do_normalize", True) is False:
        stated |= {"image_mean": 0.0, "image_std": 1.0}
    channels = config.get("num_channels", 3)
    for key in ("image_mean", "image_std"):
        constants = stated[key]
        if isinstance(constants, (list, tuple)) and len(constants) not in (1, channels):
            raise _unreadable(path, f"{key} as one number, or one for each of {channels} channels", constants)
    side, crop = (_side(path, key, stated.get(key)) for key in ("size", "crop_size"))
    if isinstance(size, dict) and set(size) not in ({"shortest_edge"}, {"height", "width"}):
        raise _unreadable(path, "size with shortest_edge, or with height and width", size)
    keeps_shape, fraction = not stated.get("default_to_square", True), 1.0
    if isinstance(size, (dict, list)):
        keeps_shape = "shortest_edge" in size
    if name == "ConvNext":
        keeps_shape = side < _SQUASHED_BY_CONVNEXT
        fraction = stated["crop_pct"] if keeps_shape else 1.0
    elif stated.get("do_center_crop") and crop:
        fraction = min(crop / side, 1.0)
    return {
        "mean": stated["image_mean"],
        "std": stated["image_std"],
        "interpolation": _RESAMPLE[resample],
        # Pillow antialiases with all filters except "nearest".
        "antialias": resample != 0,
        "resize_mode": "crop" if keeps_shape else "squash",
        "crop_fraction": fraction,
        "crop_rounding": "down",
    }


def size_of_images(path, preprocessor):
    """Returns the side of the square images that an image processor makes, or None if its config contains no size."""
    name = "crop_size" if preprocessor.get("do_center_crop") else "size"
    return _side(path, name, preprocessor.get(name))


def _side(path, name, size):
    """Returns the shorter side of a `size` in a config (a number or a dict of sides), or None if it has no sides."""
    sides = [side for side in size.values() if side is not None] if isinstance(size, dict) else [size]
    try:
        return None if size is None or not sides else min(arguments.image_size(side)[0] for side in sides)
    except ValueError:
        raise _unreadable(path, f"{name} in pixels", size) from None


def _unreadable(path, expected, value):
    return ValueError(
        f"Cannot load {path!r}: its preprocessor_config.json is unsupported. Expected {expected}. Received: {value!r}"
    )


# Writing --------------------------------------------------------------------------------------------------------------


def write_folder(path, arrays, config, facts, preprocessor=None):
    """Writes a folder's files, config.json last. If writing fails, a new folder is removed."""
    is_new = not path.exists()
    path.mkdir(exist_ok=True)
    try:
        write_safetensors(path / "model.safetensors", arrays, facts)
        for name, content in (("preprocessor_config", preprocessor), ("config", config)):
            if content is not None:
                with replacing(path / f"{name}.json") as draft:
                    draft.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    except BaseException:
        if is_new:
            shutil.rmtree(path, ignore_errors=True)
        raise


def with_prefix(arrays, prefix):
    """Returns the arrays with a prefix before the backbone's keys, but not before the heads' keys."""
    heads = ("classifier.", "cls_classifier.", "distillation_classifier.", "visual_projection.")
    return {key if key.startswith(heads) else f"{prefix}{key}": array for key, array in arrays.items()}


def id2label(config):
    """Returns the entries of transformers' config.json for the class names and the task of a `ModelConfig`."""
    labels = config.class_names or [f"LABEL_{i}" for i in range(config.num_classes)]
    if not labels:
        return {}
    found = {
        "id2label": {str(i): label for i, label in enumerate(labels)},
        "label2id": {label: i for i, label in enumerate(labels)},
    }
    usual = config.task == "single_label" and config.num_classes > 1
    return found if usual else {**found, "problem_type": {v: k for k, v in TASKS.items()}[config.task]}


def preprocessor_config(facts, channels):
    """Returns the contents of preprocessor_config.json."""
    preprocessing = Preprocessing(**facts["preprocessing"])
    mean, std = timm_config.unit_constants(preprocessing, channels)
    if preprocessing.interpolation not in _RESAMPLE:
        raise ValueError(
            f"Expected an interpolation that the format 'huggingface' has: {', '.join(_RESAMPLE)}. Received: "
            f"{preprocessing.interpolation!r}. Save in another format, such as .safetensors."
        )
    config = {
        "image_processor_type": "ViTImageProcessor",
        "do_resize": True,
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": mean,
        "image_std": std,
        # transformers resizes with Pillow, which antialiases with all filters except "nearest".
        "resample": _RESAMPLE.index(preprocessing.interpolation),
    }
    mode = preprocessing.resize_mode
    if facts["image_size"] is None:
        return config
    height, width = facts["image_size"]
    if mode == "pad" or (mode == "crop" and height != width):
        raise ValueError(
            "Expected resize_mode='squash', or 'crop' with square images, for the format 'huggingface'. Received: "
            f"resize_mode={mode!r} with images of {height} x {width}. Save in another format, such as .safetensors."
        )
    sides = EvaluationTransform((height, width), preprocessing).resized
    config["size"] = {"shortest_edge": sides[0]} if mode == "crop" else _size(sides)
    if mode == "crop" or preprocessing.crop_fraction < 1:
        # The default is ViTImageProcessor, which does not crop images. Write the name of a processor that crops.
        config["image_processor_type"] = f"{'Bit' if mode == 'crop' else 'DeiT'}ImageProcessor"
        config |= {"do_center_crop": True, "crop_size": _size((height, width))}
    return config


def _size(sides):
    return dict(zip(("height", "width"), sides, strict=True))
