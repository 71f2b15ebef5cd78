"""The names of weights of EfficientNets in timm, the official TensorFlow code and keras.applications."""

import itertools
import re
from collections.abc import Mapping
from typing import NamedTuple

from keras_vit.weights import codecs
from keras_vit.weights.source import Name, Source

_NORM = ("gamma", "beta", "moving_mean", "moving_variance")


class _Style(NamedTuple):
    """A code base's suffixes of weight names, and its layouts of convolution kernels."""

    kernel: str
    depthwise: str
    bias: str
    norm: tuple
    conv: codecs.Identity = codecs.Identity()
    depthwise_conv: codecs.Identity = codecs.Identity()
    # Files store the two dense layers of squeeze-and-excitation as 1 x 1 convolutions.
    dense: codecs.Identity = codecs.Pointwise()


def _rows(style, ours, **layers):
    """Returns the rows of layers, given {our name: name in the file}."""
    rows = {}
    for layer, theirs in layers.items():
        name = ours + layer
        if layer.endswith("norm"):
            rows |= {f"{name}/{n}": Name((theirs + end,)) for n, end in zip(_NORM, style.norm, strict=True)}
        elif layer == "depthwise_conv":
            rows[f"{name}/kernel"] = Name((theirs + style.depthwise,), style.depthwise_conv)
        elif layer.endswith("conv"):
            rows[f"{name}/kernel"] = Name((theirs + style.kernel,), style.conv)
        else:
            rows[f"{name}/kernel"] = Name((theirs + style.kernel,), style.dense)
            rows[f"{name}/bias"] = Name((theirs + style.bias,))
    return rows


def _block(style, stage, block, first, others):
    """Returns the rows of all blocks. The first stage has no expansion, so some of its names mean other layers.

    `block` and `stage` are the key templates of the first stage and of the rest, `first` and `others` their suffixes.
    """
    rows = {}
    for ours, theirs, layers in (("stage_1_block_{unit:02d}/", block, first), (_BLOCK, stage, others)):
        both = {name: theirs + end for name, end in layers.items()}
        squeeze = {name.rpartition("/")[2]: both.pop(name) for name in list(both) if "/" in name}
        rows |= _rows(style, ours, **both) | _rows(style, f"{ours}squeeze_excitation/", **squeeze)
    return rows


_BLOCK = "stage_{stage}_block_{unit:02d}/"
_TORCH = _Style(
    ".weight",
    ".weight",
    ".bias",
    (".weight", ".bias", ".running_mean", ".running_var"),
    codecs.TORCH_CONV,
    codecs.TORCH_DEPTHWISE,
    codecs.Transposed(ones=2),
)
_SE = {"squeeze_excitation/reduce": "se.conv_reduce", "squeeze_excitation/expand": "se.conv_expand"}
TIMM_EFFICIENTNET = Source(
    "timm_efficientnet",
    {
        **_rows(_TORCH, "", stem_conv="conv_stem", stem_norm="bn1", top_conv="conv_head", top_norm="bn2"),
        **_block(
            _TORCH,
            "blocks.{stage0}.{unit0}.",
            "blocks.0.{unit0}.",
            {"depthwise_conv": "conv_dw", "depthwise_norm": "bn1", "project_conv": "conv_pw", "project_norm": "bn2"}
            | _SE,
            {"expand_conv": "conv_pw", "expand_norm": "bn1", "depthwise_conv": "conv_dw", "depthwise_norm": "bn2"}
            | {"project_conv": "conv_pwl", "project_norm": "bn3"}
            | _SE,
        ),
        **_rows(_TORCH._replace(dense=codecs.Transposed()), "", head="classifier"),
    },
    ignored=r".*\.num_batches_tracked$",
    family="efficientnet",
)


class _Official(Source):
    """Assigns blocks to stages by their shapes, because the official code numbers blocks across all stages."""

    def canonical_keys(self, keys):
        canonical, ignored = super().canonical_keys(keys)
        if not isinstance(keys, Mapping):
            return canonical, ignored
        shapes = {name: tuple(keys[key].shape) for name, key in canonical.items()}
        places = dict(_places(shapes))

        def renamed(match):
            return places.get(int(match[1]), match[0])

        return {re.sub(r"^blocks_(\d+)(?=/)", renamed, name): key for name, key in canonical.items()}, ignored


def _places(shapes):
    """Yields (block number, name by stage and place). A stage ends where expansion, kernel size or width changes."""
    numbers = {int(match[1]) for match in (re.match(r"blocks_(\d+)/", name) for name in shapes) if match}

    def kind(number):
        block = f"blocks_{number}/"
        expands = f"{block}conv2d_1/kernel" in shapes
        project = shapes.get(f"{block}conv2d_1/kernel" if expands else f"{block}conv2d/kernel", ())
        return expands, shapes.get(f"{block}depthwise_conv2d/depthwise_kernel", ())[:2], project[3:]

    for stage, (_, group) in enumerate(itertools.groupby(sorted(numbers), kind)):
        for place, number in enumerate(group):
            yield number, f"blocks_{stage}_{place}"


_BATCH_NORM = "tpu_batch_normalization"
_TENSORFLOW = _Style("/kernel", "/depthwise_kernel", "/bias", tuple(f"/{name}" for name in _NORM))
_SE = {"squeeze_excitation/reduce": "se/conv2d", "squeeze_excitation/expand": "se/conv2d_1"}
_DEPTHWISE = {"depthwise_conv": "depthwise_conv2d"}
EFFICIENTNET = _Official(
    "efficientnet",
    {
        **_rows(_TENSORFLOW, "", stem_conv="stem/conv2d", stem_norm=f"stem/{_BATCH_NORM}"),
        **_rows(_TENSORFLOW, "", top_conv="head/conv2d", top_norm=f"head/{_BATCH_NORM}"),
        **_block(
            _TENSORFLOW,
            "blocks_{stage0}_{unit0}/",
            "blocks_0_{unit0}/",
            {"depthwise_norm": _BATCH_NORM, "project_conv": "conv2d", "project_norm": f"{_BATCH_NORM}_1"}
            | _DEPTHWISE
            | _SE,
            {"expand_conv": "conv2d", "expand_norm": _BATCH_NORM, "depthwise_norm": f"{_BATCH_NORM}_1"}
            | {"project_conv": "conv2d_1", "project_norm": f"{_BATCH_NORM}_2"}
            | _DEPTHWISE
            | _SE,
        ),
        **_rows(_TENSORFLOW._replace(dense=codecs.Identity()), "", head="head/dense"),
    },
    # The variable scope, such as "efficientnet-b0/".
    aliases=[(r"^efficientnet-[^/]+/", "")],
    family="efficientnet",
)

_NUMBERED = _Style("/0", "/0", "/1", ("/0", "/1", "/2", "/3"))
_SE = {"squeeze_excitation/reduce": "se_reduce", "squeeze_excitation/expand": "se_expand"}
_OTHERS = {
    **{"depthwise_conv": "dwconv", "depthwise_norm": "bn", "project_conv": "project_conv"},
    **{"project_norm": "project_bn", **_SE},
}
KERAS_APPLICATIONS = Source(
    "keras_applications",
    {
        **_rows(_NUMBERED, "", stem_conv="stem_conv", stem_norm="stem_bn", top_conv="top_conv", top_norm="top_bn"),
        **_block(
            _NUMBERED,
            "block{stage}_{unit}_",
            "block1_{unit}_",
            _OTHERS,
            {"expand_conv": "expand_conv", "expand_norm": "expand_bn", **_OTHERS},
        ),
        **_rows(_NUMBERED._replace(dense=codecs.Identity()), "", head="predictions"),
    },
    mark="block1a_",
    # Keras names the blocks of a stage "a", "b", ..., and numbers normalization layers across all models of a session.
    aliases=[
        (r"^block(\d)([a-z])_", lambda match: f"block{match[1]}_{ord(match[2]) - ord('a') + 1}_"),
        (r"^normalization_\d+/", "normalization/"),
    ],
    # The normalization constants, which belong to the preprocessing in this package.
    ignored=r"normalization(_\d+)?/",
    family="efficientnet",
)
