import math

import keras
import numpy as np
import pytest
from keras import ops

import keras_vit
from keras_vit.training.optimizers import layer_multipliers
from keras_vit.training.trainable import enable_lora, freeze
from tests.errors import refuses
from tests.models.small import images

# (parameters in timm without the norms' statistics, image size, number of blocks)
VARIANTS = {
    "B0": (5_288_548, 224, 16),
    "B1": (7_794_184, 240, 23),
    "B2": (9_109_994, 260, 23),
    "B3": (12_233_232, 300, 26),
    "B4": (19_341_616, 380, 32),
    "B5": (30_389_784, 456, 39),
    "B6": (43_040_704, 528, 45),
    "B7": (66_347_960, 600, 55),
    "B8": (87_413_142, 672, 61),
    "L2": (480_309_308, 800, 88),
}
# The paper's table 2 gives these multiply-adds. At 475 pixels, L2 has timm's count, which includes norms and means.
BILLIONS = {"B0": 0.39, "L2": 172.11}
WIDTHS = (8, 8, 8, 16, 16, 24, 32, 32, 40)
REPEATS = (1, 2, 1, 1, 2, 1, 1)


def build(**changes):
    small = {"widths": WIDTHS, "repeats": REPEATS, "image_size": (33, 48), "num_classes": 5}
    return keras_vit.EfficientNet("B0", **{**small, "head_init": "glorot_uniform", **changes})


@pytest.mark.parametrize(
    "variant", [pytest.param(name, marks=[pytest.mark.long] * (name[1] in "34567")) for name in VARIANTS]
)
def test_efficientnet_variant_is_the_published_one(variant):
    sizes = {"image_size": 475} if variant == "L2" else {}
    with keras.StatelessScope(initialize_variables=False):
        model = getattr(keras_vit, f"EfficientNet{variant}")(**sizes)
        count = sum(int(np.prod(weight.shape)) for weight in model.trainable_weights)
        if variant in BILLIONS:
            costs = keras_vit.profile(model)
            assert costs.multiply_adds / 1e9 == pytest.approx(BILLIONS[variant], rel=0.02)
    keras.utils.clear_session(free_memory=False)
    config = keras_vit.EfficientNetConfig.from_variant(variant)
    assert (count, config.image_size[0], len(config.block_names)) == VARIANTS[variant]
    assert config.name_from_fields(vars(config)) == f"EfficientNet-{variant}"
    preprocessing, size = model.preprocessing, model.config.image_size[0]
    assert (preprocessing.mean, preprocessing.std) == ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    assert (preprocessing.interpolation, preprocessing.resize_mode) == ("bicubic", "crop")
    # The crop removes 16 pixels on each side.
    assert math.floor(size / preprocessing.crop_fraction) == size + 32


def test_efficientnet_preprocessing_of_any_size_and_advprop():
    assert build(image_size=(None, None)).preprocessing.crop_fraction == 0.875
    advprop = build(preprocessing={"mean": 0.5, "std": 0.5}).preprocessing
    assert (advprop.mean, advprop.std, advprop.interpolation) == ((0.5,), (0.5,), "bicubic")


def test_efficientnet_dropout_is_the_papers():
    rates = [keras_vit.EfficientNet(v, image_size=32, repeats=(1,) * 7, widths=WIDTHS) for v in ("B1", "B2", "L2")]
    assert [model.get_layer("dropout").rate for model in rates] == [0.2, 0.3, 0.5]
    refuses("`dropout_rate`", build, dropout_rate=1)


def test_efficientnet_features_are_the_stages():
    taps = keras_vit.features(build(image_size=(225, 160), num_classes=0))
    sides = [(113, 80), (57, 40), (29, 20), (15, 10), (15, 10), (8, 5), (8, 5)]
    assert [y.shape[1:] for y in taps.outputs] == [(*side, w) for side, w in zip(sides, WIDTHS[1:-1], strict=True)]


def test_efficientnet_layer_decay():
    model = build()
    factors = layer_multipliers(model, 0.5)
    assert [factors[name] for name in ("stem_conv", "stem_norm")] == [0.5**10] * 2
    assert [factors[name] for name in model.config.block_names] == [0.5 ** (9 - i) for i in range(9)]
    assert [factors[name] for name in ("top_conv", "top_norm", "head")] == [1, 1, 1]


def test_frozen_efficientnet_keeps_its_statistics():
    model = build()
    refuses("Expected a model of this package's builders, with transformer blocks", enable_lora, model, 2)
    layers = model.get_layer("stem_norm"), model.get_layer("stage_2_block_01").expand_norm
    before = [ops.convert_to_numpy(layer.moving_variance) for layer in layers]
    for frozen in (False, True):
        if frozen:
            freeze(model)
            assert {w.path.split("/")[0] for w in model.trainable_variables} == {"head"}
        model.compile("sgd", "mse")
        model.train_on_batch(images(2, 33, 48, 3), np.zeros((2, 5)))
        after = [ops.convert_to_numpy(layer.moving_variance) for layer in layers]
        assert [np.array_equal(*pair) for pair in zip(before, after, strict=True)] == [frozen] * 2
        before = after
