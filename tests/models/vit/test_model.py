import keras
import numpy as np
import pytest
from keras import ops

from tests.contract import check_model
from tests.errors import refuses
from tests.models.small import answers, images
from tests.tiny import build, randomize

CONSTANTS = {"mean": [0.4, 0.5, 0.6], "std": [0.2, 0.3, 0.2]}
# Each choice that a builder offers is in one of these models. Independent choices share a model.
KINDS = {
    "token": {},
    "pre_logits": {"representation_size": 7, "position_embedding": "relative", "num_heads": 5, "head_dim": 2},
    "gap": {"pooling": "gap", "position_embedding": "learned2d", "patch_size": (2, 5)},
    "gap_with_class_token": {"pooling": "gap", "class_token": True, "position_embedding": "sincos2d"},
    "map": {"pooling": "map", "qk_norm": True, "activation": "gelu", "layer_norm_epsilon": 1e-12},
    "all_tokens": {"pooling": "none", "num_classes": 0, "position_embedding": "none"},
    "all_tokens_with_head": {"pooling": "none", "num_layers": 1},
    "registers": {"num_registers": 3, "layer_scale_init": 0.1},
    "dropouts": {"dropout_rate": 0.1, "attention_dropout_rate": 0.1, "drop_path_rate": 0.2, "patch_dropout_rate": 0.3},
    "preprocessing": {"include_preprocessing": True, "preprocessing": CONSTANTS},
    "merging": {"token_merging": 3, "num_registers": 2, "drop_path_rate": 0.1, "image_size": (12, 25)},
    "merging_once_map": {"token_merging": (4, 0), "pooling": "map", "qk_norm": True, "remat": True},
    "merging_gap": {"token_merging": 2, "pooling": "gap", "patch_dropout_rate": 0.3},
    "merging_but_last": {"token_merging": (3, 0), "num_registers": 2, "qk_norm": True, "remat": True},
    "one_channel_wide": {"in_channels": 1, "image_size": (9, 30), "num_classes": 0},
}


CONTRACTS = {**KINDS, "distilled": {"distillation_token": True, "activation": "gelu"}}


@pytest.mark.long_elsewhere
@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=pytest.mark.every_backend) if kind == "token" else kind for kind in CONTRACTS]
)
def test_vit_contract(kind):
    model = build(**CONTRACTS[kind])
    check_model(model, images(3, *model.input_shape[1:]))


def test_dropped_pixels_are_logged(caplog):
    build(image_size=16)
    assert not caplog.records
    build(image_size=(16, 19))
    assert "do not divide images of 16 x 19: the model sees the upper left 16 x 16" in caplog.text


@pytest.mark.long
@pytest.mark.backends("tensorflow", "jax")
def test_mixed_float16_trains_with_loss_scaling():
    model = build(dtype="mixed_float16")
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), jit_compile="auto")
    assert isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)
    x, y = images(8, 16, 16, 3), np.arange(8) % 5
    losses = model.fit(x, y, batch_size=8, epochs=30, verbose=0).history["loss"]
    assert np.isfinite(losses).all() and losses[-1] < 0.7 * losses[0]


def test_class_names_must_fit_the_classes():
    names = ["rose", "iris", "daisy", "tulip", "lily"]
    assert build(class_names=names).get_layer("normalization").class_names == names
    for wrong, received in ((names[:2], "2 names"), ([*names[:4], 3], "5 names, .*3"), ("irises", "'irises'")):
        refuses(f"`class_names`. Expected 5 strings, one per class. Received: {received}", build, class_names=wrong)


@pytest.mark.parametrize("image_size", [(12, 20), (None, None)])
@pytest.mark.parametrize(
    "changes",
    [{"num_registers": 1}, {"pooling": "gap"}, {"pooling": "map"}, {"distillation_token": True}],
    ids=["token", "gap", "map", "distilled"],
)
def test_merging_equal_patches_keeps_the_outputs(changes, image_size):
    """Without positions, blocks and pooling treat a pair of equal patches as one patch of size 2."""
    options = {"position_embedding": "none", "patch_size": 2, "image_size": image_size, **changes}
    model = randomize(build(**options))
    patches = images(2, 6, 5, 2, 2, 3)
    # The images have 6 x 10 patches, in pairs of equal neighbours.
    x = np.repeat(patches, 2, axis=2).transpose(0, 1, 3, 2, 4, 5).reshape(2, 12, 20, 3)
    for token_merging in ((30, 0), (13, 0)):
        merging = build(token_merging=token_merging, **options)
        merging.set_weights(model.get_weights())
        np.testing.assert_allclose(answers(merging, x), answers(model, x), rtol=1e-3, atol=1e-4)
        if token_merging == (30, 0):
            tokens, sizes = keras.Model(merging.input, merging.get_layer("block_00").output)(x)
            prefix = tokens.shape[1] - 30
            np.testing.assert_array_equal(ops.convert_to_numpy(sizes), [[1] * prefix + [2] * 30] * 2)
