"""The names of BiT's weights in Google's .npz files, in timm and in transformers."""

from keras_vit.images.constants import OFFICIAL_PREPROCESSING
from keras_vit.weights import codecs
from keras_vit.weights.source import UNIT, Name, Source, dense, norm, resnet

_SETTINGS = {"activation": None, "layer_norm_epsilon": None, "resnet_epsilons": "timm", "pool_padding": "zeros"}
_SETTINGS["family"] = "bit"

TIMM_BIT = Source(
    "timm_bit",
    {
        **resnet("stem.conv", "stages.{stage0}.blocks.{unit0}.", (1, 2, 3)),
        **norm("norm", "norm"),
        # In timm, the head is a 1 x 1 convolution.
        **dense("head", "head.fc", codecs.Transposed(ones=2)),
    },
    **_SETTINGS,
    mark=r"stages\.0\.blocks\.0\.conv1\.weight$",
    config={
        **{"global_pool": "avg", "stem_type": "fixed", "preact": True, "avg_down": False, "basic": False},
        **{"bottle_ratio": 0.25, "output_stride": 32, "act_layer": "relu", "norm_layer": None, "conv_layer": None},
    },
    refused=[
        (r"stem\.(?!conv\.)", "another stem than BiT's"),
        (r".*\.running_mean$", "batch normalization"),
        (r"stages\.[4-9]", "more than four stages"),
    ],
)

HUGGINGFACE_BIT = Source(
    "huggingface_bit",
    {
        **resnet("embedder.convolution", "encoder.stages.{stage0}.layers.{unit0}.", (1, 2, 3)),
        **norm("norm", "norm"),
        **dense("head", "classifier.1"),
    },
    **_SETTINGS,
    prefixes=("bit.",),
    model_types=("bit",),
    config={
        **{"layer_type": "preactivation", "global_padding": None, "embedding_dynamic_padding": False},
        **{"num_groups": 32, "output_stride": 32, "hidden_act": "relu", "width_factor": 1},
    },
    refused=[
        (r"embedder\.norm\.", "layers of the type 'bottleneck'"),
        (r"encoder\.stages\.[4-9]", "more than four stages"),
    ],
)


def _bit():
    unit = "block{stage}/unit{unit:02d}/"
    rows = {
        "root_conv/kernel": Name(("root_block/standardized_conv2d/kernel",)),
        f"{UNIT}conv_proj/kernel": Name((f"{unit}a/proj/standardized_conv2d/kernel",)),
        "norm/gamma": Name(("group_norm/gamma",)),
        "norm/beta": Name(("group_norm/beta",)),
        # In Google's files, the head is a 1 x 1 convolution.
        "head/kernel": Name(("head/conv2d/kernel",), codecs.Squeeze(before=2)),
        "head/bias": Name(("head/conv2d/bias",)),
    }
    for i, part in enumerate("abc", start=1):
        rows[f"{UNIT}norm_{i}/gamma"] = Name((f"{unit}{part}/group_norm/gamma",))
        rows[f"{UNIT}norm_{i}/beta"] = Name((f"{unit}{part}/group_norm/beta",))
        rows[f"{UNIT}conv_{i}/kernel"] = Name((f"{unit}{part}/standardized_conv2d/kernel",))
    return rows


BIT = Source(
    "bit",
    _bit(),
    family="bit",
    preprocessing=OFFICIAL_PREPROCESSING,
    # These settings do not apply to a ResNet.
    activation=None,
    layer_norm_epsilon=None,
    # TensorFlow numbers layers across the whole model, as in standardized_conv2d_7.
    aliases=[(r"(?<=/)(standardized_conv2d|group_norm|conv2d)_\d+(?=/|$)", r"\1")],
    prefixes=("resnet/",),
    mark="(resnet/)?root_block/",
)


def recognise(keys, container, facts):
    """Returns `TIMM_BIT` for keys of a timm ResNet with blocks like BiT's, or None. It does not check the stem."""
    return TIMM_BIT if "stages.0.blocks.0.conv1.weight" in keys else None
