import hashlib
import shutil

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.models import catalog as names
from keras_vit.models.vit.config import ViTConfig
from keras_vit.models.vit.model import VIT
from keras_vit.weights import WeightsMismatchError, resize
from keras_vit.weights.read import open_checkpoint
from keras_vit.weights.write import write_safetensors
from tests.golden import GOLDEN_FOLDER
from tests.tiny import build, randomize
from tests.weights.helpers import check_refused, outputs, read, shapes_of, unchanged


def write(path, arrays):
    np.savez(path, **arrays)
    return path


@pytest.mark.parametrize("count", [4, pytest.param(None, marks=pytest.mark.long)])
def test_real_checkpoint_gives_official_logits(shared, count):
    model = keras_vit.ViTB16(weights=shared / "weights" / "ViT-B_16-224.npz")
    assert model.count_params() == 86_567_656
    with np.load(shared / "weights" / "ViT-B_16-224.reference.npz") as file:
        pictures, labels, expected = (file[key] for key in ("images", "labels", "logits_official_flax_tanh_gelu"))
    actual = model.predict(keras_vit.preprocess_input(pictures[:count], model), batch_size=7, verbose=0)
    np.testing.assert_allclose(actual, expected[:count], atol=1e-4)
    if count is None:
        # The first image has no ILSVRC2012 label of its own.
        assert (actual.argmax(axis=1) == labels)[1:].sum() >= 15


# PyTorch takes minutes for bfloat16 on processors that do not multiply in it.
@pytest.mark.backends("jax")
@pytest.mark.long
def test_real_checkpoint_in_bfloat16_gives_probabilities(shared):
    model = keras_vit.ViTB16(weights=shared / "weights" / "ViT-B_16-224.npz", dtype="mixed_bfloat16")
    with np.load(shared / "weights" / "ViT-B_16-224.reference.npz") as file:
        pictures, expected = file["images"], file["logits_official_flax_tanh_gelu"]
    actual = model.predict(keras_vit.preprocess_input(pictures, model), batch_size=7, verbose=0)
    assert actual.dtype == "float32"
    probabilities, expected_probabilities = (np.asarray(keras.ops.softmax(y)) for y in (actual, expected))
    np.testing.assert_allclose(probabilities, expected_probabilities, atol=0.02)
    assert (actual.argmax(axis=1) == expected.argmax(axis=1)).sum() >= 20


def test_newer_flax_names_load_unless_both_are_there(tiny, tiny_arrays, tmp_path):
    newer = {"MultiHeadDotProductAttention_1": "MultiHeadDotProductAttention_0", "LayerNorm_2": "LayerNorm_1"}
    newer["MlpBlock_3"] = "MlpBlock_0"

    def rename(key):
        for old, new in newer.items():
            key = key.replace(old, new)
        return "opt/target/" + key

    arrays = {rename(key): value for key, value in tiny_arrays.items()}
    arrays["opt/state/step"] = np.array(3.0)
    model = build()
    report = keras_vit.load_weights(model, write(tmp_path / "newer.npz", arrays))
    assert unchanged(model, tiny.get_weights())
    assert report.skipped == {"opt/state/step": "holds no weights of the model"}
    key = "Transformer/encoderblock_0/LayerNorm_2/scale"
    tiny_arrays[key.replace("LayerNorm_2", "LayerNorm_1")] = tiny_arrays[key]
    check_refused("twice", write(tmp_path / "twice.npz", tiny_arrays), into=tiny)


def test_reloaded_cloned_scoped_or_nested_model_takes_weights(tiny, tiny_file, tmp_path):
    build().save(tmp_path / "model.keras")
    with keras.name_scope("outer"):
        scoped = build()
    for model in (keras.saving.load_model(tmp_path / "model.keras"), keras.models.clone_model(build()), scoped):
        keras_vit.load_weights(model, tiny_file)
        assert unchanged(model, tiny.get_weights())
    inner, inputs = build(), keras.Input((16, 16, 3))
    outer = keras.Model(inputs, keras.layers.Dense(2)(inner(inputs)))
    check_refused("If one of these layers is the ViT, pass this layer", tiny_file, into=outer)
    keras_vit.load_weights(outer.get_layer(inner.name), tiny_file)
    assert unchanged(inner, tiny.get_weights())


def test_mismatch_names_both_sides_and_changes_nothing(tiny, tiny_arrays, tmp_path):
    del tiny_arrays["Transformer/encoder_norm/scale"]
    tiny_arrays["Transformer/encoderblock_2/LayerNorm_0/scale"] = np.ones(12, "float32")
    tiny_arrays["Transformer/encoderblock_1/MlpBlock_3/Dense_0/bias"] = np.ones(7, "float32")
    before = randomize(tiny, seed=1).get_weights()
    with pytest.raises(WeightsMismatchError) as error:
        keras_vit.load_weights(tiny, write(tmp_path / "other.npz", tiny_arrays))
    assert error.value.unexpected == ["Transformer/encoderblock_2/LayerNorm_0/scale"]
    assert error.value.missing == ["norm/gamma"]
    assert error.value.mismatched == {"Transformer/encoderblock_1/MlpBlock_3/Dense_0/bias": ((7,), (20,))}
    for part in ("LayerNorm_0/scale", "norm/gamma", "(7,) in the file, (20,) needed", "Nothing was loaded"):
        assert part in str(error.value)
    assert unchanged(tiny, before)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"num_layers": 3}, "2 blocks"),
        ({"hidden_dim": 24}, "hidden_dim 12"),
        ({"mlp_dim": 24}, "mlp_dim 20"),
        # The product of heads and their width is the same.
        ({"num_heads": 2}, r"\(12, 3, 4\) in the file, \(12, 2, 6\) needed"),
    ],
)
def test_model_of_other_sizes_is_refused(tiny_file, changes, message):
    check_refused(message, tiny_file, into=build(**changes), error=WeightsMismatchError)


@pytest.mark.parametrize("classes", [9, 0])
def test_other_number_of_classes_leaves_zero_head(tmp_path, classes):
    source, model = randomize(build(num_classes=classes)), randomize(build(), seed=1)
    keras_vit.save_weights(source, tmp_path / "other.npz")
    report = keras_vit.load_weights(model, tmp_path / "other.npz")
    assert not any(w.any() for w in model.get_layer("head").get_weights())
    assert not classes or "9 classes in the file, 5 in the model" in report.skipped["head/kernel"]
    assert report.kept == {"head/kernel": "zero", "head/bias": "zero"}
    assert unchanged(model.get_layer("block_01"), source.get_layer("block_01").get_weights())


def test_skipped_layers_are_unchanged(tiny_file):
    model = randomize(build(), seed=1)
    before = model.get_layer("norm").get_weights()
    report = keras_vit.load_weights(model, tiny_file, skip=("head", "norm"))
    assert not any(w.any() for w in model.get_layer("head").get_weights())
    assert unchanged(model.get_layer("norm"), before)
    assert report.kept["norm/gamma"] == "unchanged"
    assert report.skipped["Transformer/encoder_norm/scale"] == "skipped as requested"


def test_pre_logits_are_skipped_only_without_head(tmp_path):
    path = tmp_path / "pre_logits.npz"
    keras_vit.save_weights(randomize(build(representation_size=12)), path)
    check_refused("representation_size", path, into=build(), error=WeightsMismatchError)
    report = keras_vit.load_weights(build(num_classes=0), path)
    assert set(report.skipped) == {"head/kernel", "head/bias", "pre_logits/kernel", "pre_logits/bias"}
    other = build(representation_size=8, num_classes=7)
    check_refused(r"pre_logits/kernel: \(12, 12\) in the file", path, into=other, error=WeightsMismatchError)


def test_class_token_can_be_skipped_on_either_side(tiny, tiny_file, tmp_path):
    gap = randomize(build(pooling="gap"), seed=1)
    check_refused(r'skip=\("class_token",\)', tiny_file, into=gap, error=WeightsMismatchError)
    keras_vit.load_weights(gap, tiny_file, skip=("class_token",))
    positions = tiny.get_layer("position_embedding").get_weights()[0]
    np.testing.assert_array_equal(gap.get_layer("position_embedding").get_weights()[0], positions[:, 1:])
    path = tmp_path / "gap.npz"
    keras_vit.save_weights(gap, path)
    token = randomize(build(), seed=2)
    own = token.get_layer("position_embedding").get_weights()[0][:, :1]
    keras_vit.load_weights(token, path, skip=("class_token",))
    expected = np.concatenate([own, positions[:, 1:]], axis=1)
    np.testing.assert_array_equal(token.get_layer("position_embedding").get_weights()[0], expected)


@pytest.mark.parametrize(
    "name, value, stated",
    [
        ("activation", "gelu", "activation='gelu_tanh'"),
        ("layer_norm_epsilon", 1e-12, "layer_norm_epsilon=1e-06"),
        ("preprocessing", {"mean": 0.4, "std": 0.2}, r"preprocessing=\{'mean': \(0.5,\), 'std': \(0.5,\)\}"),
        ("classifier_activation", "softmax", "classifier_activation='linear'"),
        ("token_merging", (2, 0), "token_merging=0"),
    ],
)
def test_other_setting_is_refused_unless_allowed(tiny, tiny_file, name, value, stated):
    model = build(**{name: value})
    before = model.get_weights()
    check_refused(f"trained with {stated}, and .* allow=\\('{name}',\\)", tiny_file, into=model)
    assert unchanged(model, before)
    keras_vit.load_weights(model, tiny_file, allow=name)
    assert unchanged(model, tiny.get_weights())
    # An argument of a builder is allowed.
    assert build(weights=tiny_file, **{name: value}).config == model.config


def test_file_without_metadata_states_no_preprocessing(tiny_arrays, tmp_path):
    changes = {"preprocessing": {"mean": 0.4}, "classifier_activation": "softmax", "token_merging": (2, 0)}
    keras_vit.load_weights(build(**changes), write(tmp_path / "bare.npz", tiny_arrays))


def test_error_lists_all_settings_that_differ(tiny_file):
    model = build(preprocessing={"mean": 0.4}, activation="gelu", token_merging=1)
    check_refused("activation='gelu_tanh', preprocessing=.*, token_merging=0, and model", tiny_file, into=model)
    # The crop depends on the image size, and a new head has its own activation.
    keras_vit.load_weights(build(preprocessing={"crop_fraction": 0.5}, image_size=24), tiny_file)
    check_refused("crop_fraction", tiny_file, into=build(preprocessing={"crop_fraction": 0.5}))
    keras_vit.load_weights(build(num_classes=7, classifier_activation="softmax"), tiny_file)


def test_invalid_argument_is_refused(tiny, tiny_file):
    for source in ("nobody", "timm"):
        message = f"`source`. Expected one of 'official', 'big_vision', or None.*Received: '{source}'$"
        check_refused(message, tiny_file, into=tiny, source=source)
    check_refused("no `variant` for .*Received: 'B/16'.*keras_vit.ViT\\('B/16'", tiny_file, variant="B/16")
    check_refused("`allow`", tiny_file, into=tiny, allow=("everything",))
    check_refused(r"`skip`.*Received: \['haed'\]", tiny_file, into=tiny, skip=("haed",))
    check_refused(r"`skip`.*Received: \[\['head'\]\]", tiny_file, into=tiny, skip=[["head"]])
    check_refused("position_interpolation", tiny_file, into=tiny, position_interpolation="spline")
    for grid in ((3, 5), (4,), 4, (-4, -4), (4.0, 4.0), "44"):
        check_refused("`grid_size`.*16 position embeddings", tiny_file, into=tiny, grid_size=grid)
    keras_vit.load_weights(tiny, tiny_file, sha256=hashlib.sha256(tiny_file.read_bytes()).hexdigest())
    check_refused("SHA-256", tiny_file, into=tiny, sha256="0" * 64)


def test_unknown_grid_is_square_or_needs_grid_size(tmp_path, tiny_arrays):
    # The file has 4 x 4 positions and the model 2 x 8, so copying them one by one would be wrong.
    model = build(image_size=(8, 32))
    report = keras_vit.load_weights(model, write(tmp_path / "square.npz", tiny_arrays))
    assert report.resized == {"position_embedding/embeddings": "4 x 4 -> 2 x 8 (linear)"}
    path = tmp_path / "wide.npz"
    keras_vit.save_weights(randomize(build(image_size=(8, 24))), path)
    with np.load(path) as file:
        anonymous = write(tmp_path / "anonymous.npz", dict(file))
    keras_vit.load_weights(build(image_size=(8, 24)), anonymous)
    check_refused(r"grid_size=\(rows, columns\)", anonymous, into=build(), error=WeightsMismatchError)
    report = keras_vit.load_weights(build(), anonymous, grid_size=(2, 6))
    assert report.resized["position_embedding/embeddings"].startswith("2 x 6 -> 4 x 4")


def test_own_file_of_wide_grid_loads_unresized(tmp_path):
    wide = randomize(build(image_size=(8, 32)))
    keras_vit.save_weights(wide, tmp_path / "wide.npz")
    wide.save_weights(tmp_path / "wide.weights.h5")
    for name in ("wide.npz", "wide.weights.h5"):
        again = build(image_size=(8, 32))
        assert not keras_vit.load_weights(again, tmp_path / name).resized
        assert unchanged(again, wide.get_weights())
    report = keras_vit.load_weights(build(), tmp_path / "wide.npz")
    assert report.resized["position_embedding/embeddings"].startswith("2 x 8 -> 4 x 4")


def test_stacked_blocks_and_siglip_towers_load_the_same(tmp_path):
    arrays = dict(np.load(GOLDEN_FOLDER / "bigvision_tok.npz"))
    block = "params/Transformer/encoderblock_{}/"
    parts = [key.removeprefix(block.format(0)) for key in arrays if key.startswith(block.format(0))]
    for part in parts:
        stack = np.stack([arrays.pop(block.format(i) + part) for i in range(3)])
        arrays["params/Transformer/encoderblock/" + part] = stack
    stacked = keras_vit.from_pretrained(write(tmp_path / "scanned.npz", arrays))
    plain = keras_vit.from_pretrained(GOLDEN_FOLDER / "bigvision_tok.npz")
    assert stacked.layers[-1].name == "head" and unchanged(stacked, plain.get_weights())
    arrays = dict(np.load(GOLDEN_FOLDER / "bigvision_map.npz"))
    whole = {key.replace("params/", "params/img/", 1): value for key, value in arrays.items()}
    whole |= {"params/txt/head/kernel": np.ones((2, 3), "float32"), "params/t": np.ones(1, "float32")}
    model = keras_vit.from_pretrained(write(tmp_path / "siglip.npz", whole))
    assert unchanged(model, keras_vit.from_pretrained(GOLDEN_FOLDER / "bigvision_map.npz").get_weights())


def test_huge_stack_and_huge_patch_are_refused(tiny, tiny_arrays, tmp_path):
    arrays = {"params/embedding/kernel": np.ones((4, 4, 3, 12), "float32")}
    arrays["params/Transformer/encoderblock/LayerNorm_0/scale"] = np.ones((10**9, 0), "float32")
    check_refused("stacks 1,000,000,000 blocks", write(tmp_path / "bomb.npz", arrays), into=tiny)
    tiny_arrays["embedding/kernel"] = np.zeros((100_000, 1, 3, 12), "float32")
    message, path = r"embedding/kernel: \(100000, 1, 3, 12\) in the file", write(tmp_path / "large.npz", tiny_arrays)
    check_refused(message, path, into=tiny, error=WeightsMismatchError)


def test_missing_prefix_positions_compute_the_same(tiny, tiny_file, tmp_path):
    bare = build(class_token_position=False)
    report = keras_vit.load_weights(bare, tiny_file)
    np.testing.assert_allclose(outputs(bare), outputs(tiny), atol=1e-5)
    assert report.adapted == {"position_embedding/embeddings": "1 -> 0 positions of prefix tokens"}
    keras_vit.save_weights(bare, tmp_path / "bare.safetensors", "timm", allow="activation")
    model = randomize(build(), seed=1)
    keras_vit.load_weights(model, tmp_path / "bare.safetensors", allow="activation")
    np.testing.assert_allclose(outputs(model), outputs(bare), atol=1e-5)
    assert not model.get_layer("position_embedding").get_weights()[0][:, 0].any()


@pytest.mark.parametrize(
    "arguments",
    [
        {"representation_size": 8, "dropout_rate": 0.1, "attention_dropout_rate": 0.1},
        {"distillation_token": True, "num_registers": 2, "layer_scale_init": 0.1, "qk_norm": True},
        {"pooling": "map"},
        {"pooling": "gap", "norm_after_pooling": True},
        {"stages": (1, 1), "width_factor": 0.5, "patch_size": 1, "image_size": 32},
        {"position_embedding": "relative"},
        {"position_embedding": "learned2d"},
    ],
)
def test_keras_file_loads_into_other_models(tmp_path, arguments):
    model = randomize(build(**arguments))
    model.save_weights(tmp_path / "model.weights.h5")
    again = build(**arguments)
    report = keras_vit.load_weights(again, tmp_path / "model.weights.h5")
    assert report.source == "keras" and unchanged(again, model.get_weights())
    other = build(**arguments, num_classes=9)
    keras_vit.load_weights(other, tmp_path / "model.weights.h5")
    assert unchanged(other.get_layer("block_01"), model.get_layer("block_01").get_weights())


@pytest.mark.every_backend
def test_keras_file_builds_model_from_given_settings(tmp_path):
    model = randomize(build())
    model.save_weights(tmp_path / "model.weights.h5")
    told = {"num_heads": 3, "pooling": "token", "activation": "gelu_tanh", "layer_norm_epsilon": 1e-6}
    check_refused("Pass preprocessing=, num_heads=, pooling=, activation=, layer_n", tmp_path / "model.weights.h5")
    built = keras_vit.from_pretrained(tmp_path / "model.weights.h5", **told, preprocessing=model.preprocessing)
    assert unchanged(built, model.get_weights())


@pytest.mark.parametrize("patch_size", [2, 8, (4, 2)])
def test_other_patch_size_resizes_kernel(tiny, tiny_file, patch_size):
    model = build(patch_size=patch_size)
    report = keras_vit.load_weights(model, tiny_file)
    before, after = (m.get_layer("patch_embedding") for m in (tiny, model))
    expected = resize.resize_patches(before.get_weights()[0], after.patch_size)
    np.testing.assert_allclose(after.get_weights()[0], expected, atol=1e-6)
    assert "pseudo-inverse" in report.resized["patch_embedding/kernel"]
    assert "position_embedding/embeddings" in report.resized


@pytest.mark.parametrize("suffix", ["npz", "weights.h5"])
@pytest.mark.parametrize("method", ["linear", "bicubic", "bicubic_antialias"])
def test_positions_are_resized_by_given_method(tiny, tmp_path, suffix, method):
    path = tmp_path / f"tiny.{suffix}"
    tiny.save_weights(path) if suffix == "weights.h5" else keras_vit.save_weights(tiny, path)
    model = build(image_size=(24, 32))
    options = {} if method == "linear" else {"position_interpolation": method}
    report = keras_vit.load_weights(model, path, **options)
    before = tiny.get_layer("position_embedding").get_weights()[0][0, 1:].reshape(4, 4, -1)
    actual = model.get_layer("position_embedding").get_weights()[0][0, 1:].reshape(6, 8, -1)
    np.testing.assert_allclose(actual, resize.resize_positions(before, 6, 8, method), atol=1e-6)
    assert report.resized["position_embedding/embeddings"] == f"4 x 4 -> 6 x 8 ({method})"


def test_wrong_pairing_error_names_both_architectures(tmp_path, monkeypatch):
    # Zeros expand far more than real weights.
    monkeypatch.setattr("keras_vit.weights.read.bounds.FACTOR", 1000)

    def real_file(model, source, prefix=""):
        shapes = shapes_of(model, names.sources()[source])
        arrays = {prefix + key: np.zeros(shape, "float16") for key, shape in shapes.items()}
        np.savez_compressed(tmp_path / f"{model.name}.npz", **arrays)
        return tmp_path / f"{model.name}.npz"

    plain, hybrid, bit = keras_vit.ViTTi16(), keras_vit.RViTTi16(), keras_vit.BiTR50x1()
    files = {r"R\+ViT-Ti/16 \(a ResNet": real_file(hybrid, "official")}
    files[r"BiT-R50x1 \(a ResNet"] = real_file(bit, "bit", "resnet/")
    for name, path in files.items():
        message = rf"The file:  {name}(?s:.*)The model: ViT-Ti/16 \(hidden_dim 192"
        check_refused(message, path, into=plain, error=WeightsMismatchError)
    path = real_file(plain, "official")
    for model in (hybrid, bit):
        check_refused("The file:  ViT-Ti/16", path, into=model, error=WeightsMismatchError)


def test_number_of_heads_other_than_config_is_refused():
    sizes = {"image_size": 32, "patch_size": 8, "hidden_dim": 64, "num_layers": 3, "mlp_dim": 128, "num_classes": 10}
    model = keras_vit.ViT("B/16", num_heads=8, activation="gelu", layer_norm_epsilon=1e-12, **sizes)
    path, error = GOLDEN_FOLDER / "hf_vit", WeightsMismatchError
    check_refused("(?s)4 heads.*8 heads.*They differ in num_heads", path, into=model, error=error)
    bare = {"preprocessing": keras_vit.Preprocessing()}
    check_refused("They differ in num_heads", path, error=error, num_heads=8, **bare)


def test_head_of_other_pooling_is_refused_unless_new(tmp_path):
    keras_vit.save_weights(randomize(build(activation="gelu")), tmp_path / "token.safetensors", "timm")
    model = build(pooling="gap", class_token=True, activation="gelu")
    check_refused("trained with pooling='token'", tmp_path / "token.safetensors", into=model)
    keras_vit.load_weights(model, tmp_path / "token.safetensors", skip="head")
    keras_vit.load_weights(model, tmp_path / "token.safetensors", allow="pooling")


def test_skipping_one_of_two_heads_is_refused(tmp_path):
    model, path = randomize(build(distillation_token=True)), tmp_path / "model.weights.h5"
    model.save_weights(path)
    check_refused("both heads of a distilled model or none", path, into=model, skip="head_dist")
    keras_vit.load_weights(model, path, skip=("head", "head_dist"))
    assert not outputs(model).any()


@pytest.mark.parametrize("error", [MemoryError, KeyboardInterrupt])
def test_load_that_fails_halfway_changes_nothing(tiny, tiny_file, monkeypatch, error):
    model = randomize(build(), seed=1)
    before, calls, assign = model.get_weights(), [], model.weights[4].assign

    def fail(value):
        calls.append(value)
        if len(calls) == 1:
            raise error
        return assign(value)

    monkeypatch.setattr(model.weights[4], "assign", fail)
    with pytest.raises(error):
        keras_vit.load_weights(model, tiny_file)
    assert unchanged(model, before)


@pytest.mark.parametrize(
    "name, changes",
    [
        ("hf_dinov3_gated", {"rotary_embedding": None}),
        ("hf_dinov3_gated", {"position_embedding": "sincos2d"}),
        ("original_eva02_split.safetensors", {"rotary_grid": None}),
        ("timm_vit.safetensors", {"rotary_embedding": "axial"}),
        ("bigvision_gap_sincos2d.npz", {"position_embedding": "none"}),
    ],
)
def test_other_positions_without_weights_are_refused(name, changes):
    path = GOLDEN_FOLDER / name
    stated = {name: value.value for name, value in read(path)[1].values.items() if name != "task"}
    fields = {"activation": "gelu", "layer_norm_epsilon": 1e-6, "num_heads": 2, **stated}
    config = ViTConfig(**fields)
    keras_vit.load_weights(VIT.make(config), path)
    (field,) = changes
    other = VIT.make(config.replace(**changes))
    before = other.get_weights()
    check_refused(f"{field}={stated[field]!r}".replace("(", r"[\[(]").replace(")", r"[\])]"), path, into=other)
    assert unchanged(other, before)
    keras_vit.load_weights(other, path, allow=field)


def test_classes_in_another_order_are_refused(tmp_path):
    keras_vit.save_weights(build(class_names=list("abcde")), tmp_path / "model.npz")
    check_refused(r"class_names=.*'a', 'b'.*'e', 'd'", tmp_path / "model.npz", into=build(class_names=list("edcba")))
    keras_vit.load_weights(build(class_names=list("edcba")), tmp_path / "model.npz", allow="class_names")
    keras_vit.load_weights(build(), tmp_path / "model.npz")


def test_possible_rotary_positions_must_be_given(tmp_path):
    randomize(build(rotary_embedding="axial")).save_weights(tmp_path / "model.weights.h5")
    check_refused("rotary_embedding=", tmp_path / "model.weights.h5")
    # timm's towers in OpenCLIP may be EVA-02 models with rotary positions.
    arrays = open_checkpoint(GOLDEN_FOLDER / "timm_eva02.safetensors")
    tower = {f"visual.trunk.{key}": array for key, array in arrays.read(arrays.entries)}
    write_safetensors(tmp_path / "tower.safetensors", tower, {})
    check_refused("rotary_embedding=", tmp_path / "tower.safetensors")


def test_siglip_without_pooling_gives_all_tokens(tmp_path):
    shutil.copytree(GOLDEN_FOLDER / "hf_siglip", tmp_path / "folder")
    arrays = open_checkpoint(tmp_path / "folder")
    kept = {key: array for key, array in arrays.read(arrays.entries) if "head." not in key}
    write_safetensors(tmp_path / "folder" / "model.safetensors", kept, {})
    model = keras_vit.from_pretrained(tmp_path / "folder")
    assert model.config.pooling == "none" and len(model.output_shape) == 3
