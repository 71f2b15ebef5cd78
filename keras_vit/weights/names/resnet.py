"""ResNets of PyTorch code bases: BiT of timm and of transformers."""

import dataclasses

from keras_vit.weights import codecs
from keras_vit.weights.names.source import Name, Source
from keras_vit.weights.names.timm import TIMM, dense, norm, resnet

# How timm names the stem of a hybrid without stages.
TIMM_STEM = dataclasses.replace(
    TIMM,
    names={
        **TIMM.names,
        "root_conv/kernel": Name(("patch_embed.backbone.conv.weight",), codecs.TORCH_CONV),
        **norm("root_norm", "patch_embed.backbone.norm"),
    },
)

_SETTINGS = {"activation": None, "layer_norm_epsilon": None, "resnet_epsilons": "timm", "pool_padding": "zeros"}

TIMM_BIT = Source(
    "timm_bit",
    {
        **resnet("stem.conv", "stages.{stage0}.blocks.{unit0}.", (1, 2, 3)),
        **norm("norm", "norm"),
        # The head is a 1 x 1 convolution.
        **dense("head", "head.fc", codecs.Transposed(ones=2)),
    },
    **_SETTINGS,
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
    config={
        **{"layer_type": "preactivation", "global_padding": None, "embedding_dynamic_padding": False},
        **{"num_groups": 32, "output_stride": 32, "hidden_act": "relu", "width_factor": 1},
    },
    refused=[
        (r"embedder\.norm\.", "layers of the type 'bottleneck'"),
        (r"encoder\.stages\.[4-9]", "more than four stages"),
    ],
)
