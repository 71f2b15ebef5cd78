import keras
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from keras import ops

import keras_vit
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
SKIPPED = [
    {"position_embedding": "relative", "image_size": (12, 20), "num_layers": 1},
    {"distillation_token": True, "return_both_heads": True, "num_registers": 2, "token_merging": 3},
    {"remat": True, "rotary_embedding": "eva02", "hidden_dim": 24, "layer_scale_init": 0.5},
]


@pytest.mark.long_elsewhere
@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=pytest.mark.every_backend) if kind == "token" else kind for kind in CONTRACTS]
)
def test_vit_contract(kind):
    model = build(**CONTRACTS[kind])
    check_model(model, images(3, *model.input_shape[1:]))


def test_vit_layers_are_flat_and_named():
    names = [layer.name for layer in build(representation_size=8).layers]
    expected = ["images", "normalization", "patch_embedding", "class_token", "position_embedding"]
    expected += ["block_00", "block_01", "norm", "pooling", "pre_logits", "pre_logits_tanh", "head"]
    assert names == expected
    assert build().get_layer("pre_logits").output.shape == (None, 12)


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


def test_new_head_and_class_token_are_zero():
    model = keras_vit.ViT("S/16", image_size=64, num_layers=1)
    w = {variable.path: ops.convert_to_numpy(variable) for variable in model.weights}
    zero = [path for path in w if path.startswith(("head/", "class_token/")) or path.endswith(("qkv/bias", "beta"))]
    assert len(zero) == 7 and all(not w[path].any() for path in zero)


def test_any_size_model_stores_the_grid_of_224_pixels():
    assert build(image_size=(None, None)).get_layer("position_embedding").grid_size == (56, 56)


@given(
    height=st.integers(8, 96),
    width=st.integers(8, 96),
    patch=st.tuples(st.integers(2, 16), st.integers(2, 16)),
    channels=st.integers(1, 6),
    depth=st.integers(1, 3),
    heads=st.integers(1, 4),
    pooling=st.sampled_from(["token", "gap", "map", None]),
    position=st.sampled_from(["learned", "learned2d", "relative", "sincos2d", "none"]),
    registers=st.integers(0, 2),
    any_size=st.booleans(),
)
def test_vit_of_random_sizes(height, width, patch, channels, depth, heads, pooling, position, registers, any_size):
    sizes = {"patch_size": patch, "in_channels": channels, "num_layers": depth, "num_heads": heads, "num_classes": 3}
    sizes |= {"hidden_dim": 8, "head_dim": 8 // heads, "mlp_dim": 8, "num_registers": registers}

    def model(image_size):
        return build(image_size=image_size, pooling=pooling, position_embedding=position, **sizes)

    if height < patch[0] or width < patch[1]:
        refuses("at least one patch", model, (height, width))
        return
    built = model((None, None) if any_size else (height, width))
    tokens = (height // patch[0]) * (width // patch[1]) + (pooling in ("token", None)) + registers
    y = answers(built, images(1, height, width, channels))
    assert y.shape == ((1, tokens, 3) if pooling == "none" else (1, 3))
    assert np.isfinite(y).all()
    if not any_size:
        assert built.output_shape == (None, *y.shape[1:])
    assert type(built).from_config(built.get_config()).get_config() == built.get_config()


def test_class_names_must_fit_the_classes():
    names = ["rose", "iris", "daisy", "tulip", "lily"]
    assert build(class_names=names).get_layer("normalization").class_names == names
    for wrong, received in ((names[:2], "2 names"), ([*names[:4], 3], "5 names, .*3"), ("irises", "'irises'")):
        refuses(f"`class_names`. Expected 5 strings, one per class. Received: {received}", build, class_names=wrong)


def test_default_model_name_is_the_variant():
    names = [builder(num_layers=1, hidden_dim=16, mlp_dim=8).name for builder in (keras_vit.ViTg14, keras_vit.ViTG14)]
    assert names == ["vit_g14", "vit_G14"]


def test_token_merging_of_zero_is_no_merging():
    model = randomize(build())
    for token_merging in (0, (0, 0), [0, 0]):
        other = build(token_merging=token_merging)
        assert other.get_config() == model.get_config()
        other.set_weights(model.get_weights())
        np.testing.assert_array_equal(answers(other, images(2, 16, 16, 3)), answers(model, images(2, 16, 16, 3)))
    merging = build(token_merging=3)
    assert [w.path for w in merging.weights] == [w.path for w in model.weights]
    assert [layer.name for layer in merging.layers] == [layer.name for layer in model.layers]


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


@pytest.mark.parametrize("changes", SKIPPED, ids=["relative, one block", "distilled, merging", "rotary, remat"])
def test_skipped_tokens_change_no_output_and_gradient(changes, monkeypatch):
    model = randomize(build(**changes))
    lengths, call = {}, keras_vit.layers.MLP.call
    # The number of tokens in the last call of each MLP.
    monkeypatch.setattr(
        keras_vit.layers.MLP,
        "call",
        lambda mlp, x, **kwargs: lengths.update({mlp.path: x.shape[1]}) or call(mlp, x, **kwargs),
    )
    # A plain functional model computes all tokens.
    full = keras.Model(model.input, model.output)
    x = images(4, *(side or 16 for side in model.input_shape[1:]))
    outputs, seen = [], []
    for each in (model, full):
        outputs.append(keras.tree.flatten(each(x)))
        seen.append(lengths[model.blocks[-1].mlp.path])
    found, expected = outputs
    assert seen == [len(model.outputs), model.get_layer("norm").output.shape[1]] and seen[0] < seen[1]
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(ops.convert_to_numpy(a), ops.convert_to_numpy(b), rtol=1e-4, atol=1e-4)
    before, after = model.get_weights(), []
    for each in (model, full):
        each.set_weights(before)
        each.compile(keras.optimizers.SGD(1e-3), "mse")
        each.train_on_batch(x, [np.ones((4, 5), "float32")] * len(each.outputs))
        after.append(each.get_weights())
    for old, a, b in zip(before, *after, strict=True):
        np.testing.assert_allclose(a - old, b - old, rtol=1e-3, atol=1e-4 * np.abs(b - old).max() + 1e-7)


def test_any_size_model_merges_like_a_fixed_size_model():
    for size in ((16, 16), (12, 28), (4, 4)):
        model = randomize(build(image_size=size, token_merging=5, position_embedding="none"))
        any_size = build(image_size=(None, None), token_merging=5, position_embedding="none")
        any_size.set_weights(model.get_weights())
        x = images(2, *size, 3)
        np.testing.assert_allclose(any_size.predict(x, verbose=0), answers(model, x), rtol=1e-4, atol=1e-4)


@pytest.mark.long
def test_real_vit_with_merging_predicts_the_same_classes(shared):
    with np.load(shared / "weights" / "ViT-B_16-224.reference.npz") as file:
        expected, x = file["logits_official_flax_tanh_gelu"].argmax(axis=1), file["images"]
    model = keras_vit.from_pretrained(shared / "weights" / "ViT-B_16-224.npz", token_merging=8)
    assert model.get_layer("block_11").output[0].shape == (None, 197 - 12 * 8, 768)
    logits = model.predict(keras_vit.preprocess_input(x, model), batch_size=7, verbose=0)
    assert (logits.argmax(axis=1) != expected).sum() <= 1
