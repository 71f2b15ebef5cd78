import re

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from keras import ops

import keras_vit
from tests.contract import check_model
from tests.tiny import build, randomize


def images(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


def policy(name):
    """Builds under another dtype policy: `with policy(...)`."""
    return _Policy(name)


class _Policy:
    def __init__(self, name):
        self.name = name

    def __enter__(self):
        self.before = keras.config.dtype_policy()
        keras.config.set_dtype_policy(self.name)

    def __exit__(self, *_):
        keras.config.set_dtype_policy(self.before)


# Each choice that a builder offers is in one of them; choices that do not touch each other share one.
KINDS = {
    "token": {},
    "pre_logits": {"representation_size": 7, "position_embedding": "relative", "num_heads": 5, "head_dim": 2},
    "gap": {"pooling": "gap", "position_embedding": "learned2d", "patch_size": (2, 5)},
    "gap_with_class_token": {"pooling": "gap", "class_token": True, "position_embedding": "sincos2d"},
    "map": {"pooling": "map", "qk_norm": True, "activation": "gelu", "layer_norm_epsilon": 1e-12},
    "all_tokens": {"pooling": None, "num_classes": 0, "position_embedding": "none"},
    "all_tokens_with_head": {"pooling": None, "num_layers": 1},
    "registers": {"num_registers": 3, "layer_scale_init": 0.1},
    "dropouts": {"dropout_rate": 0.1, "attention_dropout_rate": 0.1, "drop_path_rate": 0.2, "patch_dropout_rate": 0.3},
    "preprocessing": {"include_preprocessing": True, "mean": [0.4, 0.5, 0.6], "std": [0.2, 0.3, 0.2]},
    "merging": {"token_merging": 3, "num_registers": 2, "drop_path_rate": 0.1, "image_size": (12, 25)},
    "merging_once_map": {"token_merging": (4, 0), "pooling": "map", "qk_norm": True, "remat": True},
    "merging_gap": {"token_merging": 2, "pooling": "gap", "patch_dropout_rate": 0.3},
    "merging_but_last": {"token_merging": (3, 0), "num_registers": 2, "qk_norm": True, "remat": True},
    "one_channel_wide": {"in_channels": 1, "image_size": (9, 30), "num_classes": 0},
}


@pytest.mark.parametrize("kind", KINDS)
def test_contract(kind):
    model = build(**KINDS[kind])
    check_model(model, images(3, *model.input_shape[1:]))


def test_layers_are_flat_and_named():
    names = [layer.name for layer in build(representation_size=8).layers]
    expected = [
        "images",
        "normalization",
        "patch_embedding",
        "class_token",
        "position_embedding",
        "block_00",
        "block_01",
    ]
    assert names == [*expected, "norm", "pooling", "pre_logits", "pre_logits_tanh", "head"]
    assert build().get_layer("pre_logits").output.shape == (None, 12)


def test_a_block_can_be_tapped():
    model = randomize(build())
    tap = keras.Model(model.input, model.get_layer("block_01").output)
    tokens = ops.convert_to_numpy(tap(images(2, 16, 16, 3)))
    assert tokens.shape == (2, 17, 12)
    again = ops.convert_to_numpy(model.get_layer("head")(model.get_layer("norm")(tokens)[:, 0]))
    np.testing.assert_allclose(again, ops.convert_to_numpy(model(images(2, 16, 16, 3))), atol=1e-5)


def test_a_new_head_is_zero_and_probabilities_are_uniform():
    model = keras_vit.ViT("Ti/16", image_size=32, num_layers=1, num_classes=4, classifier_activation="softmax")
    np.testing.assert_allclose(ops.convert_to_numpy(model(images(1, 32, 32, 3))), np.full((1, 4), 0.25), atol=1e-7)


def test_any_size_at_run_time_is_the_model_of_that_size():
    any_size = randomize(build(image_size=(None, None)))
    assert any_size.input_shape == (None, None, None, 3)
    # The stored grid is the default size's, 224: 56 x 56 patches of 4.
    assert any_size.get_layer("position_embedding").grid_size == (56, 56)
    for method in ("learned", "learned2d", "sincos2d", "relative", "none"):
        any_size = randomize(build(image_size=(None, None), position_embedding=method))
        for height, width in ((16, 16), (9, 26)):
            x = images(2, height, width, 3)
            y = any_size.predict(x, verbose=0)
            assert y.shape == (2, 5) and np.isfinite(y).all()
            np.testing.assert_allclose(ops.convert_to_numpy(any_size(x)), y, atol=1e-4)


def test_a_dropped_remainder_is_said(caplog):
    build(image_size=16)
    assert not caplog.records
    build(image_size=(16, 19))
    assert "do not divide images of 16 x 19: the model sees the upper left 16 x 16" in caplog.text


def test_heads_that_do_not_fill_the_width_have_to_be_meant():
    with pytest.raises(ValueError, match="Expected head_dim=6, .*hidden_dim=32, num_heads=5, head_dim=None"):
        build(hidden_dim=32, num_heads=5)
    with pytest.raises(ValueError, match="Expected head_dim=6, hidden_dim // num_heads, .*head_dim=8"):
        build(hidden_dim=32, num_heads=5, head_dim=8)
    assert build(hidden_dim=32, num_heads=5, head_dim=6).get_layer("block_00").attention.key_dim == 6


def test_a_remainder_is_dropped_at_the_right_and_bottom():
    whole, remainder = randomize(build(image_size=(8, 12))), randomize(build(image_size=(11, 14)))
    x = images(2, 11, 14, 3)
    np.testing.assert_allclose(
        ops.convert_to_numpy(remainder(x)), ops.convert_to_numpy(whole(x[:, :8, :12])), atol=1e-5
    )


@pytest.mark.parametrize("name", ["mixed_bfloat16", "mixed_float16"])
def test_the_head_computes_in_float32(name):
    float32 = randomize(build())
    with policy(name):
        model = randomize(build())
    assert model.get_layer("block_00").compute_dtype == name.removeprefix("mixed_")
    y = model(images(2, 16, 16, 3))
    assert keras.backend.standardize_dtype(y.dtype) == "float32"
    assert model.get_layer("head").compute_dtype == "float32"
    np.testing.assert_allclose(
        ops.convert_to_numpy(ops.softmax(y)), ops.convert_to_numpy(ops.softmax(float32(images(2, 16, 16, 3)))), atol=0.1
    )


@pytest.mark.backends("tensorflow", "jax")
def test_mixed_float16_trains_with_loss_scaling():
    with policy("mixed_float16"):
        model = build()
        model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), jit_compile="auto")
        assert isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)
        x, y = images(8, 16, 16, 3), np.arange(8) % 5
        losses = model.fit(x, y, batch_size=8, epochs=30, verbose=0).history["loss"]
    assert np.isfinite(losses).all() and losses[-1] < 0.7 * losses[0]


def test_drop_path_rises_linearly_with_depth():
    model = build(num_layers=5, drop_path_rate=0.2)
    rates = [model.get_layer(f"block_{i:02d}").drop_path_rate for i in range(5)]
    np.testing.assert_allclose(rates, [0, 0.05, 0.1, 0.15, 0.2])


@pytest.mark.parametrize("kind", ["token", "map", "registers"])
def test_initial_weights_have_the_official_statistics(kind):
    model = keras_vit.ViT("S/16", image_size=64, num_layers=1, **KINDS[kind])
    w = {variable.path: ops.convert_to_numpy(variable) for variable in model.weights}
    for path, std in {
        "patch_embedding/kernel": 0.0361,
        "position_embedding/embeddings": 0.02,
        "block_00/attention/qkv/kernel": 0.0510,
        "block_00/attention/out/kernel": 0.0510,
        "block_00/mlp/dense_1/kernel": 0.0323,
        "block_00/mlp/dense_2/kernel": 0.0323,
    }.items():
        assert abs(w[path].std() / std - 1) < 0.05, path
    assert 0.087 < np.abs(w["block_00/attention/qkv/kernel"]).max() < 0.0885
    zero = [path for path in w if path.startswith("head/") or path.endswith(("qkv/bias", "out/bias", "beta"))]
    assert zero and all(not w[path].any() for path in [*zero, *(p for p in w if p.startswith("class_token/"))])
    assert all((value == 1).all() for path, value in w.items() if path.endswith("norm_1/gamma"))


# Fewer on JAX, which compiles each anew.
@settings(max_examples=8 if keras.backend.backend() == "jax" else 60)
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
def test_any_sizes_work(height, width, patch, channels, depth, heads, pooling, position, registers, any_size):
    def model(image_size):
        return keras_vit.ViT(
            "B/16",
            image_size=image_size,
            patch_size=patch,
            in_channels=channels,
            num_layers=depth,
            hidden_dim=8,
            num_heads=heads,
            head_dim=8 // heads,
            mlp_dim=8,
            num_classes=3,
            pooling=pooling,
            position_embedding=position,
            num_registers=registers,
            head_init="glorot_uniform",
        )

    if height < patch[0] or width < patch[1]:
        with pytest.raises(ValueError, match="at least one patch"):
            model((height, width))
        return
    built = model((None, None) if any_size else (height, width))
    tokens = (height // patch[0]) * (width // patch[1]) + (pooling in ("token", None)) + registers
    # JAX compiles either the whole model once or each of its operations for each new shape.
    run = built.predict_on_batch if keras.backend.backend() == "jax" else built
    y = ops.convert_to_numpy(run(images(1, height, width, channels)))
    assert y.shape == ((1, tokens, 3) if pooling is None else (1, 3))
    assert np.isfinite(y).all()
    if not any_size:
        assert built.output_shape == (None, *y.shape[1:])
    assert type(built).from_config(built.get_config()).get_config() == built.get_config()


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"image_size": 3}, "at least one patch, 4 x 4 pixels. Received: images of 3 x 3"),
        ({"image_size": (16, None)}, "`image_size`"),
        ({"image_size": "16"}, "`image_size`"),
        ({"image_size": (16, 16, 3)}, "`image_size`"),
        ({"patch_size": 0}, "`patch_size`"),
        ({"in_channels": 0}, "`in_channels`"),
        ({"num_classes": -1}, "`num_classes`"),
        ({"hidden_dim": 0}, "`hidden_dim`"),
        ({"num_layers": 0}, "`num_layers`"),
        ({"num_heads": 13}, "at least as many channels as heads"),
        ({"mlp_dim": 1.5}, "`mlp_dim`"),
        ({"pooling": "mean"}, "`pooling`"),
        ({"pooling": "token", "class_token": False}, "class token"),
        ({"position_embedding": "rope"}, "`position_embedding`"),
        ({"position_embedding": "relative", "patch_dropout_rate": 0.5}, "patch_dropout_rate=0"),
        ({"position_embedding": "relative", "token_merging": (0, 2)}, "token_merging=0"),
        ({"position_embedding": "relative", "token_merging": 1}, "relative or rotary positions"),
        ({"rotary_embedding": "eva02", "hidden_dim": 24, "patch_dropout_rate": 0.5}, "patch_dropout_rate=0"),
        ({"token_merging": -1}, "`token_merging`. Expected an integer of at least 0. Received: -1"),
        ({"token_merging": (1, 2, 3)}, "one for each of the 2 blocks. Received: (1, 2, 3)"),
        ({"token_merging": (1, 0.5)}, "`token_merging`. Expected an integer of at least 0. Received: 0.5"),
        ({"position_embedding": "sincos2d", "hidden_dim": 6}, "a multiple of 4 channels"),
        ({"dropout_rate": 1}, "`dropout_rate`"),
        ({"drop_path_rate": -0.1}, "`drop_path_rate`"),
        ({"patch_dropout_rate": 2}, "`patch_dropout_rate`"),
        ({"attention_dropout_rate": -1}, "`attention_dropout_rate`"),
        ({"layer_scale_init": "small"}, "`layer_scale_init`"),
        ({"interpolation": "cubic"}, "`interpolation`"),
        ({"crop_fraction": 0}, "`crop_fraction`"),
        ({"num_registers": -1}, "`num_registers`"),
        ({"representation_size": 0}, "`representation_size`"),
        ({"std": 0}, "`std`"),
        ({"mean": (0.5, 0.5)}, "`mean`"),
    ],
)
def test_bad_arguments_are_named(changes, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        build(**changes)


def test_class_names_stay_with_the_model(tmp_path):
    names = ["rose", "iris", "daisy", "tulip", "lily"]
    model = build(class_names=names)
    model.save(tmp_path / "model.keras")
    for copy in (model, keras.models.clone_model(model), keras.saving.load_model(tmp_path / "model.keras")):
        assert copy.get_layer("normalization").class_names == names
    with pytest.raises(ValueError, match="`class_names`. Expected 5 strings, one per class. Received: 2 names"):
        build(class_names=names[:2])
    with pytest.raises(ValueError, match="Expected 5 strings, one per class. Received: 5 names, .*3"):
        build(class_names=["rose", "iris", "daisy", "tulip", 3])
    with pytest.raises(ValueError, match="Expected 5 strings, one per class. Received: 'irises'"):
        build(class_names="irises")


def test_no_such_weights_file():
    with pytest.raises(FileNotFoundError, match="nowhere"):
        build(weights="nowhere.npz")


def test_models_of_two_variants_have_two_names():
    names = [builder(num_layers=1, hidden_dim=16, mlp_dim=8).name for builder in (keras_vit.ViTg14, keras_vit.ViTG14)]
    assert names == ["vit_g14", "vit_G14"]


def numpy(model, x):
    return ops.convert_to_numpy(model(x))


def test_merging_no_tokens_is_no_merging():
    model = randomize(build())
    for token_merging in (0, (0, 0), [0, 0]):
        other = build(token_merging=token_merging)
        assert other.get_config() == model.get_config()
        other.set_weights(model.get_weights())
        np.testing.assert_array_equal(numpy(other, images(2, 16, 16, 3)), numpy(model, images(2, 16, 16, 3)))
    merging = build(token_merging=3)
    assert [w.path for w in merging.weights] == [w.path for w in model.weights]
    assert [layer.name for layer in merging.layers] == [layer.name for layer in model.layers]


@pytest.mark.parametrize("image_size", [(12, 20), (None, None)])
@pytest.mark.parametrize(
    "changes",
    [{"num_registers": 1}, {"pooling": "gap"}, {"pooling": "map"}, {"distillation_token": True}],
    ids=["token", "gap", "map", "distilled"],
)
def test_merging_equal_patches_changes_nothing(changes, image_size):
    """Without positions a pair of equal patches is one that counts twice, for the blocks behind and the pooling."""
    options = {"position_embedding": "none", "patch_size": 2, "image_size": image_size, **changes}
    model = randomize(build(**options))
    patches = images(2, 6, 5, 2, 2, 3)
    # 6 x 10 patches, of which neighbours are equal.
    x = np.repeat(patches, 2, axis=2).transpose(0, 1, 3, 2, 4, 5).reshape(2, 12, 20, 3)
    for token_merging in ((30, 0), (13, 0)):
        merging = build(token_merging=token_merging, **options)
        merging.set_weights(model.get_weights())
        np.testing.assert_allclose(numpy(merging, x), numpy(model, x), rtol=1e-3, atol=1e-4)
        if token_merging == (30, 0):
            tokens, sizes = keras.Model(merging.input, merging.get_layer("block_00").output)(x)
            prefix = tokens.shape[1] - 30
            np.testing.assert_array_equal(ops.convert_to_numpy(sizes), [[1] * prefix + [2] * 30] * 2)


@pytest.mark.parametrize(
    "changes",
    [
        {"position_embedding": "relative", "image_size": (12, 20), "num_layers": 1},
        {"distillation_token": True, "return_both_heads": True, "num_registers": 2, "token_merging": 3},
        {"remat": True, "rotary_embedding": "eva02", "hidden_dim": 24, "layer_scale_init": 0.5},
    ],
    ids=["relative, one block", "distilled, merging", "rotary, remat"],
)
def test_skipping_the_tokens_that_no_head_reads_changes_no_output_and_no_gradient(changes, monkeypatch):
    model = randomize(build(**changes))
    lengths, call = {}, keras_vit.layers.MLP.call
    # By the block's name: of the last call.
    monkeypatch.setattr(
        keras_vit.layers.MLP,
        "call",
        lambda mlp, x, **kwargs: lengths.update({mlp.path: x.shape[1]}) or call(mlp, x, **kwargs),
    )
    # Models that others build compute all tokens.
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


def test_a_model_of_any_size_merges_as_one_of_a_fixed_size():
    for size in ((16, 16), (12, 28), (4, 4)):
        model = randomize(build(image_size=size, token_merging=5, position_embedding="none"))
        any_size = build(image_size=(None, None), token_merging=5, position_embedding="none")
        any_size.set_weights(model.get_weights())
        x = images(2, *size, 3)
        np.testing.assert_allclose(any_size.predict(x, verbose=0), numpy(model, x), rtol=1e-4, atol=1e-4)


def test_real_model_merging_eight_tokens_a_block_names_the_same_classes(shared):
    with np.load(shared / "weights" / "ViT-B_16-224.reference.npz") as file:
        expected, x = file["logits_official_flax_tanh_gelu"].argmax(axis=1), file["images"]
    model = keras_vit.from_pretrained(shared / "weights" / "ViT-B_16-224.npz", token_merging=8)
    assert model.get_layer("block_11").output[0].shape == (None, 197 - 12 * 8, 768)
    logits = model.predict(keras_vit.preprocess_input(x, model), batch_size=7, verbose=0)
    assert (logits.argmax(axis=1) != expected).sum() <= 1


@pytest.mark.parametrize(
    "changes",
    [
        {"pooling": "map", "token_merging": 4},
        {"pooling": "gap", "token_merging": 4, "num_registers": 2},
        {"distillation_token": True, "activation": "relu"},
    ],
)
def test_nan_in_an_image_is_nan_in_its_logits(changes):
    model = randomize(build(**changes))
    x = images(2, 16, 16, 3)
    x[1, 3, 5, 0] = np.nan
    assert np.isnan(model.predict(x, verbose=0)).all(axis=1).tolist() == [False, True]
