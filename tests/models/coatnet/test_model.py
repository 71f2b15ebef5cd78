import keras
import numpy as np
import pytest
from keras import ops

import keras_vit
from keras_vit.models.coatnet.config import VARIANTS, decode_coatnet
from keras_vit.training import freeze
from keras_vit.training.optimizers import layer_multipliers
from tests.contract import randomize
from tests.models.small import images

# Trainable weights at 224 pixels. The counts under timm's names are those of timm's modules.
PARAMETERS = {"coatnet_0": 25_036_820, "coatnet_1": 42_225_776, "coatnet_2": 74_684_744, "coatnet_3": 166_966_264}
PARAMETERS |= {"coatnet_4": 275_425_288, "coatnet_5": 687_472_008, "coatnet_nano_cc": 13_757_328}
PARAMETERS |= {"coatnet_pico_rw": 10_851_364, "coatnet_nano_rw": 15_141_244, "coatnet_0_rw": 27_435_562}
PARAMETERS |= {"coatnet_1_rw": 41_721_502, "coatnet_2_rw": 73_868_400, "coatnet_3_rw": 165_173_428}
PARAMETERS |= {"coatnet_bn_0_rw": 27_435_562, "coatnet_rmlp_nano_rw": 15_145_116, "coatnet_rmlp_0_rw": 27_446_074}
PARAMETERS |= {"coatnet_rmlp_1_rw": 41_691_982, "coatnet_rmlp_1_rw2": 41_724_622, "coatnet_rmlp_2_rw": 73_881_264}
PARAMETERS |= {"coatnet_rmlp_3_rw": 165_152_788, "test_coatnet": 577_584}
PARAMETERS |= {str(i): PARAMETERS[f"coatnet_{i}"] for i in range(5)} | {"5": 687_052_952}
# Millions of weights and billions of operations at 224 pixels: table 4 of the paper, for CoAtNet-5 its table 5.
PAPER = {"0": (25, 4.2), "1": (42, 8.4), "2": (75, 15.7), "3": (167, 34.7), "4": (275, None), "5": (688, None)}
TINY = {"image_size": (64, 40), "depths": (1, 1, 2, 1), "widths": (8, 8, 16, 16), "stem_widths": (4, 8), "head_dim": 8}
TINY |= {"num_classes": 5, "head_init": "glorot_uniform"}
# One variant of each kind runs in normal tests.
QUICK = ("0", "coatnet_pico_rw", "coatnet_bn_0_rw", "coatnet_rmlp_nano_rw", "coatnet_nano_cc", "test_coatnet")


def build(variant="0", **changes):
    """Builds a CoAtNet of the smallest sizes."""
    changes = {**TINY, **changes}
    if variant in PAPER:
        changes = {"representation_size": 6, **changes}
    return keras_vit.CoAtNet(variant, **changes)


@pytest.mark.parametrize(
    "variant", [pytest.param(name, marks=[pytest.mark.long] * (name not in QUICK)) for name in VARIANTS]
)
def test_coatnet_parameters_and_multiply_adds(variant):
    with keras.StatelessScope(initialize_variables=False):
        model = keras_vit.CoAtNet(variant)
        found = sum(int(np.prod(weight.shape)) for weight in model.trainable_weights)
        assert found == PARAMETERS[variant]
        if variant in PAPER:
            millions, billions = PAPER[variant]
            assert abs(found / 1e6 - millions) < 1
            costs = keras_vit.profile(model)
            assert not costs.not_counted
            if billions is not None:
                assert costs.multiply_adds / 1e9 == pytest.approx(billions, rel=0.025)
    keras.utils.clear_session(free_memory=False)


def test_conv_depths_mix_block_kinds_in_a_stage():
    model = build("nano_cc", depths=(1, 1, 2, 2), conv_depths=(1, 1, 1, 1))
    kinds = [type(model.get_layer(name)).__name__ for name in model.config.block_names]
    assert kinds == ["MBConv"] * 3 + ["RelativeTransformerBlock", "MBConv", "RelativeTransformerBlock"]


def test_coatnet_variant_names_are_decoded():
    for name in ("coatnet_0_rw", "coatnet_0_rw_224", "0_rw", "0_rw_224"):
        assert decode_coatnet(name) == "coatnet_0_rw"
    assert decode_coatnet("0") == "0" and decode_coatnet("coatnet_0_224") == "coatnet_0"
    names = ("rmlp_2_rw_384", "rmlp_2_rw")
    sizes = [build(name, image_size=None, depths=(1, 1, 1, 1)).config.image_size for name in names]
    assert sizes == [(384, 384), (224, 224)]


@pytest.mark.parametrize("interpolation", ["bilinear", "geometric"])
def test_tables_resize_equally_at_run_time_and_loading(interpolation, tmp_path):
    model = build("0_rw", image_size=64, position_interpolation=interpolation)
    randomize(model, np.random.default_rng(0))
    keras_vit.save_weights(model, tmp_path / "model.safetensors", "timm")
    larger = keras_vit.from_pretrained(tmp_path / "model.safetensors", image_size=(96, 128))
    any_size = keras_vit.from_pretrained(tmp_path / "model.safetensors", image_size=(None, None))
    assert any_size.config.table_image_size == (64, 64) and larger.config.table_image_size is None
    x = images(1, 96, 128, 3)
    expected = larger.predict_on_batch(x)
    np.testing.assert_allclose(any_size.predict_on_batch(x), expected, rtol=1e-3, atol=1e-4)
    other = {"bilinear": "geometric", "geometric": "bilinear"}[interpolation]
    path = tmp_path / "model.safetensors"
    changed = keras_vit.from_pretrained(path, image_size=(96, 128), position_interpolation=other)
    assert np.abs(changed.predict_on_batch(x) - expected).max() > 1e-5


def test_coatnet_features_are_the_stages():
    model = build()
    randomize(model, np.random.default_rng(0))
    x = images(2, *model.input_shape[1:])
    maps = [ops.convert_to_numpy(y) for y in keras_vit.features(model)(x)]
    assert [y.shape[1:] for y in maps] == [(16, 10, 8), (8, 5, 8), (4, 3, 16), (2, 2, 16)]
    last = ops.convert_to_numpy(keras_vit.features(model, blocks=(-1,))(x))
    np.testing.assert_array_equal(last, maps[-1])


def test_coatnet_freezing_and_layer_decay():
    frozen = build(depths=(1, 1, 1, 1))
    freeze(frozen, blocks=2)
    assert [frozen.get_layer(name).trainable for name in frozen.config.block_names] == [False, False, True, True]
    factors = layer_multipliers(frozen, 0.5)
    names = ("stem_conv", "stage_1_block_01", "stage_4_block_01", "norm", "head")
    assert [factors[name] for name in names] == [1 / 32, 1 / 16, 1 / 2, 1, 1]
