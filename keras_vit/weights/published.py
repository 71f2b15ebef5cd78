"""The table of published checkpoints."""

import re
from typing import NamedTuple
from urllib.parse import quote, unquote

from keras_vit.config import Preprocessing
from keras_vit.images.constants import CLIP_PREPROCESSING, IMAGENET_PREPROCESSING, OFFICIAL_PREPROCESSING

_GOOGLE = "https://storage.googleapis.com"
_META = "https://dl.fbaipublicfiles.com"
_HUB = "https://huggingface.co/timm"
_PREPROCESSING = {
    **dict.fromkeys(("official", "bit"), OFFICIAL_PREPROCESSING),
    **dict.fromkeys(("deit", "mae", "dino", "dinov2_original"), IMAGENET_PREPROCESSING),
    "openai_clip": CLIP_PREPROCESSING,
}
_LICENSES = {"mae": "CC-BY-NC-4.0", "openai_clip": "MIT"}


class PublishedCheckpoint(NamedTuple):
    """A published checkpoint. `list_weights` returns a list of these tuples."""

    # The architecture and the tag, such as "ViTB16.imagenet21k".
    name: str
    architecture: str
    # A tag has the form "recipe_classes_resolution", such as "augreg_imagenet2012_384". The recipe is omitted if it is
    # the architecture's original one, as in the ViT, BiT and DeiT papers. A resolution of 224 is omitted too. The tag
    # of a fine-tuned BiT is "pretraining_classes". For a model without a classifier, the tag is a recipe or data set.
    # In "openai_336", the resolution follows the recipe. Models with "reg4" have 4 register tokens.
    tag: str
    url: str
    # The argument `source` of `load_weights`.
    source: str
    # The first digits of the SHA-256, which the names of DeiT's files contain. None if no digits were published.
    sha256_prefix: str | None
    # The side of the images in the last training or fine-tuning, in pixels.
    resolution: int
    # 0 if the checkpoint has no classifier.
    num_classes: int
    # Published ImageNet top-1, in percent.
    accuracy: float | None
    # The SPDX name of the license, such as "Apache-2.0".
    license: str
    # The file name in the cache: the published name or, if several files have the same name, "FOLDER-NAME".
    filename: str

    @property
    def preprocessing(self):
        """The `keras_vit.Preprocessing` that the model expects."""
        return Preprocessing(**_PREPROCESSING[self.source])


# The ViT paper (arXiv 2010.11929): tag, folder, resolution, classes, and the files as name:accuracy. The accuracies
# are from the paper's table 5 at 384 pixels, and from the README of the official code at 224 pixels. The "sam" models
# were trained with sharpness-aware minimization on ImageNet only (arXiv 2106.01548). ViT-S_16 is left out, because its
# file is three times as large as the model.
_VIT = (
    (
        *("imagenet21k", "imagenet21k", 224, 21843),
        "ViT-B_8 ViT-B_16 ViT-B_32 ViT-L_16 ViT-L_32 ViT-H_14 R26+ViT-B_32 R50+ViT-B_16 R50+ViT-L_32",
    ),
    ("imagenet2012", "imagenet21k+imagenet2012", 224, 1000, "ViT-B_16-224:81.2 ViT-L_16-224:82.7"),
    (
        *("imagenet2012_384", "imagenet21k+imagenet2012", 384, 1000),
        "ViT-B_8 ViT-B_16:83.97 ViT-B_32:81.28 ViT-L_16:85.15 ViT-L_32:80.99 R50+ViT-B_16",
    ),
    ("sam_imagenet2012", "sam", 224, 1000, "ViT-B_16 ViT-B_32 ViT-L_16 ViT-L_32"),
)
# AugReg (arXiv 2106.10270). The columns are the model and its checkpoints of ImageNet-21k, of ImageNet at 224 pixels
# and of ImageNet at 384 pixels. A checkpoint is written as "augmentation/weight decay/dropout/learning rate of
# fine-tuning:accuracy". The dropout is also the rate of stochastic depth. The columns of ImageNet-21k and of 384
# pixels contain the checkpoints that the official README recommends. An exception is the ImageNet-21k checkpoint of
# B/8, which the official notebook recommends. In the column of 224 pixels, only the checkpoint of B/8 is recommended in
# the README. The remaining checkpoints in this column are from timm's table. Some of them were not fine-tuned from the
# ImageNet-21k checkpoint in the same row.
_AUGREG = """
R_Ti_16   none/0.03/0.0    none/0.03/0.0/0.03           none/0.03/0.0/0.03:75.40
Ti_16     none/0.03/0.0    none/0.03/0.0/0.03           none/0.03/0.0/0.03:78.22
S_16      light1/0.03/0.0  light1/0.03/0.0/0.03:80.46   light1/0.03/0.0/0.03:83.73
S_32      none/0.1/0.0     light1/0.03/0.0/0.03         none/0.1/0.0/0.01:79.58
B_8       medium2/0.1/0.0  medium2/0.1/0.0/0.03:85.58
B_16      medium1/0.1/0.0  medium1/0.1/0.0/0.01         medium1/0.1/0.0/0.03:85.49
B_32      light1/0.1/0.0   medium1/0.03/0.0/0.03:79.44  light1/0.1/0.0/0.01:83.59
L_16      strong1/0.1/0.0  medium1/0.1/0.1/0.01:85.72   strong1/0.1/0.0/0.01:85.59
R26_S_32  light1/0.1/0.0   light0/0.03/0.1/0.03:80.94   light1/0.1/0.0/0.01:83.85
R50_L_32  medium1/0.1/0.1  medium1/0.1/0.1/0.01:83.78   medium1/0.1/0.1/0.01:85.99
"""
# BiT (arXiv 1912.11370): size, and the accuracy of BiT-M fine-tuned on ImageNet at 480 pixels, from timm's docs.
_BIT = {"R50x1": 80.19, "R50x3": 83.75, "R101x1": 82.21, "R101x3": 84.38, "R152x2": 84.4, "R152x4": 84.95}
# DeiT (arXiv 2012.12877): architecture, file, first digits of the SHA-256, accuracy.
_DEIT = (
    ("DeiTTi16", "deit_tiny_patch16_224", "a1311bcf", 72.2),
    ("DeiTS16", "deit_small_patch16_224", "cd65a155", 79.9),
    ("DeiTB16", "deit_base_patch16_224", "b5f2ef4d", 81.8),
    ("DeiTB16", "deit_base_patch16_384", "8de9b5d1", 82.9),
    ("DeiTTi16Distilled", "deit_tiny_distilled_patch16_224", "b40b3cf7", 74.5),
    ("DeiTS16Distilled", "deit_small_distilled_patch16_224", "649709d9", 81.2),
    ("DeiTB16Distilled", "deit_base_distilled_patch16_224", "df68dfff", 83.4),
    ("DeiTB16Distilled", "deit_base_distilled_patch16_384", "d0272ac0", 85.2),
)
# MAE (arXiv 2111.06377): architecture, the size in the file names, and the accuracy of the fine-tuned model, from the
# authors' FINETUNE.md. DINO (arXiv 2104.14294) and DINOv2 (arXiv 2304.07193): architecture, and its name in the file
# names. No SHA-256 of these files is published.
_MAE = (("ViTB16", "base", 83.664), ("ViTL16", "large", 85.952), ("ViTH14", "huge", 86.928))
_DINO = (("ViTS16", "deitsmall16"), ("ViTS8", "deitsmall8"), ("ViTB16", "vitbase16"), ("ViTB8", "vitbase8"))
_DINOV2 = (("DINOv2S14", "vits14"), ("DINOv2B14", "vitb14"), ("DINOv2L14", "vitl14"), ("DINOv2G14", "vitg14"))
# CLIP (arXiv 2103.00020), in files that OpenCLIP converted, because the original files are TorchScript programs. No
# SHA-256 of the converted files is published.
_CLIP = (
    ("CLIPB32", "openai", 224, "vit_base_patch32_clip_224"),
    ("CLIPB16", "openai", 224, "vit_base_patch16_clip_224"),
    ("CLIPL14", "openai", 224, "vit_large_patch14_clip_224"),
    ("CLIPL14", "openai_336", 336, "vit_large_patch14_clip_336"),
)


def _published():
    """Yields (architecture, tag, source, url, resolution, num_classes, accuracy) per checkpoint."""
    for tag, folder, resolution, classes, files in _VIT:
        for file, accuracy in map(_with_accuracy, files.split()):
            architecture = re.sub("[+_-]", "", file.removesuffix("-224"))
            url = f"{_GOOGLE}/vit_models/{quote(folder)}/{quote(file)}.npz"
            yield architecture, tag, "official", url, resolution, classes, accuracy
    tags = (("imagenet21k", 224, 21843), ("imagenet2012", 224, 1000), ("imagenet2012_384", 384, 1000))
    for model, *checkpoints in map(str.split, _AUGREG.strip().splitlines()):
        *stem, size, patch = model.split("_")
        for (tag, resolution, classes), checkpoint in zip(tags, checkpoints, strict=False):
            made_of, accuracy = _with_accuracy(checkpoint)
            augmentation, decay, dropout, *rate = made_of.split("/")
            file = f"{model}-i21k-300ep-lr_0.001-aug_{augmentation}-wd_{decay}-do_{dropout}-sd_{dropout}"
            file += f"--imagenet2012-steps_20k-lr_{rate[0]}-res_{resolution}" if rate else ""
            url = f"{_GOOGLE}/vit_models/augreg/{file}.npz"
            yield f"{''.join(stem)}ViT{size}{patch}", f"augreg_{tag}", "official", url, resolution, classes, accuracy
    for size, accuracy in _BIT.items():
        url = f"{_GOOGLE}/bit_models/BiT"
        yield f"BiT{size}", "imagenet21k", "bit", f"{url}-M-{size}.npz", 224, 21843, None
        yield f"BiT{size}", "imagenet2012", "bit", f"{url}-S-{size}.npz", 224, 1000, None
        tuned = f"{url}-M-{size}-ILSVRC2012.npz"
        yield f"BiT{size}", "imagenet21k_imagenet2012", "bit", tuned, 480, 1000, accuracy
    for architecture, file, digits, accuracy in _DEIT:
        tag = "imagenet2012_384" if file.endswith("384") else "imagenet2012"
        yield architecture, tag, "deit", f"{_META}/deit/{file}-{digits}.pth", int(file[-3:]), 1000, accuracy
    for architecture, size, accuracy in _MAE:
        yield architecture, "mae", "mae", f"{_META}/mae/pretrain/mae_pretrain_vit_{size}.pth", 224, 0, None
        tuned = f"{_META}/mae/finetune/mae_finetuned_vit_{size}.pth"
        yield architecture, "mae_imagenet2012", "mae", tuned, 224, 1000, accuracy
    for architecture, file in _DINO:
        yield architecture, "dino", "dino", f"{_META}/dino/dino_{file}_pretrain/dino_{file}_pretrain.pth", 224, 0, None
    for architecture, file in _DINOV2:
        for tag, reg in (("lvd142m", ""), ("lvd142m_reg4", "_reg4")):
            url = f"{_META}/dinov2/dinov2_{file}/dinov2_{file}{reg}_pretrain.pth"
            yield architecture, tag, "dinov2_original", url, 518, 0, None
    for architecture, tag, resolution, name in _CLIP:
        url = f"{_HUB}/{name}.openai/resolve/main/open_clip_model.safetensors"
        yield architecture, tag, "openai_clip", url, resolution, 0, None


def _with_accuracy(file):
    """Returns ("ViT-B_16", 83.97) for "ViT-B_16:83.97", and ("ViT-B_8", None) for "ViT-B_8"."""
    name, _, accuracy = file.partition(":")
    return name, float(accuracy) if accuracy else None


def folder_and_file(url):
    """Returns the folder and the file of a URL, such as ("imagenet21k", "ViT-B_16.npz")."""
    return tuple(unquote(part) for part in url.replace("/resolve/main/", "/").split("/")[-2:])


def _row(architecture, tag, source, url, resolution, num_classes, accuracy):
    folder, file = folder_and_file(url)
    digits = re.search(r"-([0-9a-f]{8})\.pth$", file)
    return PublishedCheckpoint(
        name=f"{architecture}.{tag}",
        architecture=architecture,
        tag=tag,
        url=url,
        source=source,
        sha256_prefix=digits and digits[1],
        resolution=resolution,
        num_classes=num_classes,
        accuracy=accuracy,
        license=_LICENSES.get(source, "Apache-2.0"),
        filename=f"{folder}-{file}" if _FILES.count(file) > 1 else file,
    )


_FILES = [folder_and_file(url)[1] for _, _, _, url, *_ in _published()]
ROWS = {row.name: row for row in (_row(*facts) for facts in _published())}
# {published file name: first digits of the SHA-256}.
SHA256_PREFIXES = {row.filename: row.sha256_prefix for row in ROWS.values() if row.sha256_prefix}
# {published file name: `source` of `load_weights`}. Files of DINO and MAE have the same keys, so only
# the file name shows the source.
SOURCES_OF_FILES = {row.filename: row.source for row in ROWS.values()}
