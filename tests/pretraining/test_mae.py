import keras
import numpy as np
import pytest

from keras_vit.layers import PositionEmbedding
from keras_vit.pretraining import MAE
from tests import tiny
from tests.errors import refuses
from tests.pretraining.images import numpy_patches, raw_images

RNG = np.random.default_rng(0)
IMAGES = RNG.normal(size=(2, 16, 16, 3)).astype("float32")


@pytest.mark.parametrize("norm_pixels", [True, False])
def test_loss_equals_numpy(norm_pixels):
    backbone = tiny.build(preprocessing={"mean": 0.4, "std": 0.3}, include_preprocessing=True)
    model = MAE(backbone, decoder_num_layers=1, norm_pixels=norm_pixels)
    raw = raw_images(2)
    raw[0, :4, :4] = 9
    prediction = RNG.normal(size=(2, 16, 48)).astype("float32")
    mask = RNG.random((2, 16)) < 0.75
    mask[0, 0] = True
    found = model.compute_loss(raw, None, {"prediction": keras.ops.convert_to_tensor(prediction), "mask": mask})
    target = numpy_patches((raw / 255 - 0.4) / 0.3)
    if norm_pixels:
        target = target - target.mean(axis=-1, keepdims=True)
        target = target / np.sqrt(target.var(axis=-1, ddof=1, keepdims=True) + 1e-6)
    expected = ((prediction - target) ** 2).mean(axis=-1)[mask].mean()
    np.testing.assert_allclose(float(found), expected, rtol=1e-5)


@pytest.mark.parametrize("changes", [{}, {"num_registers": 2, "position_embedding": "sincos2d", "pooling": "gap"}])
def test_encoder_sees_visible_patches_only(changes):
    model = MAE(tiny.build(**changes), decoder_num_layers=1)
    hidden = model.draw(2, 0)
    mask = keras.ops.convert_to_numpy(hidden["mask"])
    assert (mask.sum(axis=1) == 12).all()
    pixels = np.kron(mask.reshape(2, 4, 4), np.ones((4, 4))).astype(bool)[..., None]
    noise = RNG.normal(size=IMAGES.shape).astype("float32")
    same, other = np.where(pixels, noise, IMAGES), np.where(pixels, IMAGES, noise)
    tokens = [keras.ops.convert_to_numpy(model.encode(x, hidden)) for x in (IMAGES, same, other)]
    assert tokens[0].shape == (2, model.encoder.num_prefix_tokens + 4, 12)
    np.testing.assert_array_equal(tokens[0], tokens[1])
    assert np.abs(tokens[0] - tokens[2]).max() > 1e-3
    # The prediction depends on nothing else.
    drawn = [keras.ops.convert_to_numpy(model(x, hidden=hidden)["prediction"]) for x in (IMAGES, same)]
    np.testing.assert_array_equal(*drawn)


def test_visible_tokens_keep_their_positions():
    """The backbone's layers, run one by one on the visible tokens, give the same result."""
    backbone = tiny.build()
    model = MAE(backbone, mask_ratio=0.05, decoder_num_layers=1)
    hidden = model.draw(2, 0)
    kept = keras.ops.convert_to_numpy(hidden["kept"])
    tap = keras.Model(backbone.input, backbone.get_layer("position_embedding").output)
    tokens = keras.ops.convert_to_numpy(tap(IMAGES))
    chosen = np.stack([np.concatenate([t[:1], t[1:][k]]) for t, k in zip(tokens, kept, strict=True)])
    for name in ("block_00", "block_01", "norm"):
        chosen = backbone.get_layer(name)(chosen)
    found = model.encode(IMAGES, hidden)
    np.testing.assert_allclose(*(keras.ops.convert_to_numpy(x) for x in (found, chosen)), atol=1e-5)


def test_decoder_restores_order_and_adds_mask_tokens():
    model = MAE(tiny.build(), decoder_num_layers=1, decoder_hidden_dim=8)
    hidden = model.draw(2, 0)
    mask = keras.ops.convert_to_numpy(hidden["mask"])[0]
    seen = []
    model.decoder_blocks[0].call = lambda tokens, training=None: seen.append(tokens) or tokens
    model(IMAGES, hidden=hidden)
    tokens = keras.ops.convert_to_numpy(seen[0])[0]
    positions = PositionEmbedding((4, 4), method="sincos2d", num_prefix_tokens=1)
    tokens = tokens - keras.ops.convert_to_numpy(positions(np.zeros((1, 17, 8), "float32")))[0]
    token = keras.ops.convert_to_numpy(model.mask_token)[0, 0]
    is_token = np.abs(tokens[1:] - token).max(axis=-1) < 1e-5
    np.testing.assert_array_equal(is_token, mask)
    embedded = keras.ops.convert_to_numpy(model.decoder_embedding(model.encode(IMAGES, hidden)))[0]
    kept = keras.ops.convert_to_numpy(hidden["kept"])[0]
    np.testing.assert_allclose(tokens[0], embedded[0], atol=1e-5)
    np.testing.assert_allclose(tokens[1:][kept], embedded[1:], atol=1e-5)


def test_reconstruction_undoes_pixel_normalization():
    model = MAE(tiny.build(preprocessing={"mean": (0.2, 0.4, 0.5), "std": (0.1, 0.3, 0.2)}), decoder_num_layers=1)
    raw = IMAGES * (25.5, 76.5, 51) + (51, 102, 127.5)
    pattern = RNG.normal(size=48)
    model.head.set_weights([np.zeros(model.head.kernel.shape), pattern])
    original, masked, prediction = model.reconstruct(IMAGES, seed=0)
    np.testing.assert_allclose(original, np.clip(raw, 0, 255), atol=1e-3)
    patches = numpy_patches(IMAGES)
    expected = pattern * patches.std(axis=-1, ddof=1, keepdims=True) + patches.mean(axis=-1, keepdims=True)
    expected = np.clip(expected * np.tile((25.5, 76.5, 51), 16) + np.tile((51, 102, 127.5), 16), 0, 255)
    mask = keras.ops.convert_to_numpy(model.draw(2, 0)["mask"])
    np.testing.assert_allclose(numpy_patches(prediction)[mask], expected[mask], atol=1e-2)
    np.testing.assert_allclose(numpy_patches(prediction)[~mask], numpy_patches(original)[~mask], atol=1e-3)
    assert (numpy_patches(masked)[mask] == 127.5).all()


def test_decoder_size_follows_the_encoder_by_default():
    model = MAE(tiny.build(hidden_dim=96, num_heads=3))
    blocks = [block.get_config() for block in model.decoder_blocks]
    assert [(block["num_heads"], block["mlp_dim"]) for block in blocks] == [(2, 256)] * 4
    assert model.decoder_embedding.units == 64


def test_unsupported_backbones_and_ratios():
    for changes in ({"position_embedding": "relative"}, {"rotary_embedding": "axial"}):
        refuses("without relative or rotary positions", MAE, tiny.build(**changes))
    refuses("without a ResNet before", MAE, tiny.build(stages=(), width_factor=0.5, image_size=32, patch_size=2))
    refuses("leaves at least 1 of 16 patches visible. Received: 0.95", MAE, tiny.build(), mask_ratio=0.95)
