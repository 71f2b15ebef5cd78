"""The preprocessing constants of published models, as fields of `keras_vit.Preprocessing`."""

OFFICIAL_PREPROCESSING = {"mean": 0.5, "std": 0.5, "interpolation": "bilinear", "crop_fraction": 1.0}
IMAGENET_PREPROCESSING = {
    "mean": (0.485, 0.456, 0.406),
    "std": (0.229, 0.224, 0.225),
    "interpolation": "bicubic",
    "crop_fraction": 0.875,
}
DINOV3_PREPROCESSING = {
    **IMAGENET_PREPROCESSING,
    "interpolation": "bilinear",
    "antialias": True,
    "crop_fraction": 1.0,
}
CLIP_PREPROCESSING = {
    "mean": (0.48145466, 0.4578275, 0.40821073),
    "std": (0.26862954, 0.26130258, 0.27577711),
    "interpolation": "bicubic",
    "crop_fraction": 1.0,
    "resize_mode": "crop",
}
