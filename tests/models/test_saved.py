import keras
import numpy as np
import pytest

import keras_vit
from tests.models.coatnet import test_model as coatnet
from tests.models.small import answers, images
from tests.tiny import build, randomize


def saved(model, folder):
    model.save(folder / "model.keras")
    return folder / "model.keras"


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


def test_other_classes_give_a_head_of_zeros(tmp_path):
    model = randomize(build(class_names=list("abcde"), task="multi_label"))
    other = keras_vit.from_pretrained(saved(model, tmp_path), num_classes=3)
    assert not answers(other, images(2, 16, 16, 3)).any()
    assert (other.config.class_names, other.config.task) == (None, "single_label")
    np.testing.assert_array_equal(*(m.get_layer("block_01").attention.qkv.kernel for m in (model, other)))


def test_unchanged_size_gives_the_same_model(tmp_path):
    model = coatnet.build()
    coatnet.randomize(model, np.random.default_rng(0))
    again = keras_vit.from_pretrained(saved(model, tmp_path), image_size=model.config.image_size)
    x = images(2, *model.config.image_size, 3)
    np.testing.assert_allclose(answers(again, x), answers(model, x), rtol=1e-5, atol=1e-6)
    larger = keras_vit.from_pretrained(tmp_path / "model.keras", image_size=64)
    assert larger.config.image_size == (64, 64) and np.isfinite(answers(larger, images(1, 64, 64, 3))).all()


def test_change_that_needs_other_weights_is_refused(tmp_path):
    path = saved(build(), tmp_path)
    with pytest.raises(ValueError, match="Received: hidden_dim, which need other weights: patch_embedding/kernel"):
        keras_vit.from_pretrained(path, hidden_dim=24)
    with pytest.raises(ValueError, match="Received: num_registers, which need other weights: registers/tokens"):
        keras_vit.from_pretrained(path, num_registers=1)
    with pytest.raises(ValueError, match="Received: num_classes, num_registers, which need other weights"):
        keras_vit.from_pretrained(path, num_registers=1, num_classes=7)


def test_other_heads_of_the_same_width_are_refused(tmp_path):
    path = saved(build(), tmp_path)
    heads = build().config.num_heads
    assert keras_vit.from_pretrained(path, num_heads=heads).config.num_heads == heads > 1
    with pytest.raises(ValueError, match="Received: num_heads, which need other weights: block_00/attention"):
        keras_vit.from_pretrained(path, num_heads=1)


def test_model_around_a_builder_cannot_be_changed(tmp_path):
    backbone = build(num_classes=0)
    model = keras.Model(backbone.input, keras.layers.Dense(2)(backbone.output))
    path = saved(model, tmp_path)
    assert keras_vit.from_pretrained(path).output_shape == (None, 2)
    with pytest.raises(ValueError, match="to change image_size. Received: a Functional around it"):
        keras_vit.from_pretrained(path, image_size=24)
