import math

import keras
import numpy as np
import pytest
from PIL import Image

import keras_vit
from keras_vit.config import Preprocessing
from keras_vit.data import from_dataframe, from_directory
from keras_vit.evaluation.features import extract_features
from keras_vit.images.evaluation_transform import EvaluationTransform
from keras_vit.images.files import decode_image, read_pixels
from keras_vit.weights.timm_config import preprocessing_from_cfg
from keras_vit.weights.transformers_config import preprocessing_from_processor
from tests.peers import peer
from tests.pictures import write_jpegs

pytestmark = pytest.mark.backends("tensorflow")
SIZE = 112
TIMM = {f"timm {p}": preprocessing_from_cfg({"interpolation": "bicubic", "crop_pct": p}) for p in (0.9, 0.875, 1.0)}
# timm pads with the mean.
GRAY = {"mean": [0.5] * 3, "std": [0.5] * 3}
TIMM |= {
    f"timm {mode} {pct}": preprocessing_from_cfg(
        {**GRAY, "interpolation": "bilinear", "crop_pct": pct, "crop_mode": mode}
    )
    for mode in ("squash", "border")
    for pct in (0.9, 1.0)
}
SQUARE = {"height": SIZE, "width": SIZE}
PROCESSORS = {
    "vit": {"size": SQUARE, "resample": 2},
    "siglip": {"size": SQUARE, "resample": 3},
    "deit": {"size": {"height": 128, "width": 128}, "crop_size": SQUARE, "do_center_crop": True, "resample": 3},
    "bit": {"size": {"shortest_edge": 128}, "crop_size": SQUARE, "do_center_crop": True, "resample": 3},
}
CLASSES = {"vit": "ViT", "siglip": "Siglip", "deit": "DeiT", "bit": "Bit"}
RECORDS = {
    "official": Preprocessing(),
    **{name: Preprocessing(**fields) for name, fields in TIMM.items()},
    **{name: Preprocessing(**preprocessing_from_processor("", fields, {})) for name, fields in PROCESSORS.items()},
}
OTHERS = {
    "not filtered": Preprocessing(interpolation="bicubic", antialias=False, crop_fraction=0.8),
    "long": Preprocessing(interpolation="lanczos5"),
    "nearest": Preprocessing(interpolation="nearest", crop_fraction=0.7, resize_mode="pad"),
    "area": Preprocessing(interpolation="area"),
}
CORNERS = [
    ({}, [[0, 0], [1, 1]]),
    # The image is resized to 12 x 24, and 10 x 10 pixels are kept, from 1 and 7.
    ({"crop_fraction": 10 / 12}, [[1 / 12, 7 / 24], [11 / 12, 17 / 24]]),
    # The image is resized to 5 x 10. The smaller half of the padding comes first.
    ({"resize_mode": "pad"}, [[-2 / 5, 0], [8 / 5, 1]]),
]


@pytest.fixture(scope="module")
def tf():
    """TensorFlow, which would take seconds to import where other backends collect this file."""
    return pytest.importorskip("tensorflow")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return write_jpegs(tmp_path_factory.mktemp("images"), 10)


def in_tensorflow(files, record, size=(SIZE, SIZE)):
    transform = EvaluationTransform(size, record)
    return [transform.in_tensorflow(decode_image(file.read_bytes(), 3)).numpy() for file in files]


def near(first, second):
    """Returns the share of pixels that differ by at most one level."""
    return np.mean([np.abs(a - b).max(axis=-1) < 1.01 for a, b in zip(first, second, strict=True)])


@pytest.mark.parametrize("name", [*RECORDS, *OTHERS])
@pytest.mark.parametrize("size", [(SIZE, SIZE), (64, 96)])
def test_numpy_and_tensorflow_agree(files, name, size):
    record = {**RECORDS, **OTHERS}[name]
    transform = EvaluationTransform(size, record)
    in_numpy = [transform.in_numpy(read_pixels(file)) for file in files]
    assert near(in_numpy, in_tensorflow(files, record, size)) > 0.999


def test_half_pixels_are_rounded_to_even_as_in_timm(tf):
    transform = EvaluationTransform((224, 224), keras_vit.Preprocessing(resize_mode="pad"))
    for height, expected in ((201, 100), (202, 101), (203, 102), (205, 102)):
        for xp, size in ((np, (height, 448)), (tf, tf.constant((height, 448), "int64"))):
            new, _ = transform.plan(size, xp)
            assert np.array(new).tolist() == [expected, 224]


def test_default_transform_is_that_of_the_official_code(files, tf):
    for file, image in zip(files, in_tensorflow(files, RECORDS["official"]), strict=True):
        decoded = tf.io.decode_jpeg(file.read_bytes(), 3, dct_method="INTEGER_ACCURATE")
        np.testing.assert_allclose(image, tf.image.resize(decoded, (SIZE, SIZE)), atol=1e-3)


def by_pillow(file, size, mode, fraction, resample, fill=(128, 128, 128)):
    """Transforms an image with Pillow, as timm and torchvision do."""
    image, scaled = Image.open(file).convert("RGB"), math.floor(size / fraction)
    width, height = image.size
    if mode == "squash":
        new = (scaled, scaled)
    elif mode == "border":
        ratio = max(width, height) / scaled
        new = (round(width / ratio), round(height / ratio))
    elif width <= height:
        new = (scaled, int(scaled * height / width))
    else:
        new = (int(scaled * width / height), scaled)
    image = np.asarray(image.resize(new, resample), "float32")
    padding = [(max(size - side, 0) // 2, (max(size - side, 0) + 1) // 2) for side in image.shape[:2]]
    if np.any(padding):
        image = np.stack([np.pad(image[..., i], padding, constant_values=fill[i]) for i in range(3)], axis=-1)
    top, left = (round((side - size) / 2) for side in image.shape[:2])
    return image[top : top + size, left : left + size]


@pytest.mark.parametrize("name", TIMM)
def test_transform_of_timm_config_matches_pillow(files, name):
    mode, fraction = ["center", *name.split()[1:]][-2:]
    theirs = [by_pillow(file, SIZE, mode, float(fraction), 3 if mode == "center" else 2) for file in files]
    assert near(in_tensorflow(files, RECORDS[name]), theirs) > 0.999


@pytest.mark.long
@pytest.mark.parametrize("name", PROCESSORS)
def test_transform_matches_transformers(files, name):
    kind = getattr(peer(f"transformers.models.{name}.image_processing_pil_{name}"), f"{CLASSES[name]}ImageProcessorPil")
    processor = kind(**PROCESSORS[name], do_rescale=False, do_normalize=False)
    shares = []
    for file, image in zip(files, in_tensorflow(files, RECORDS[name]), strict=True):
        picture = Image.open(file).convert("RGB")
        theirs = np.moveaxis(np.array(processor(picture)["pixel_values"][0], "float32"), 0, -1)
        shares.append(near([image], [theirs]))
    assert len(shares) == len(files) and np.mean(shares) > 0.999


@pytest.mark.parametrize(
    "name", ["timm border 0.9", *(pytest.param(name, marks=pytest.mark.long) for name in ("official", "bit"))]
)
def test_pipelines_features_and_export_give_equal_pixels(tmp_path, name, tf):
    record = RECORDS[name]
    for kind in "ab":
        (tmp_path / "images" / kind).mkdir(parents=True)
    files = write_jpegs(tmp_path / "images" / "a", 10)
    files[5:] = [file.rename(tmp_path / "images" / "b" / file.name) for file in files[5:]]
    # This model returns its input images.
    inputs = keras.Input((32, 32, 3))
    carrier = keras_vit.layers.ImageNormalization(record, apply=True, folded=True)
    pixels = keras.Model(inputs, keras.layers.Flatten()(carrier(inputs)))
    options = {"preprocessing": pixels, "training": False, "batch_size": 7}
    folder = from_directory(tmp_path / "images", **options)
    table = from_dataframe({"path": list(map(str, files)), "label": [0] * 5 + [1] * 5}, **options)
    first, second = (np.concatenate([images.numpy() for images, _ in data]) for data in (folder, table))
    np.testing.assert_array_equal(first, second)
    np.testing.assert_array_equal(first, in_tensorflow(files, record, (32, 32)))
    flat = first.reshape(len(first), -1)
    np.testing.assert_array_equal(extract_features(pixels, folder, verbose=0)[0], flat)
    keras_vit.export.saved_model(pixels, tmp_path / "1")
    serve = tf.saved_model.load(str(tmp_path / "1")).signatures["serving_bytes"]
    answer = serve(image_bytes=tf.constant([file.read_bytes() for file in files]))
    (served,) = (value.numpy() for value in answer.values() if value.dtype == tf.float32)
    np.testing.assert_array_equal(served, flat)


@pytest.mark.parametrize("settings, corners", CORNERS)
def test_seen_returns_the_corners_of_the_crop(settings, corners, tf):
    transform = EvaluationTransform((10, 10), keras_vit.Preprocessing(**settings))
    for size, xp in ((np.array([50, 100]), np), (tf.constant([50, 100], "int64"), tf)):
        np.testing.assert_allclose(transform.seen(size, xp), corners)
