"""Tries all models of timm and transformers, and counts which are loaded exactly, refused, or loaded wrongly.

Each model gets random weights, norms and biases, and is saved in the format of the hub. `from_pretrained` loads the
files, and both models compute the outputs for two random images. "exact" means that the outputs differ by at most 1e-4
of the largest output. "refused" means that loading raised an error that is meant for users. The class names, the task
and the preprocessed pixels of one photo are compared too. The reference is the image processor of transformers, or
timm's rule carried out with Pillow, because timm's transforms need torchvision.

A model that is loaded exactly is also written in the peer's format and loaded by the peer. The outputs of the peer may
then differ from its first outputs by 1e-5. If two copies of a model need more than 16 GB, the model gets 2 blocks.
Results go to results/zoo.json. An interrupted run continues where it stopped.

    KERAS_BACKEND=torch PYTHONPATH=. python benchmarks/zoo.py
    KERAS_BACKEND=torch PYTHONPATH=. python benchmarks/zoo.py --shallow --out shallow.json     2 blocks each
    python benchmarks/zoo.py --summary
"""

import argparse
import collections
import contextlib
import fnmatch
import json
import math
import multiprocessing
import os
import re
import tempfile
import time
from pathlib import Path

import numpy as np

from keras_vit.console import text_table
from keras_vit.files import replacing
from keras_vit.version import __version__

TIMM_PATTERNS = ("vit_*", "deit*", "flexivit*", "eva02*", "resnetv2_*_bit*", "coatnet*", "coatnext*")
TIMM_PATTERNS += ("tf_efficientnet_[bl]*", "efficientnet_b*", "efficientnet_l2")
# For a model and its copy together.
LARGEST_BYTES = 16e9
EXACT, WRITTEN = 1e-4, 1e-5
# The largest share of pixels in a picture that may differ by more than one level of 256.
LARGEST_SHARE = 1e-3
# Keep this number of characters of an error.
MESSAGE = 200
REFUSALS = (ValueError, OSError, ImportError)

_IMAGENET = {"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]}
_HALF = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
_CLIP = {"image_mean": [0.48145466, 0.4578275, 0.40821073], "image_std": [0.26862954, 0.26130258, 0.27577711]}


def _square(side):
    return {"height": side, "width": side}


def _cropped(kind, resized, side, constants):
    size = {"do_center_crop": True, "size": resized, "crop_size": _square(side), "resample": 3}
    return {"image_processor_type": kind, **size, **constants}


_VIT = {"image_processor_type": "ViTImageProcessor", "size": _square(224), "resample": 2, **_HALF}
_MAE = {**_VIT, "resample": 3, **_IMAGENET}
_DEIT = _cropped("DeiTImageProcessor", _square(256), 224, _IMAGENET)
_DINOV2 = _cropped("BitImageProcessor", {"shortest_edge": 256}, 224, _IMAGENET)
_DINOV3 = {**_VIT, "image_processor_type": "DINOv3ViTImageProcessorFast", **_IMAGENET}
_OPENAI = _cropped("CLIPImageProcessor", {"shortest_edge": 224}, 224, _CLIP)
_SIGLIP = {**_VIT, "image_processor_type": "SiglipImageProcessor", "resample": 3}
_BIT = {**_cropped("BitImageProcessor", {"shortest_edge": 448}, 448, _HALF), "resample": 2}
_DINO = ("Dinov2Model", "Dinov2ForImageClassification")
_DINO = (*_DINO, *(name.replace("Dinov2", "Dinov2WithRegisters") for name in _DINO))
# Rows of transformers: {class and variant: (image processor, changes of the config)}.
CLASSES = {
    **dict.fromkeys(("ViTForImageClassification", "ViTModel", "ViTForMaskedImageModeling"), (_VIT, {})),
    **dict.fromkeys(("ViTForImageClassification no-qkv-bias", "ViTModel no-qkv-bias"), (_VIT, {"qkv_bias": False})),
    **dict.fromkeys(("DeiTForImageClassification", "DeiTForImageClassificationWithTeacher", "DeiTModel"), (_DEIT, {})),
    **dict.fromkeys(_DINO, (_DINOV2, {"image_size": 224})),
    **{f"{name} swiglu": (_DINOV2, {"image_size": 224, "use_swiglu_ffn": True}) for name in _DINO},
    **{
        f"{name} {activation}": (_OPENAI, {"hidden_act": activation})
        for name in ("CLIPVisionModel", "CLIPVisionModelWithProjection", "CLIPModel")
        for activation in ("quick_gelu", "gelu")
    },
    **dict.fromkeys(("SiglipVisionModel", "SiglipForImageClassification", "SiglipModel"), (_SIGLIP, {})),
    "DINOv3ViTModel mlp": (_DINOV3, {}),
    "DINOv3ViTModel gated": (_DINOV3, {"use_gated_mlp": True}),
    # Mask no patches.
    **dict.fromkeys(("ViTMAEModel", "ViTMAEForPreTraining"), (_MAE, {"mask_ratio": 0.0})),
    **dict.fromkeys(("IJepaModel", "IJepaForImageClassification"), (_MAE, {})),
    **dict.fromkeys(("BitModel", "BitForImageClassification"), (_BIT, {})),
}
# The rows of the summary: the first pattern that a name matches.
FAMILIES = {
    "BiT": "resnetv2_*",
    "CoAtNet": "coatne*",
    "EfficientNet": "tf_efficientnet_*|efficientnet_*",
    "DeiT III": "deit3_*",
    "DeiT": "deit*",
    "FlexiViT": "flexivit*",
    "EVA-02": "eva02_*",
    "relative positions": "vit_*relpos_*",
    "DINOv2": "vit_*dinov2*",
    "DINOv3": "vit_*dinov3*",
    "SigLIP": "vit_*siglip*",
    "CLIP": "vit_*clip_*",
    "Perception Encoder": "vit_pe_*",
    "rotary positions": "vit_*rope*",
    "hybrid": "vit_*_r[0-9]*_*|vit_*_resnet*|vit_*_mci*",
    "registers": "vit_*_reg*",
    "ViT": "vit_*",
    "transformers": "*",
}
# Matches patch and position embeddings, but not the ResNet inside the patch embedding of a hybrid.
_EMBEDDING = re.compile("patch_embed(?!.*backbone)|position")


def randomize(module, seed=0):
    """Gives all weights random values that show a swapped weight, another GELU and another epsilon."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    running = [item for item in module.named_buffers() if re.search(r"running_(mean|var)$", item[0])]
    with torch.no_grad():
        for name, value in (*module.named_parameters(), *running):
            last = name.rpartition(".")[2]
            if last in ("freqs", "running_var"):
                value.mul_(torch.empty_like(value).uniform_(0.5, 1.5, generator=generator))
            elif value.ndim == 1 and re.match("weight|gamma|lambda", last):
                value.uniform_(0.5, 1.5, generator=generator)
            elif re.search(r"\b(fc1|up_proj)\.bias$", name):
                # At these values, the exact GELU and its approximation differ most.
                value.normal_(-2, 0.5, generator=generator)
            elif value.ndim and (not last.endswith(("weight", "bias", "mean")) or _EMBEDDING.search(name)):
                # Make the tokens small, as in trained models, so that a wrong epsilon in the first norms shows.
                value.normal_(0, 1e-2 if value.ndim < 4 else 1e-3, generator=generator)
            elif value.ndim == 1:
                value.normal_(0, 0.2, generator=generator)
            elif value.ndim:
                std = (3 if re.search(r"\b(fc2|down_proj)\.weight$", name) else 1) * (len(value) / value.numel()) ** 0.5
                value.normal_(0, std, generator=generator)
    return module.eval()


def calibrate(module, images):
    """Gives batch norms the statistics of images, as in training: others let features grow until rounding decides."""
    import torch

    norms = [(each, each.momentum) for each in module.modules() if isinstance(each, torch.nn.BatchNorm2d)]
    for norm, _ in norms:
        norm.momentum = 1
        norm.train()
    if norms:
        _run(module, module, images)
    for norm, momentum in norms:
        norm.momentum = momentum
        norm.eval()


def _run(module, function, images):
    import torch

    with torch.no_grad():
        return function(torch.from_numpy(images).permute(0, 3, 1, 2).contiguous())


def photo():
    """Returns a picture that is not square, with shapes of many sizes."""
    from PIL import Image

    generator = np.random.default_rng(0)
    layers = [generator.uniform(0, 255, size=(side, side, 3)).astype("uint8") for side in (4, 16, 64)]
    layers = [np.asarray(Image.fromarray(layer).resize((700, 520), 2), "float32") for layer in layers]
    return Image.fromarray(np.mean(layers, axis=0).astype("uint8"))


def by_pillow(picture, config):
    """Returns a picture transformed by the rule of timm's evaluation transform for its data config."""
    size, filters = config["input_size"][1:], {"bilinear": 2, "bicubic": 3}
    scaled, sides = [math.floor(side / config["crop_pct"]) for side in size], picture.size[::-1]
    ratios, mode = [side / new for side, new in zip(sides, scaled, strict=True)], config["crop_mode"]
    if mode == "squash":
        new = scaled
    elif mode == "center" and scaled[0] == scaled[1]:
        new = [scaled[0] if side == min(sides) else int(scaled[0] * side / min(sides)) for side in sides]
    else:
        new = [round(side / (max(ratios) if mode == "border" else min(ratios))) for side in sides]
    image = np.asarray(picture.resize(new[::-1], filters[config["interpolation"]]), "float32")
    mean, std = (np.array(config[name]) for name in ("mean", "std"))
    padding = [(max(a - b, 0) // 2, (max(a - b, 0) + 1) // 2) for a, b in zip(size, image.shape, strict=False)]
    fills = (min(255, round(255 * value)) for value in mean)
    image = np.stack([np.pad(image[..., i], padding, constant_values=fill) for i, fill in enumerate(fills)], axis=-1)
    top, left = (round((a - b) / 2) for a, b in zip(image.shape, size, strict=False))
    return (image[top : top + size[0], left : left + size[1]] / 255 - mean) / std


def differing_facts(model, expected):
    """Returns which of class names, task and picture differ from those of the peer, as a text that may be empty."""
    import keras_vit

    config, found = model.config, []
    if (names := config.class_names and list(config.class_names)) != expected["class_names"]:
        found.append(f"class names {names and names[:3]}, expected {(expected['class_names'] or [])[:3]}")
    if config.task != expected["task"]:
        found.append(f"task {config.task}, expected {expected['task']}")
    with tempfile.NamedTemporaryFile(suffix=".png") as file:
        photo().save(file.name)
        picture = keras_vit.preprocess_input(keras_vit.read_image(file.name, model), model)
    picture, theirs = np.asarray(picture).reshape(picture.shape[-3:]), expected["picture"]
    if picture.shape != theirs.shape:
        found.append(f"a picture of {picture.shape}, expected {theirs.shape}")
    else:
        levels = np.abs(picture - theirs) * 255 * np.array(expected["std"])
        if (share := np.mean(levels.max(-1) > 1.01)) > LARGEST_SHARE:
            found.append(f"{share:.1%} of the pixels of a picture, by up to {levels.max():.0f} levels")
    return "; ".join(found)


class TimmModel:
    """A model of timm by its name."""

    format = "timm"

    def __init__(self, name, shallow=False):
        import torch

        from tests.peers import peer

        self.timm, self.name, self.arguments, self.overlay = peer("timm"), name, {}, {}
        is_bit = name.startswith("resnetv2")
        is_efficientnet = "efficientnet" in name
        if is_bit and (shallow or "x4" in name):
            # timm cannot change the depth of a BiT, and the widest takes more than 16 GB for images of its own size.
            self.overlay = {"input_size": (3, 96, 96)}
        if is_efficientnet and (shallow or re.search("_(b[4-8]|l2)", name)):
            # timm cannot change the depth of an EfficientNet, and the activations of the larger ones take gigabytes.
            self.overlay = {"input_size": (3, 128, 161)}
        if not (is_bit or is_efficientnet):
            with torch.device("meta"):
                module = self.create()
            if shallow or 8 * sum(value.numel() for value in module.parameters()) > LARGEST_BYTES:
                self.arguments = {"depths": [1, 1, 2, 2]} if name.startswith("coatne") else {"depth": 2}
                if "sapiens2" in self.name:
                    # State the number of key heads of each block, because the middle blocks may have fewer.
                    counts = [block.attn.num_kv_heads for block in module.blocks]
                    self.arguments["num_kv_heads"] = [max(counts), min(counts)]

    def create(self):
        return self.timm.create_model(self.name, pretrained_cfg_overlay=self.overlay, **self.arguments).eval()

    def save(self, module, folder):
        from timm.models import save_for_hf

        arguments = dict(self.arguments)
        if "depth" in arguments:
            # For a model of known depth, timm's name gives num_heads. This depth is new, so state num_heads.
            arguments["num_heads"] = next(m.num_heads for m in module.modules() if hasattr(m, "num_heads"))
        config = {"label_names": self.names(module)} if module.num_classes else None
        save_for_hf(module, folder, config, model_args=arguments or None, safe_serialization=True)

    def names(self, module):
        return [f"name {i}" for i in range(module.num_classes)] or None

    def facts(self, module, folder):
        """Returns the class names, the task and the picture of a model; timm has no other tasks."""
        config = json.loads(Path(folder, "config.json").read_text(encoding="utf-8"))
        from timm.data import resolve_data_config

        data = resolve_data_config(pretrained_cfg=config["pretrained_cfg"])
        picture = {"picture": by_pillow(photo(), data), "std": data["std"]}
        return {"class_names": self.names(module), "task": "single_label", **picture}

    def depth(self, module):
        return len(module.blocks) if hasattr(module, "blocks") else sum(len(stage.blocks) for stage in module.stages)

    def image_size(self, module):
        return module.pretrained_cfg["input_size"][1:]

    def outputs(self, module, images):
        """Returns {what: arrays}."""
        what = "logits" if module.num_classes else "features"
        return {what: [_run(module, module, images).numpy()]}

    def read(self, path):
        """Returns a model with the weights of a file that we wrote."""
        from safetensors.torch import load_file

        module = self.create()
        module.load_state_dict(load_file(path), strict=True)
        return module


class TransformersModel:
    """A model of transformers by its class and its variant."""

    format = "huggingface"

    def __init__(self, name, shallow=False):
        from tests.peers import peer

        self.transformers, (self.kind, *_) = peer("transformers"), name.split()
        self.processor, self.changes = CLASSES[name]
        self.shallow = shallow

    def create(self):
        cls = getattr(self.transformers, self.kind)
        config = cls.config_class()
        inner = getattr(config, "vision_config", config)
        changes = dict(self.changes)
        if hasattr(inner, "num_register_tokens"):
            changes["num_register_tokens"] = 4
        if self.shallow and hasattr(inner, "num_hidden_layers"):
            changes["num_hidden_layers"] = 2
        for key, value in changes.items():
            setattr(inner, key, value)
        if "Classification" in self.kind:
            config.id2label = {i: f"name {i}" for i in range(10)}
            config.problem_type = "multi_label_classification"
        return cls(config).eval()

    def facts(self, module, folder):
        """Returns the class names, the task and the picture of a model."""
        kind = self.processor["image_processor_type"].removesuffix("Fast").removesuffix("ImageProcessor")
        if kind == "DINOv3ViT":
            # The image processor of this model needs torchvision.
            names = {"mean": "image_mean", "std": "image_std"}
            config = {ours: self.processor[theirs] for ours, theirs in names.items()}
            config |= {"input_size": (3, 224, 224), "interpolation": "bilinear", "crop_pct": 1.0, "crop_mode": "squash"}
            picture = by_pillow(photo(), config)
        else:
            from tests.peers import peer

            code = peer(f"transformers.models.{kind.lower()}.image_processing_pil_{kind.lower()}")
            processor = getattr(code, f"{kind}ImageProcessorPil").from_pretrained(folder)
            picture = np.moveaxis(np.asarray(processor(photo())["pixel_values"][0], "float32"), 0, -1)
        labelled = "Classification" in self.kind
        facts = {"picture": picture, "std": self.processor["image_std"]}
        facts["class_names"] = [f"name {i}" for i in range(10)] if labelled else None
        return {**facts, "task": "multi_label" if labelled else "single_label"}

    def save(self, module, folder):
        module.save_pretrained(folder)
        common = {"do_resize": True, "do_rescale": True, "rescale_factor": 1 / 255, "do_normalize": True}
        text = json.dumps({**common, **self.processor})
        Path(folder, "preprocessor_config.json").write_text(text, encoding="utf-8")

    def depth(self, module):
        config = getattr(module.config, "vision_config", module.config)
        return config.num_hidden_layers if hasattr(config, "num_hidden_layers") else sum(config.depths)

    def image_size(self, module):
        config = getattr(module.config, "vision_config", module.config)
        if hasattr(config, "image_size"):
            return (config.image_size,) * 2
        return (self.processor["crop_size"]["height"],) * 2

    def outputs(self, module, images):
        """Returns {what: arrays}: the logits, or else each of the features that may be the model's outputs."""
        if hasattr(module, "get_image_features"):
            return {"image features": [_run(module, module.get_image_features, images).pooler_output.numpy()]}
        kind = type(module).__name__
        found = _run(module, module.vit if "PreTraining" in kind or "Masked" in kind else module, images)
        if "cls_logits" in found:
            both = [found.cls_logits.numpy(), found.distillation_logits.numpy()]
            return {"logits": [found.logits.numpy()], "logits of both heads": both}
        for key in ("logits", "image_embeds", "pooler_output"):
            if found.get(key) is not None:
                return {key: [found[key].flatten(1).numpy()]}
        tokens = found.last_hidden_state.numpy()
        if "IJepa" in kind:
            return {"mean of tokens": [tokens.mean(1)], "tokens": [tokens]}
        # ViTMAE shuffles the patches, so only its class token is compared.
        return {"class token": [tokens[:, 0]], **({} if "MAE" in kind else {"tokens": [tokens]})}

    def read(self, path):
        """Returns a model with the weights of a folder that we wrote."""
        config = json.loads(Path(path, "config.json").read_text(encoding="utf-8"))
        cls = getattr(self.transformers, config["architectures"][0])
        # By default, transformers adds a pooler to a ViTModel even if the file has none.
        options = {"add_pooling_layer": "pooler_act" in config} if cls.__name__ == "ViTModel" else {}
        module, found = cls.from_pretrained(path, output_loading_info=True, **options)
        # Only pretraining uses the mask token, so it may be missing.
        found["missing_keys"] = [key for key in found["missing_keys"] if not key.endswith("mask_token")]
        if wrong := {key: value for key, value in found.items() if value}:
            raise ValueError(f"transformers reports {wrong}")
        return module.eval()


def peer_of(name, shallow=False):
    return (TransformersModel if name in CLASSES else TimmModel)(name, shallow)


def images_for(module, peer):
    return np.random.default_rng(0).normal(size=(2, *peer.image_size(module), 3)).astype("float32")


def ours(model, images):
    import keras

    return [keras.ops.convert_to_numpy(y) for y in keras.tree.flatten(model(images, training=False))]


def distance(found, expected):
    """Returns the largest difference as a fraction of the largest value; infinity for other shapes and NaN."""
    if [y.shape for y in found] != [y.shape for y in expected]:
        return float("inf")
    pairs = list(zip(found, expected, strict=True))
    worst = max(np.abs(a - b).max() for a, b in pairs) / max(np.abs(b).max() for _, b in pairs)
    return float(worst) if np.isfinite(worst) else float("inf")


def closest(found, candidates):
    """Returns (difference, what) for our outputs and those of the peer that have their shapes."""
    shapes = [y.shape for y in found]
    fitting = [what for what, arrays in candidates.items() if [y.shape for y in arrays] == shapes]
    what = next(iter(fitting or candidates))
    return distance(found, candidates[what]), what


def load(folder, images, candidates, expected=None):
    """Returns the row of loading a folder, and the model or None; `expected` are the facts beside the outputs."""
    import keras_vit

    try:
        model = keras_vit.from_pretrained(folder)
        found = ours(model, images)
        differing = expected and differing_facts(model, expected)
    except REFUSALS as error:
        return {"outcome": "refused", "message": _text(error, folder)}, None
    except Exception as error:
        return {"outcome": "crashed", "message": f"{type(error).__name__}: {_text(error, folder)}"}, None
    difference, what = closest(found, candidates)
    row = {"outcome": "exact" if difference <= EXACT else "wrong", "compared": what}
    if difference == float("inf"):
        row["message"] = f"shapes {[y.shape for y in found]} and {[y.shape for y in candidates[what]]}, or NaN"
    elif differing:
        row |= {"outcome": "wrong", "message": differing}
    return {**row, "difference": None if difference == float("inf") else float(f"{difference:.2g}")}, model


def write_back(peer, model, folder, images, expected):
    """Returns "written", "wrong", or the error of writing a model or of the peer that reads it.

    The peer's outputs with the weights of our file are compared with those of its own model, `expected`.
    """
    import keras_vit

    path = Path(folder, "back" if peer.format == "huggingface" else "back.safetensors")
    try:
        keras_vit.save_weights(model, path, peer.format)
        del model
        difference, _ = closest(expected, peer.outputs(peer.read(path), images))
    except Exception as error:
        return f"{type(error).__name__}: {_text(error, folder)}"
    return "written" if difference <= WRITTEN else f"wrong by {difference:.2g}"


def _text(error, folder):
    """Returns the start of a message, without the sizes of the file and the model."""
    return re.sub(r"\n  The (file|model): .*", "", str(error).replace(str(folder), "FOLDER"))[:MESSAGE]


def row_of(name, shallow=False):
    """Returns the row of a model."""
    start = time.perf_counter()
    row = {"name": name, "kind": "transformers" if name in CLASSES else "timm", "outcome": None, "difference": None}
    row |= {"written": None, "message": None, "compared": None, "depth": None}
    with tempfile.TemporaryDirectory() as folder:
        try:
            peer = peer_of(name, shallow)
            module = randomize(peer.create())
            row["depth"] = peer.depth(module)
            images = images_for(module, peer)
            calibrate(module, images)
            peer.save(module, Path(folder, "model"))
            candidates = peer.outputs(module, images)
            facts = peer.facts(module, Path(folder, "model"))
        except Exception as error:
            message = f"{type(error).__name__}: {_text(error, folder)}"
            return {**row, "outcome": "not made", "message": message}
        # Keep at most one model in memory.
        del module
        found, model = load(Path(folder, "model"), images, candidates, facts)
        if found["outcome"] == "exact":
            row["written"] = write_back(peer, model, folder, images, candidates[found["compared"]])
    return {**row, **found, "seconds": round(time.perf_counter() - start, 1)}


def rows_of(names, shallow, seconds):
    """Yields the row of each name, computed in a new process, because Python does not return all memory of a model."""
    # Import before forking, because the imports take longer than most models.
    import keras_vit  # noqa: F401
    from tests.peers import peer

    peer("timm.models"), peer("transformers")
    context = multiprocessing.get_context("fork")
    for name in names:
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(target=_send_row, args=(sender, name, shallow))
        process.start()
        sender.close()
        late, row = not receiver.poll(seconds), None
        if late:
            process.kill()
        else:
            with contextlib.suppress(EOFError):
                row = json.loads(receiver.recv_bytes())
        process.join()
        message = f"more than {seconds:g} s" if late else f"exit status {process.exitcode}"
        yield row or {"name": name, "kind": "process", "outcome": "crashed", "message": message}


def _send_row(sender, name, shallow):
    sender.send_bytes(json.dumps(row_of(name, shallow)).encode())


def family_of(name):
    if name in CLASSES:
        return "transformers"
    return next(
        family
        for family, patterns in FAMILIES.items()
        if any(fnmatch.fnmatch(name, pattern) for pattern in patterns.split("|"))
    )


def summary(rows):
    """Returns a table of outcomes by family, and the names behind each reason."""
    outcomes = ("exact", "refused", "wrong", "crashed", "not made")
    counts, reasons = collections.defaultdict(collections.Counter), collections.defaultdict(list)
    for row in rows:
        family = family_of(row["name"])
        counts[family][row["outcome"]] += 1
        counts[family]["written"] += row.get("written") == "written"
        if row["outcome"] != "exact":
            reasons[row["outcome"], _reason(row["message"])].append(row["name"])
        elif row["written"] != "written":
            reasons["not written", _reason(row["written"])].append(row["name"])
    columns = ("family", *outcomes, "written")
    table = [[family, *(counts[family][key] for key in columns[1:])] for family in FAMILIES if family in counts]
    table.append(["all", *(sum(count[key] for count in counts.values()) for key in columns[1:])])
    lines = [
        f"{outcome}, {len(names)}: {reason}\n    {', '.join(names)}"
        for (outcome, reason), names in sorted(reasons.items(), key=lambda item: (item[0][0], -len(item[1])))
    ]
    return "\n".join([text_table(columns, table), "", *lines])


def _reason(message):
    """Returns a message on a line, without numbers and its cut end, so that alike ones are grouped."""
    lines = re.sub(r"\d+", "N", message or "other outputs").splitlines()
    cut = lines[:-1] if len(lines) > 1 and len(message) >= MESSAGE else lines
    return " ".join(dict.fromkeys(line.strip() for line in cut if line.strip()))


def table_of(rows):
    columns = ("name", "outcome", "difference", "written", "depth", "seconds", "message")
    form = [[row.get(key) for key in columns] for row in rows]
    for cells in form:
        cells[2] = None if cells[2] is None else f"{cells[2]:.1e}"
        cells[6] = (cells[6] or "").replace("\n", " ")[:100]
    return text_table(columns, form, decimals=1)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", default="*", help="names that match a pattern, such as 'vit_small*|vit_base*'")
    parser.add_argument("--again", action="store_true", help="run finished rows again")
    parser.add_argument("--shallow", action="store_true", help="2 blocks each")
    parser.add_argument("--summary", action="store_true", help="print outcomes and reasons by family; run nothing")
    parser.add_argument("--seconds", type=float, default=900, help="time limit for a model (default: 900)")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "zoo.json")
    args = parser.parse_args()
    os.environ["KERAS_VIT_PEERS"] = "1"
    results = json.loads(args.out.read_text(encoding="utf-8")) if args.out.exists() else {"rows": []}
    rows = {row["name"]: row for row in results["rows"]}
    if args.summary:
        print(summary(rows.values()))
        return
    from tests.peers import peer

    timm, transformers = peer("timm"), peer("transformers")
    versions = {"keras_vit": __version__, "timm": timm.__version__, "transformers": transformers.__version__}
    print(versions, flush=True)
    names = sorted({*CLASSES, *(name for pattern in TIMM_PATTERNS for name in timm.list_models(pattern))})
    chosen = [name for name in names if any(fnmatch.fnmatch(name, part) for part in args.only.split("|"))]
    left = [name for name in chosen if args.again or name not in rows]
    for row in rows_of(left, args.shallow, args.seconds):
        print(table_of([row]).splitlines()[1], flush=True)
        rows[row["name"]] = row
        write(args.out, versions, args.shallow, rows)
    print(summary([rows[name] for name in chosen]))


def write(path, versions, shallow, rows):
    counts = collections.Counter(row["outcome"] for row in rows.values())
    counts["written"] = sum(row.get("written") == "written" for row in rows.values())
    results = {**versions, "shallow": shallow, "counts": counts, "rows": [rows[name] for name in sorted(rows)]}
    with replacing(path) as draft:
        draft.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
