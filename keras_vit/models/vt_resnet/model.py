"""Token-based Visual Transformers: ResNets in which transformers on a few visual tokens replace the last stage."""

from typing import Any

import keras

from keras_vit.layers.batch_norm import BatchNorm
from keras_vit.layers.downsampling import conv
from keras_vit.layers.padding import ZeroPadding2D
from keras_vit.layers.symmetric_max_pooling import SymmetricMaxPooling2D
from keras_vit.models.family import Family, FamilyModel, build, dense_head, takes, usual_arguments
from keras_vit.models.vt_resnet.config import VTResNetConfig
from keras_vit.models.vt_resnet.layers import VTModule
from keras_vit.models.vt_resnet.resnet_block import NORM, ResNetBlock


def connect(images, config, *, head_init="zeros", dropout_rate=0.0, drop_path_rate=0.0):
    """Adds the layers of a `VTResNetConfig` to a functional graph; returns the outputs."""
    x = ZeroPadding2D(3, name="root_padding")(images)
    x = conv(keras.layers.Conv2D, 7, 2, "symmetric", filters=config.width, name="root_conv")(x)
    x = BatchNorm(name="root_norm", **NORM)(x)
    x = keras.layers.Activation("relu", name="root_relu")(x)
    x = SymmetricMaxPooling2D(3, 2, name="root_pool")(x)
    names = iter(config.block_names)
    last = max(len(config.block_names) - 1, 1)
    rates = (drop_path_rate * i / last for i in range(last + 1))
    for s, num_units in enumerate(config.stages):
        for u in range(num_units):
            options = {"strides": 2 if s and not u else 1, "bottleneck": config.bottleneck}
            x = ResNetBlock(config.width * 2**s, drop_path_rate=next(rates), name=next(names), **options)(x)
    tokens = None
    for i, name in enumerate(names, start=1):
        sizes = config.num_tokens, config.token_dim, config.key_dim
        options = {"recurrent": i > 1, "project": i < config.num_modules, "drop_path_rate": next(rates)}
        y = VTModule(*sizes, name=name, **options)(x, *(() if tokens is None else (tokens,)))
        x, tokens = y if options["project"] else (None, y)
    x = keras.layers.GlobalAveragePooling1D(data_format="channels_last", dtype="float32", name="pooling")(tokens)
    if dropout_rate:
        x = keras.layers.Dropout(dropout_rate, dtype="float32", name="dropout")(x)
    return dense_head(x, config, head_init)


VT_RESNET = Family(
    config=VTResNetConfig, connect=connect, builder="VTResNet", above=("pooling", "dropout"), refused_h5="vt_1/"
)


@takes(usual_arguments, VT_RESNET)
def VTResNet(variant: str, **fields: Any) -> FamilyModel:
    """Builds a token-based Visual Transformer: a ResNet whose last stage is replaced by VT modules on visual tokens.

    The model is a functional `keras_vit.models.FamilyModel` and maps images to logits, like a ViT. Its layers are
    named `normalization`, `root_conv`, `root_norm`, `root_relu`, `root_pool`, `stage_1_unit_01`, ..., `vt_1`, `vt_2`,
    ..., `pooling` and `head`. The VT modules work on the feature map of the last ResNet stage, which is 14 x 14 for
    images of 224 x 224 pixels. The head classifies the mean of the last module's tokens. No weights were published.
    Save a trained model by `model.save` or `model.save_weights`.

    Args:
        variant: "R18", "R34", "R50" or "R101".
        dropout_rate: Float in [0, 1), the dropout before the head. None: 0.
        drop_path_rate: Float in [0, 1), the stochastic-depth rate of the last block. The rates rise linearly from 0 in
            the first block. None: 0.
        **fields: Other fields of `keras_vit.VTResNetConfig`, which override the variant. The remaining arguments are as
            in `keras_vit.ViT`.

    Raises:
        ValueError: If an argument is unknown or out of range.

    Example:

    >>> model = keras_vit.VTResNet("R18", image_size=64, num_classes=10)
    >>> model.output_shape, model.get_layer("vt_2").output.shape
    ((None, 10), (None, 16, 1024))

    Reference: [arXiv 2006.03677](https://arxiv.org/abs/2006.03677), section 3 and appendix A. If two statements of
    the paper contradict each other, the model follows the equations of section 3. Only the 1024 channels of a token are
    from the appendix. The parameters and multiply-adds of R18 and R34 differ from table 2 by at most 2%. R50 differs
    from table 8 by at most 9%, and R101 by at most 5%. Single layers differ more: the transformers of R18 have 6.3
    million parameters (3.1 in table 5), and the projector of R18 has 0.9 million (2.3 in table 7). The model omits four
    parts of the appendix's code: several heads, grouped convolutions, value projections and position encodings. The
    projector of the last module is omitted too, because no layer would read its output. The VT modules have no norms,
    so the tokens grow if the learning rate is high. On handwritten digits, a small model diverged with SGD at a
    learning rate of 0.1, but learned with SGD at 0.01 and with Adam. The model was not measured on ImageNet.
    """
    return build(VT_RESNET, variant, fields)
