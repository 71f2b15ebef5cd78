"""The config of token-based Visual Transformers, and the table of their sizes."""

import dataclasses
from typing import ClassVar

from keras_vit import arguments
from keras_vit.config import MOST_LAYERS, ModelConfig, checked, stage_sizes

# The ResNet sizes are from Deep Residual Learning (arXiv 1512.03385), table 1. VT modules replace the last stage, as in
# Visual Transformers (arXiv 2006.03677), appendix A.
VT_RESNETS = {
    "R18": {"stages": (2, 2, 2), "bottleneck": False, "num_modules": 2},
    "R34": {"stages": (3, 4, 6), "bottleneck": False, "num_modules": 3},
    "R50": {"stages": (3, 4, 6), "bottleneck": True, "num_modules": 3},
    "R101": {"stages": (3, 4, 23), "bottleneck": True, "num_modules": 3},
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class VTResNetConfig(ModelConfig):
    """The config of a token-based Visual Transformer, as built by `keras_vit.VTResNet`.

    Args:
        stages: Ints, the number of residual units in each convolutional stage.
        bottleneck: Bool, whether the units are bottlenecks.
        num_modules: Int, the number of VT (Visual Transformer) modules.
        width: Int, the number of channels inside a unit of the first stage.
        num_tokens: Int, the number of visual tokens.
        token_dim: Int, the width of a token. It is 1024 in the paper's models. In the paper's equations, a token is as
            wide as the feature map.
        key_dim: Int, the width of the keys and queries in the transformers and projectors.
        **others: As in `keras_vit.ViTConfig`.

    Raises:
        ValueError: If a value is out of range.

    Example:

    >>> config = keras_vit.VTResNetConfig.from_variant("R18")
    >>> config.block_names[-3:], config.token_dim
    (['stage_3_unit_02', 'vt_1', 'vt_2'], 1024)
    """

    family: ClassVar[str] = "vt_resnet"

    stages: tuple[int, ...] = checked(stage_sizes)
    bottleneck: bool = checked(arguments.boolean)
    num_modules: int = checked(arguments.positive_int, MOST_LAYERS)
    width: int = checked(arguments.positive_int, arguments.LARGEST, default=64)
    num_tokens: int = checked(arguments.positive_int, arguments.LARGEST, default=16)
    token_dim: int = checked(arguments.positive_int, arguments.LARGEST, default=1024)
    key_dim: int = checked(arguments.positive_int, arguments.LARGEST, default=512)

    @staticmethod
    def variant_sizes(variant):
        """Returns the config fields that a variant determines, as a dict."""
        if not isinstance(variant, str) or variant not in VT_RESNETS:
            raise arguments.invalid("variant", f"one of {', '.join(map(repr, VT_RESNETS))}", variant)
        return VT_RESNETS[variant]

    @property
    def block_names(self):
        """The names of the residual units and VT modules, in order."""
        units = [f"stage_{s}_unit_{u:02d}" for s, count in enumerate(self.stages, 1) for u in range(1, count + 1)]
        return units + [f"vt_{i}" for i in range(1, self.num_modules + 1)]
