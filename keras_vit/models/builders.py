"""The named builders: one row each. A new size, or a family that needs no new layer, is a row here and nothing else.

Sizes and patches are in `keras_vit.variants`. What a row sets beside its variant holds where no weights are given that
bring their own.
"""

import inspect as _inspect

from keras_vit.models.bit import BiT as _BiT
from keras_vit.models.vit import ViT as _ViT
from keras_vit.preprocessing import Preprocessing as _Preprocessing
from keras_vit.weights.names.source import IMAGENET_PREPROCESSING as _IMAGENET
from keras_vit.weights.zoo import local_path as _local_path

# What weights bring with them, and so overrules a row's own.
_OF_THE_WEIGHTS = ("activation", "preprocessing")


def _row(name, builder, variant, **defaults):
    """Makes the builder of one variant: `builder` with the variant set, with a signature and a docstring of its own.

    Args:
        name: String, the name of the new one, which it is bound to.
        builder: A builder whose first argument is the variant.
        variant: String, the variant that it builds.
        **defaults: The builder's arguments that have other defaults in this variant.

    Returns:
        A function of the builder's other arguments.
    """

    def build(**kwargs):
        own = defaults
        if kwargs.get("weights") is not None:
            kwargs["weights"] = _local_path(kwargs["weights"], name)
            # Keras' own files bring arrays alone.
            if not str(kwargs["weights"]).endswith(".h5"):
                own = {key: value for key, value in defaults.items() if key not in _OF_THE_WEIGHTS}
        return builder(variant, **{**own, **kwargs})

    signature = _inspect.signature(builder)
    build.__signature__ = signature.replace(
        parameters=[
            parameter.replace(default=defaults[key]) if key in defaults else parameter
            for key, parameter in signature.parameters.items()
            if key != "variant"
        ]
    )
    build.__name__ = build.__qualname__ = name
    build.__module__ = __name__
    settings = "".join(f", {key}={value!r}" for key, value in defaults.items())
    build.__doc__ = (
        f'Builds a {builder.__name__}-{variant}: `keras_vit.{builder.__name__}("{variant}"{settings}, ...)`, which '
        f"explains the arguments.\n\nExample:\n\n>>> model = keras_vit.{name}(num_classes=10)"
    )
    return build


# ViT at every size; their sources are beside them in `keras_vit.variants`.
ViTTi16 = _row("ViTTi16", _ViT, "Ti/16")
ViTS16 = _row("ViTS16", _ViT, "S/16")
ViTS32 = _row("ViTS32", _ViT, "S/32")
ViTB8 = _row("ViTB8", _ViT, "B/8")
ViTB16 = _row("ViTB16", _ViT, "B/16")
ViTB32 = _row("ViTB32", _ViT, "B/32")
ViTL16 = _row("ViTL16", _ViT, "L/16")
ViTL32 = _row("ViTL32", _ViT, "L/32")
ViTH14 = _row("ViTH14", _ViT, "H/14")
ViTg14 = _row("ViTg14", _ViT, "g/14")
ViTG14 = _row("ViTG14", _ViT, "G/14")
ViTSO400M14 = _row("ViTSO400M14", _ViT, "SO400M/14")

# The hybrids: a ResNet below, whose feature map the patches are cut out of. arXiv 2010.11929 and 2106.10270.
RViTTi16 = _row("RViTTi16", _ViT, "R+Ti/16")
R26ViTS32 = _row("R26ViTS32", _ViT, "R26+S/32")
R26ViTB32 = _row("R26ViTB32", _ViT, "R26+B/32")
R50ViTB16 = _row("R50ViTB16", _ViT, "R50+B/16")
R50ViTB32 = _row("R50ViTB32", _ViT, "R50+B/32")
R50ViTL32 = _row("R50ViTL32", _ViT, "R50+L/32")

# DeiT, trained on ImageNet alone with exact GELU: arXiv 2012.12877, table 1.
_DEIT = {"activation": "gelu", "preprocessing": _Preprocessing(**_IMAGENET)}
_DISTILLED = {"distillation_token": True, **_DEIT}
DeiTTi16 = _row("DeiTTi16", _ViT, "Ti/16", **_DEIT)
DeiTS16 = _row("DeiTS16", _ViT, "S/16", **_DEIT)
DeiTB16 = _row("DeiTB16", _ViT, "B/16", **_DEIT)
DeiTTi16Distilled = _row("DeiTTi16Distilled", _ViT, "Ti/16", **_DISTILLED)
DeiTS16Distilled = _row("DeiTS16Distilled", _ViT, "S/16", **_DISTILLED)
DeiTB16Distilled = _row("DeiTB16Distilled", _ViT, "B/16", **_DISTILLED)

# DeiT III, a scale on each branch, and no position for the class token: arXiv 2204.07118, section 3.
_WHOLE = {
    "activation": "gelu",
    "preprocessing": _Preprocessing(**{**_IMAGENET, "crop_fraction": 1.0, "resize_mode": "crop"}),
}
_DEIT_3 = {"layer_scale_init": 1e-4, "class_token_position": False, **_WHOLE}
DeiT3S16 = _row("DeiT3S16", _ViT, "S/16", **_DEIT_3)
DeiT3B16 = _row("DeiT3B16", _ViT, "B/16", **_DEIT_3)
DeiT3L16 = _row("DeiT3L16", _ViT, "L/16", **_DEIT_3)
DeiT3H14 = _row("DeiT3H14", _ViT, "H/14", **_DEIT_3)

# DINOv2's backbones: arXiv 2304.07193, appendix B. With registers (arXiv 2309.16588): num_registers=4.
_DINOV2 = {"image_size": 518, "num_classes": 0, "layer_scale_init": 1e-5, **_DEIT}
DINOv2S14 = _row("DINOv2S14", _ViT, "S/14", **_DINOV2)
DINOv2B14 = _row("DINOv2B14", _ViT, "B/14", **_DINOV2)
DINOv2L14 = _row("DINOv2L14", _ViT, "L/14", **_DINOV2)

# The image towers of SigLIP, pooled by attention: arXiv 2303.15343, section 4.
_SIGLIP = {"pooling": "map", "num_classes": 0}
SigLIPB16 = _row("SigLIPB16", _ViT, "B/16", **_SIGLIP)
SigLIPL16 = _row("SigLIPL16", _ViT, "L/16", **_SIGLIP)
SigLIPSO400M14 = _row("SigLIPSO400M14", _ViT, "SO400M/14", **_SIGLIP)

# Big Transfer's ResNets, the baselines of the ViT paper: arXiv 1912.11370.
BiTR50x1 = _row("BiTR50x1", _BiT, "R50x1")
BiTR50x2 = _row("BiTR50x2", _BiT, "R50x2")
BiTR50x3 = _row("BiTR50x3", _BiT, "R50x3")
BiTR101x1 = _row("BiTR101x1", _BiT, "R101x1")
BiTR101x3 = _row("BiTR101x3", _BiT, "R101x3")
BiTR152x1 = _row("BiTR152x1", _BiT, "R152x1")
BiTR152x2 = _row("BiTR152x2", _BiT, "R152x2")
BiTR152x4 = _row("BiTR152x4", _BiT, "R152x4")
BiTR200x3 = _row("BiTR200x3", _BiT, "R200x3")

__all__ = [_name for _name in list(globals()) if not _name.startswith("_")]
