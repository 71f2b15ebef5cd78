"""The names of weights of EfficientNets in timm, the official TensorFlow code and keras.applications."""

import itertools
import re
from collections.abc import Mapping
from typing import NamedTuple

from keras_vit.weights import codecs
from keras_vit.weights.source import Name, Source

_NORM = ("gamma", "beta", "moving_mean", "moving_variance")
# The layers outside the blocks, and the layers of a block. The names that `_rows` receives have the same order.
# Blocks of the first stage do not have the last two layers.
_ENDS = ("stem_conv", "stem_norm", "top_conv", "top_norm", "head")
_BLOCK = (
    *("depthwise_conv", "depthwise_norm", "project_conv", "project_norm", "squeeze_excitation/reduce"),
    *("squeeze_excitation/expand", "expand_conv", "expand_norm"),
)


class _Style(NamedTuple):
    """The suffixes of the weight names of a code base, and the layouts of its kernels."""

    kernel: str
    depthwise: str
    bias: str
    norm: tuple
    conv: codecs.Identity = codecs.Identity()
    depthwise_conv: codecs.Identity = codecs.Identity()
    # Files store the two dense layers of squeeze-and-excitation as 1 x 1 convolutions.
    squeeze: codecs.Identity = codecs.Pointwise()
    head: codecs.Identity = codecs.Identity()


def _layer(style, ours, theirs):
    """Returns {our weight path: `Name` in the file} for a layer, given our and the file's name of the layer."""
    if ours.endswith("norm"):
        return {f"{ours}/{name}": Name((theirs + end,)) for name, end in zip(_NORM, style.norm, strict=True)}
    if ours.endswith("depthwise_conv"):
        return {f"{ours}/kernel": Name((theirs + style.depthwise,), style.depthwise_conv)}
    if ours.endswith("conv"):
        return {f"{ours}/kernel": Name((theirs + style.kernel,), style.conv)}
    kernel = Name((theirs + style.kernel,), style.head if ours == "head" else style.squeeze)
    return {f"{ours}/kernel": kernel, f"{ours}/bias": Name((theirs + style.bias,))}


def _rows(style, ends, first, others):
    """Returns {our weight path: `Name` in the file} for all layers.

    `ends`, `first` and `others` are strings of names in the file. `ends` has the names of the layers in `_ENDS`.
    `first` has the prefix of a block in the first stage, and then the names of the layers in `_BLOCK`. `others` has the
    same for later stages.
    """
    rows = {}
    for ours, theirs in zip(_ENDS, ends.split(), strict=True):
        rows |= _layer(style, ours, theirs)
    for stage, (prefix, *layers) in (("1", first.split()), ("{stage}", others.split())):
        # The same name, such as bn1, means different layers in the first stage and in later stages, because the blocks
        # of the first stage do not begin with the expansion.
        for ours, theirs in zip(_BLOCK, layers, strict=False):
            rows |= _layer(style, f"stage_{stage}_block_{{unit:02d}}/{ours}", prefix + theirs)
    return rows


_TORCH = _Style(
    ".weight",
    ".weight",
    ".bias",
    (".weight", ".bias", ".running_mean", ".running_var"),
    codecs.TORCH_CONV,
    codecs.TORCH_DEPTHWISE,
    codecs.Transposed(ones=2),
    codecs.Transposed(),
)
TIMM_EFFICIENTNET = Source(
    "timm_efficientnet",
    _rows(
        _TORCH,
        "conv_stem bn1 conv_head bn2 classifier",
        "blocks.0.{unit0}. conv_dw bn1 conv_pw bn2 se.conv_reduce se.conv_expand",
        "blocks.{stage0}.{unit0}. conv_dw bn2 conv_pwl bn3 se.conv_reduce se.conv_expand conv_pw bn1",
    ),
    ignored=r".*\.num_batches_tracked$",
    family="efficientnet",
)


class _Official(Source):
    """Assigns blocks to stages by the shapes of their weights. The official code numbers blocks across all stages."""

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
    """Yields (number of a block, new name of the block). The new name contains the stage and the index in this stage.

    A new stage begins at a block that differs from the previous block in kernel size, output width, or the presence of
    an expansion.
    """
    numbers = {int(match[1]) for match in (re.match(r"blocks_(\d+)/", name) for name in shapes) if match}

    def kind(number):
        block = f"blocks_{number}/"
        expands = f"{block}conv2d_1/kernel" in shapes
        project = shapes.get(f"{block}conv2d_1/kernel" if expands else f"{block}conv2d/kernel", ())
        return expands, shapes.get(f"{block}depthwise_conv2d/depthwise_kernel", ())[:2], project[3:]

    for stage, (_, group) in enumerate(itertools.groupby(sorted(numbers), kind)):
        for place, number in enumerate(group):
            yield number, f"blocks_{stage}_{place}"


_TENSORFLOW = _Style("/kernel", "/depthwise_kernel", "/bias", tuple(f"/{name}" for name in _NORM))
_BN, _SE = "tpu_batch_normalization", "se/conv2d se/conv2d_1"
EFFICIENTNET = _Official(
    "efficientnet",
    _rows(
        _TENSORFLOW,
        f"stem/conv2d stem/{_BN} head/conv2d head/{_BN} head/dense",
        f"blocks_0_{{unit0}}/ depthwise_conv2d {_BN} conv2d {_BN}_1 {_SE}",
        f"blocks_{{stage0}}_{{unit0}}/ depthwise_conv2d {_BN}_1 conv2d_1 {_BN}_2 {_SE} conv2d {_BN}",
    ),
    # Remove the variable scope, such as "efficientnet-b0/".
    aliases=[(r"^efficientnet-[^/]+/", "")],
    family="efficientnet",
)

_NUMBERED = _Style("/0", "/0", "/1", ("/0", "/1", "/2", "/3"))
_LAYERS = "dwconv bn project_conv project_bn se_reduce se_expand"
KERAS_APPLICATIONS = Source(
    "keras_applications",
    _rows(
        _NUMBERED,
        "stem_conv stem_bn top_conv top_bn predictions",
        f"block1_{{unit}}_ {_LAYERS}",
        f"block{{stage}}_{{unit}}_ {_LAYERS} expand_conv expand_bn",
    ),
    mark="block1a_",
    # Keras names the blocks of a stage "a", "b", ..., and numbers normalization layers across all models of a session.
    aliases=[
        (r"^block(\d)([a-z])_", lambda match: f"block{match[1]}_{ord(match[2]) - ord('a') + 1}_"),
        (r"^normalization_\d+/", "normalization/"),
    ],
    # Ignore the normalization constants, which are part of the preprocessing in this package.
    ignored=r"normalization(_\d+)?/",
    family="efficientnet",
)
