"""BiT ResNets: .npz files with the names of the official TensorFlow code."""

from keras_vit.weights import codecs
from keras_vit.weights.names.official import UNIT
from keras_vit.weights.names.source import Name, Source

_UNIT = "block{stage}/unit{unit:02d}/"


def _rows():
    rows = {"root_conv/kernel": Name(("root_block/standardized_conv2d/kernel",))}
    for i, part in enumerate("abc", start=1):
        rows[f"{UNIT}norm_{i}/gamma"] = Name((f"{_UNIT}{part}/group_norm/gamma",))
        rows[f"{UNIT}norm_{i}/beta"] = Name((f"{_UNIT}{part}/group_norm/beta",))
        rows[f"{UNIT}conv_{i}/kernel"] = Name((f"{_UNIT}{part}/standardized_conv2d/kernel",))
    rows[f"{UNIT}conv_proj/kernel"] = Name((f"{_UNIT}a/proj/standardized_conv2d/kernel",))
    rows["norm/gamma"] = Name(("group_norm/gamma",))
    rows["norm/beta"] = Name(("group_norm/beta",))
    # The head is a convolution of 1 x 1.
    rows["head/kernel"] = Name(("head/conv2d/kernel",), codecs.Ones(before=2))
    rows["head/bias"] = Name(("head/conv2d/bias",))
    return rows


BIT = Source(
    "bit",
    _rows(),
    # Neither appears in a ResNet.
    activation=None,
    layer_norm_epsilon=None,
    # The TensorFlow graph numbers the convolutions of the whole model: standardized_conv2d_7 is one too.
    aliases=[(r"(?<=/)(standardized_conv2d|group_norm|conv2d)_\d+(?=/|$)", r"\1")],
    prefixes=("resnet/",),
)
