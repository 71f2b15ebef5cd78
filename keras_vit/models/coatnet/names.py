"""The names of weights in timm's state dicts of CoAtNets. In timm, the class of a CoAtNet is `MaxxVit`."""

from keras_vit.weights import codecs
from keras_vit.weights.source import Name, Source, dense, norm

_OURS, _THEIRS = "stage_{stage}_block_{unit:02d}/", "stages.{stage0}.blocks.{unit0}."
# timm's dense layers are 1 x 1 convolutions.
_CONV_1X1 = codecs.Transposed(ones=2)


def _conv(ours, theirs):
    return {f"{ours}/kernel": Name((f"{theirs}.weight",), codecs.TORCH_CONV)}


def _batch_norm(ours, theirs):
    rows = {"moving_mean": "running_mean", "moving_variance": "running_var"}
    return norm(ours, theirs) | {f"{ours}/{a}": Name((f"{theirs}.{b}",)) for a, b in rows.items()}


def _se(theirs):
    return {
        **dense(f"{_OURS}se/reduce", f"{_THEIRS}{theirs}.fc1", _CONV_1X1),
        **dense(f"{_OURS}se/expand", f"{_THEIRS}{theirs}.fc2", _CONV_1X1),
    }


def _mbconv():
    return {
        **dense(f"{_OURS}shortcut", f"{_THEIRS}shortcut.expand", _CONV_1X1),
        **_batch_norm(f"{_OURS}pre_norm", f"{_THEIRS}pre_norm"),
        **dense(f"{_OURS}expand", f"{_THEIRS}conv1_1x1", _CONV_1X1),
        **_batch_norm(f"{_OURS}expand_norm", f"{_THEIRS}norm1"),
        f"{_OURS}depthwise/kernel": Name((f"{_THEIRS}conv2_kxk.weight",), codecs.TORCH_DEPTHWISE),
        **_batch_norm(f"{_OURS}depthwise_norm", f"{_THEIRS}norm2"),
        **_se("se"),
        **dense(f"{_OURS}project", f"{_THEIRS}conv3_1x1", _CONV_1X1),
    }


def _transformer():
    biases = f"{_THEIRS}attn.rel_pos."
    rows = {f"{_OURS}attention/position_table": Name((f"{biases}relative_position_bias_table",))}
    for i in (1, 2):
        rows[f"{_OURS}attention/position_kernel_{i}"] = Name((f"{biases}mlp.fc{i}.weight",), codecs.Transposed())
        rows[f"{_OURS}attention/position_bias_{i}"] = Name((f"{biases}mlp.fc{i}.bias",))
        rows[f"{_OURS}layer_scale_{i}/gamma"] = Name((f"{_THEIRS}ls{i}.gamma",))
        rows |= dense(f"{_OURS}mlp/dense_{i}", f"{_THEIRS}mlp.fc{i}", _CONV_1X1)
    # In the first block of a stage, timm's module `norm1` contains the norm and a pooling.
    first = _OURS.replace("{unit:02d}", "01"), _THEIRS.replace("{unit0}", "0")
    return {
        **_batch_norm(f"{first[0]}norm_1", f"{first[1]}norm1.norm"),
        **_batch_norm(f"{_OURS}norm_1", f"{_THEIRS}norm1"),
        **dense(f"{_OURS}attention/qkv", f"{_THEIRS}attn.qkv", _CONV_1X1),
        **dense(f"{_OURS}attention/out", f"{_THEIRS}attn.proj", _CONV_1X1),
        **_batch_norm(f"{_OURS}norm_2", f"{_THEIRS}norm2"),
        **rows,
    }


TIMM_COATNET = Source(
    "timm_coatnet",
    {
        **_conv("stem_conv", "stem.conv1"),
        **_batch_norm("stem_norm", "stem.norm1"),
        **_conv("stem_conv_2", "stem.conv2"),
        **_mbconv(),
        **_transformer(),
        **_batch_norm("norm", "norm"),
        **dense("pre_logits", "head.pre_logits.fc"),
        **dense("head", "head.fc"),
    },
    activation=None,
    layer_norm_epsilon=None,
    position_interpolation="geometric",
    ignored=r".*\.num_batches_tracked$",
    refused=(
        (r".*\.attn_(block|grid)\.", "attention in windows (MaxViT)"),
        (r"stages\.\d+\.blocks\.\d+\.conv_dw\.", "ConvNeXt blocks"),
        (r"stem\.conv\d\.bias$", "convolutions of the stem with a bias"),
    ),
    spellings={"se_before_norm": _se("se_early"), "norm_after_pooling": norm("norm", "head.norm")},
    family="coatnet",
)
