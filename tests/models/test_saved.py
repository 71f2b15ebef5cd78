import json
import zipfile

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.models.family import cut_from
from keras_vit.training import enable_lora, merge_lora
from tests.errors import refuses
from tests.golden import GOLDEN_FOLDER
from tests.models.coatnet import test_model as coatnet
from tests.models.small import answers, images
from tests.models.vt_resnet import test_model as vt_resnet
from tests.tiny import build, randomize
from tests.weights.helpers import rewrite_member, unchanged


def saved(model, folder):
    model.save(folder / "model.keras")
    return folder / "model.keras"


@pytest.mark.parametrize(
    "builder, changes",
    [
        (vt_resnet.build, {"image_size": 48}),
        # Files other than Keras' cannot store these positions.
        (lambda: build(position_embedding="learned2d"), {"num_classes": 0}),
        (lambda: build(position_embedding="relative"), {"num_classes": 0}),
    ],
)
def test_model_without_another_format_can_be_changed(tmp_path, builder, changes):
    model = randomize(builder())
    other = keras_vit.from_pretrained(saved(model, tmp_path), **changes)
    assert other.config == model.config.replace(**changes)
    assert unchanged(other, model.get_weights()[: len(other.weights)])


@pytest.mark.parametrize("changes", [{}, {"pooling": "gap", "num_registers": 2}, {"distillation_token": True}])
def test_larger_images_resize_the_positions(tmp_path, changes):
    model = randomize(build(class_names=list("abcde"), **changes))
    larger = keras_vit.from_pretrained(saved(model, tmp_path), image_size=24, drop_path_rate=0.1)
    assert larger.config == model.config.replace(image_size=24) and larger.config.class_names == tuple("abcde")
    # The file of weights is resized alike.
    keras_vit.save_weights(model, tmp_path / "model.safetensors", "timm", allow=("activation",))
    again = keras_vit.from_pretrained(tmp_path / "model.safetensors", image_size=24, position_interpolation="linear")
    x = images(2, 24, 24, 3)
    np.testing.assert_allclose(answers(larger, x), answers(again, x), rtol=1e-4, atol=1e-5)


def test_larger_images_are_resized_as_by_the_source(tmp_path):
    path, x = GOLDEN_FOLDER / "timm_deit_distilled.safetensors", images(1, 64, 64, 3)
    model = keras_vit.from_pretrained(path, num_heads=4)
    keras_vit.save_weights(model, tmp_path / "model", "huggingface")
    expected = keras_vit.from_pretrained(path, num_heads=4, image_size=64)
    for file in (saved(model, tmp_path), tmp_path / "model"):
        larger = keras_vit.from_pretrained(file, image_size=64)
        assert larger.config == expected.config and larger.config.position_interpolation == "bicubic_antialias"
        np.testing.assert_allclose(answers(larger, x), answers(expected, x), rtol=1e-4, atol=1e-5)


def test_other_classes_give_a_head_of_zeros(tmp_path):
    model = randomize(build(class_names=list("abcde"), task="multi_label"))
    other = keras_vit.from_pretrained(saved(model, tmp_path), num_classes=3)
    assert not answers(other, images(2, 16, 16, 3)).any()
    assert (other.config.class_names, other.config.task) == (None, "single_label")
    np.testing.assert_array_equal(*(m.get_layer("block_01").attention.qkv.kernel for m in (model, other)))
    skipped = keras_vit.from_pretrained(tmp_path / "model.keras", skip="head", image_size=24)
    assert skipped.config.num_classes == 5 and not answers(skipped, images(2, 24, 24, 3)).any()


def test_change_that_needs_other_weights_is_refused(tmp_path):
    path = saved(build(), tmp_path)
    message = "(?s)differ in hidden_dim.*With another shape.*patch_embedding/kernel"
    refuses(message, keras_vit.from_pretrained, path, hidden_dim=24)
    for more in ({}, {"num_classes": 7}):
        refuses("not in the file .1.:\n    registers/tokens", keras_vit.from_pretrained, path, num_registers=1, **more)


def test_other_heads_of_the_same_width_are_refused(tmp_path):
    path = saved(build(), tmp_path)
    assert keras_vit.from_pretrained(path, num_heads=3).config.num_heads == build().config.num_heads == 3
    refuses("(?s)Nothing was loaded.*differ in num_heads", keras_vit.from_pretrained, path, num_heads=1)


def test_file_with_lora_has_to_be_merged_first(tmp_path):
    enable_lora(model := build(), 2)
    message = "(?s)lora_kernel_a.* apply keras_vit.training.merge_lora"
    refuses(message, keras_vit.from_pretrained, saved(model, tmp_path), image_size=24)
    assert keras_vit.from_pretrained(saved(merge_lora(model), tmp_path), image_size=24).input_shape == (None, 24, 24, 3)


def test_folded_wrapped_or_cut_model_cannot_be_changed(tmp_path):
    model = build()
    around = keras.Model(model.input, keras.layers.Dense(2)(model.output))
    cut = cut_from(model, model.input, model.get_layer("pre_logits").output)
    folded = keras_vit.fold_preprocessing(build(include_preprocessing=True))
    names = {"a Functional. Call model": around, "a model cut before its head": cut, "a model folded by": folded}
    for name, changed in names.items():
        path = saved(changed, tmp_path)
        assert keras_vit.from_pretrained(path).output_shape == changed.output_shape
        refuses(f"whole model .* Received: {name}", keras_vit.from_pretrained, path, image_size=24)


def test_any_size_keeps_the_size_of_the_tables(tmp_path):
    model = randomize(build(image_size=24))
    again = keras_vit.from_pretrained(saved(model, tmp_path), image_size=(None, None))
    x = images(2, 24, 24, 3)
    assert again.config.grid == (6, 6)
    np.testing.assert_allclose(answers(again, x), answers(model, x), rtol=1e-5, atol=1e-6)
    model = coatnet.build(image_size=64)
    coatnet.randomize(model, np.random.default_rng(0))
    again = keras_vit.from_pretrained(saved(model, tmp_path), image_size=(None, None))
    x = images(2, 64, 64, 3)
    np.testing.assert_allclose(answers(again, x), answers(model, x), rtol=1e-4, atol=1e-5)
    fixed = keras_vit.from_pretrained(saved(again, tmp_path), image_size=64)
    assert fixed.config == model.config
    np.testing.assert_allclose(answers(fixed, x), answers(model, x), rtol=1e-5, atol=1e-6)


def test_class_names_have_to_fit_the_classes(tmp_path):
    path = saved(build(), tmp_path)
    named = keras_vit.from_pretrained(path, class_names=["a", "b"], num_classes=2)
    assert named.config.class_names == ("a", "b")
    assert keras_vit.from_pretrained(saved(named, tmp_path), class_names=None).config.class_names is None


def test_new_head_leaves_out_pre_logits_and_both_heads(tmp_path):
    path = saved(randomize(build(representation_size=6)), tmp_path)
    assert keras_vit.from_pretrained(path, num_classes=3).config.representation_size is None
    assert keras_vit.from_pretrained(path, image_size=24).config.representation_size == 6
    path = saved(build(distillation_token=True, return_both_heads=True), tmp_path)
    assert keras_vit.from_pretrained(path, num_classes=0).output_shape == (None, 12)
    assert len(keras_vit.from_pretrained(path, num_classes=3).outputs) == 2


def test_head_of_the_same_classes_is_not_replaced(tmp_path):
    message, path = "With another shape .1.:\n    head/kernel", saved(build(), tmp_path)
    refuses(message, keras_vit.from_pretrained, path, pooling="token_gap")


def test_keras_file_loads_like_any_file(tmp_path):
    model, other = randomize(build()), build(num_classes=3)
    path = saved(model, tmp_path)
    report = keras_vit.load_weights(other, path)
    assert report.source == "keras_model" and set(report.kept) == {"head/kernel", "head/bias"}
    assert len(report.loaded) == len(model.weights) - 2
    refuses("trained with activation='gelu_tanh'", keras_vit.load_weights, build(activation="gelu"), tmp_path)
    built = build(weights=path, image_size=24, position_interpolation="bicubic")
    expected = keras_vit.from_pretrained(path, image_size=24, position_interpolation="bicubic")
    np.testing.assert_allclose(answers(built, images(1, 24, 24, 3)), answers(expected, images(1, 24, 24, 3)), atol=1e-6)
    for name, value in {"source": "timm", "grid_size": (4, 4), "architecture": "vit", "sha256": "0" * 64}.items():
        refuses(name if name != "sha256" else "its SHA-256 is", keras_vit.from_pretrained, path, **{name: value})


def of_version_0_2(data):
    """Removes what version 0.2 did not write from the config of a saved ViT."""
    config = json.loads(data)
    (layer,) = (layer for layer in config["config"]["layers"] if layer["name"] == "normalization")
    fields = layer["config"]["config"]
    layer["config"]["apply"] = fields.pop("include_preprocessing")
    task = fields.pop("task")
    fields |= {"multi_label": task == "multi_label", "regression": task == "regression"}
    del fields["token_merging"]
    return json.dumps({**config, "registered_name": "keras_vit>VisionTransformer"}).encode()


def test_file_of_version_0_2_keeps_its_settings(tmp_path):
    model = randomize(build(token_merging=(2, 0), task="multi_label", include_preprocessing=True))
    again = keras_vit.from_pretrained(rewrite_member(saved(model, tmp_path), "config.json", of_version_0_2))
    assert again.config == model.config and again.config.task == "multi_label"
    assert again.config.token_merging == (2, 0) and again.config.include_preprocessing


def test_archive_that_expands_is_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "model.keras", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("config.json", " " * 20_000_000)
    refuses("Cannot read .*model.keras.*its members expand to", keras_vit.from_pretrained, tmp_path / "model.keras")
