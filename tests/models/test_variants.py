import json
import re

import pytest

import keras_vit
from keras_vit.models.variants import SIZES, decode_variant

TIMM_NAMES = {
    "ViTTi16": "vit_tiny_patch16_224",
    "ViTS16": "vit_small_patch16_224",
    "ViTS32": "vit_small_patch32_224",
    "ViTB8": "vit_base_patch8_224",
    "ViTB16": "vit_base_patch16_224",
    "ViTB32": "vit_base_patch32_224",
    "ViTL16": "vit_large_patch16_224",
    "ViTL32": "vit_large_patch32_224",
    "ViTH14": "vit_huge_patch14_224",
    "ViTg14": "vit_giant_patch14_224",
    "ViTG14": "vit_gigantic_patch14_224",
}
PARAMETERS = {
    "ViTTi16": 5_717_416,
    "ViTS16": 22_050_664,
    "ViTS32": 22_878_952,
    "ViTB8": 86_576_872,
    "ViTB16": 86_567_656,
    "ViTB32": 88_224_232,
    "ViTL16": 304_326_632,
    "ViTL32": 306_535_400,
    "ViTH14": 632_045_800,
    "ViTg14": 1_012_611_432,
    "ViTG14": 1_844_440_680,
}


def variant_of(builder):
    return re.search(r'keras_vit.ViT\("([^"]+)", \.\.\.\)', builder.__doc__)[1]


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameter_count(name):
    # Blocks are all alike, and the largest model would fill 7 GB: one and two blocks tell the rest.
    builder = getattr(keras_vit, name)
    one, two = (builder(num_layers=n).count_params() for n in (1, 2))
    size, _ = decode_variant(variant_of(builder))
    assert one + (size.num_layers - 1) * (two - one) == PARAMETERS[name]


def test_a_whole_model_counts_the_same():
    assert keras_vit.ViTTi16().count_params() == PARAMETERS["ViTTi16"]


def test_parameter_counts_are_those_of_timm(shared):
    timm = json.loads((shared / "golden" / "param_counts_timm.json").read_text())
    assert {name: timm[TIMM_NAMES[name]] for name in PARAMETERS} == PARAMETERS


def test_the_tutorials_tiny_model():
    model = keras_vit.ViT(
        "B/16", image_size=32, patch_size=4, hidden_dim=512, num_layers=4, num_heads=6, mlp_dim=1024, num_classes=10
    )
    assert model.count_params() == 8_459_762
    assert model.get_layer("block_00").attention.key_dim == 85


def test_a_variant_is_parsed():
    assert decode_variant("g/14") == (SIZES["g"], 14)
    assert SIZES["g"] == (1408, 40, 6144, 16) and SIZES["G"] == (1664, 48, 8192, 16)


@pytest.mark.parametrize("variant", ["B", "B16", "X/16", "B/0", "B/16.0", "b/16", "", None, 16])
def test_a_variant_that_is_none_is_refused(variant):
    with pytest.raises(ValueError, match=r"`variant`.*Received"):
        decode_variant(variant)


def test_named_builders_explain_themselves():
    assert keras_vit.ViTB16.__name__ == "ViTB16" and "B/16" in keras_vit.ViTB16.__doc__
    with pytest.raises(TypeError, match="variant"):
        keras_vit.ViTB16(variant="L/16")
