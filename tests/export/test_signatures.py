"""Models of every kind have the signatures, and answer as the model does."""

import functools

import keras
import numpy as np
import pytest
from keras import ops

import keras_vit
from keras_vit import export
from keras_vit.evaluation_transform import EvaluationTransform
from keras_vit.image_files import read_image
from keras_vit.inspection import attention_rollout
from tests.export.bodies import encoded, strings
from tests.export.server import Refused, Server
from tests.tiny import build

pytest.importorskip("tensorflow", reason="SavedModels are written by TensorFlow")


@keras.saving.register_keras_serializable(package="tests")
class Scaled(keras.layers.Layer):
    """A user's own head."""

    def build(self, shape):
        self.scale = self.add_weight(shape=(shape[-1],), initializer="glorot_uniform", name="scale")

    def call(self, x):
        return x * self.scale


def own_head():
    backbone = build(num_classes=0)
    return keras.Model(backbone.input, {"cosine": Scaled()(backbone.output), "features": backbone.output})


def nested():
    inner = keras.Sequential([keras.Input((16, 16, 3)), build(num_classes=0)])
    return keras.Sequential([keras.Input((16, 16, 3)), inner, keras.layers.Dense(3), Scaled()])


def mixed():
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        return build()
    finally:
        keras.config.set_dtype_policy("float32")


# For each a builder, the options, and what the signature takes and answers.
KINDS = {
    "any_size": (
        lambda: build(image_size=(None, None), grid_size=(4, 4)),
        {"image_size": (12, 20), "max_input_pixels": 32 * 32},
        "images float32 (None, None, None, 3) -> outputs float32 (None, 5)",
    ),
    "own_head": (
        own_head,
        {},
        "images float32 (None, 16, 16, 3) -> cosine float32 (None, 12), features float32 (None, 12)",
    ),
    "nested": (
        nested,
        {"postprocess": "classify", "top": 9},
        "images float32 (None, 16, 16, 3) -> classes int32 (None, 3), labels string (None, 3), "
        "outputs float32 (None, 3), probabilities float32 (None, 3), scores float32 (None, 3)",
    ),
    "headless": (
        lambda: build(num_classes=0, pooling=None),
        {},
        "images float32 (None, 16, 16, 3) -> outputs float32 (None, 17, 12)",
    ),
    "distilled": (
        lambda: build(distillation_token=True, return_both_heads=True),
        {},
        "images float32 (None, 16, 16, 3) -> head float32 (None, 5), head_dist float32 (None, 5)",
    ),
    "features": (
        lambda: keras_vit.features(build(), blocks=(0, 1), format="map"),
        {},
        "images float32 (None, 16, 16, 3) -> patch_map_0 float32 (None, 4, 4, 12), "
        "patch_map_1 float32 (None, 4, 4, 12)",
    ),
    "multi_label": (
        build,
        {"postprocess": "multi_label", "top": 1},
        "images float32 (None, 16, 16, 3) -> classes int32 (None, 1), labels string (None, 1), "
        "outputs float32 (None, 5), probabilities float32 (None, 5), scores float32 (None, 1)",
    ),
    "grey_raw": (
        lambda: build(in_channels=1, include_preprocessing=True),
        {},
        "images float32 (None, 16, 16, 1) -> outputs float32 (None, 5)",
    ),
    "five_channels": (
        lambda: build(in_channels=5),
        {},
        "images float32 (None, 16, 16, 5) -> outputs float32 (None, 5)",
    ),
    "hybrid": (
        lambda: build(stages=(1, 1), width_factor=0.5, patch_size=1, image_size=32),
        {},
        "images float32 (None, 32, 32, 3) -> outputs float32 (None, 5)",
    ),
    "token_merging": (
        lambda: build(token_merging=3, pooling="gap", num_registers=1),
        {},
        "images float32 (None, 16, 16, 3) -> outputs float32 (None, 5)",
    ),
    "mixed_precision": (mixed, {}, "images float32 (None, 16, 16, 3) -> outputs float32 (None, 5)"),
}
# In a process of its own each takes seconds, and the graph is the same.
if keras.backend.backend() != "tensorflow":
    KINDS = {kind: KINDS[kind] for kind in ("any_size", "own_head")}


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """A function from a kind to its model and its SavedModel's folder."""

    @functools.cache
    def of(kind):
        keras.utils.set_random_seed(0)
        make, options, _ = KINDS[kind]
        model, path = make(), tmp_path_factory.mktemp(kind) / "1"
        export.saved_model(model, path, **options)
        return model, path

    return of


def images_for(model, count=3):
    size = [side or 24 for side in model.input_shape[1:]]
    return np.random.default_rng(count).uniform(-1, 1, (count, *size)).astype("float32")


@pytest.mark.backends("tensorflow", "torch")
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_its_signatures_and_the_models_answers(exported, kind):
    import tensorflow as tf

    model, path = exported(kind)
    described = dict(line.split(": ", 1) for line in export.describe(path).splitlines())
    assert described["serving_default"] == KINDS[kind][2]
    assert ("serving_bytes" in described) == (kind != "five_channels")
    images = images_for(model)
    answer = tf.saved_model.load(path).signatures["serving_default"](images=tf.constant(images))
    outputs = model(images, training=False)
    if isinstance(outputs, dict):
        pairs = [(answer[name], outputs[name]) for name in outputs]
    else:
        outputs = keras.tree.flatten(outputs)
        names = ["outputs"] if len(outputs) == 1 else KINDS[kind][2].split("-> ")[1].split(", ")
        pairs = zip([answer[name.split()[0]] for name in names if name[0].isalpha()], outputs, strict=True)
    tolerance = 0.05 if kind == "mixed_precision" else 1e-5
    for received, output in pairs:
        np.testing.assert_allclose(received, ops.convert_to_numpy(ops.cast(output, "float32")), atol=tolerance, rtol=0)
    if kind == "multi_label":
        np.testing.assert_allclose(answer["probabilities"], 1 / (1 + np.exp(-answer["outputs"])), atol=1e-6)
        assert answer["labels"].numpy().tolist() == [[str(i).encode()] for i in answer["outputs"].numpy().argmax(1)]


@pytest.mark.backends("tensorflow", "torch")
def test_a_model_of_any_size_takes_what_its_limits_allow(exported):
    model, path = exported("any_size")
    server = Server(path)
    for size in ((16, 16), (9, 30), (32, 32)):
        images = np.random.default_rng(0).uniform(-1, 1, (2, *size, 3)).astype("float32")
        expected = ops.convert_to_numpy(model(images, training=False))
        np.testing.assert_allclose(server.ask("serving_default", images=images)["outputs"], expected, atol=1e-5)
    for size in ((32, 33), (0, 5), (5, 0), (1, 1), (3, 300)):
        for signature, dtype in (("serving_default", "float32"), ("serving_uint8", "uint8")):
            with pytest.raises(Refused):
                server.ask(signature, images=np.zeros((1, *size, 3), dtype))
    answer = server.ask("serving_bytes", image_bytes=strings(encoded(1), encoded(2, "PNG")))
    assert answer["status"].tolist() == [b"ok", b"ok"] and answer["outputs"].all()
    server.close()


def rescaled():
    """A model that makes [-1, 1] of raw images before it gives them to a ViT that takes those."""
    scaling = keras.Sequential([keras.Input((16, 16, 3)), keras.layers.Rescaling(1 / 127.5, offset=-1)])
    return keras.Sequential([keras.Input((16, 16, 3)), scaling, build()])


def test_what_scales_images_before_the_constants_is_asked_about(tmp_path):
    import tensorflow as tf

    model = rescaled()
    with pytest.raises(ValueError, match="Received: model.*with rescaling.* before it.*normalization="):
        export.saved_model(model, tmp_path / "1")
    if keras.backend.backend() != "tensorflow":
        # A process of its own would take seconds to write the same.
        return
    export.saved_model(model, tmp_path / "1", normalization=keras_vit.layers.ImageNormalization(apply=True))
    images = np.random.default_rng(0).integers(0, 256, (2, 16, 16, 3), "uint8")
    answer = tf.saved_model.load(tmp_path / "1").signatures["serving_uint8"](images=tf.constant(images))
    expected = ops.convert_to_numpy(model(images.astype("float32"), training=False))
    np.testing.assert_allclose(answer["outputs"], expected, atol=1e-5, rtol=0)


class Wrapped(keras.Model):
    """A model that is no graph."""

    def __init__(self, vit, **kwargs):
        super().__init__(**kwargs)
        self.vit = vit

    def call(self, images):
        return self.vit(images / 127.5 - 1)


def test_a_path_to_the_constants_that_cannot_be_followed_is_asked_about(tmp_path):
    model = keras.Sequential([keras.Input((16, 16, 3)), Wrapped(build())])
    with pytest.raises(ValueError, match="a custom class.*normalization="):
        export.saved_model(model, tmp_path / "1")


def test_layers_that_keep_the_scale_may_stand_before_the_constants(tmp_path):
    augmentation = keras.Sequential([keras.layers.RandomFlip(), keras.layers.RandomRotation(0.1)])
    layers = [augmentation, keras.layers.Resizing(16, 16), keras.layers.Identity(), build()]
    model = keras.Sequential([keras.Input((20, 20, 3)), *layers])
    if keras.backend.backend() == "tensorflow":
        assert export.saved_model(model, tmp_path / "1").difference < 1e-5


# For each a builder, the size that files are resized to, and the part of that which the patches cover.
ATTENTIVE = {
    "remainder": (lambda: build(image_size=(18, 15), crop_fraction=0.8, num_registers=2), (18, 15), (16 / 18, 12 / 15)),
    "own_head": (own_head, (16, 16), (1, 1)),
    "any_size": (lambda: build(image_size=(None, None), grid_size=(4, 4), pooling="gap"), (12, 20), (1, 1)),
}
# In a process of its own each takes seconds, and the graph is the same.
if keras.backend.backend() != "tensorflow":
    ATTENTIVE = {"remainder": ATTENTIVE["remainder"]}


@pytest.mark.backends("tensorflow", "torch")
@pytest.mark.parametrize("kind", ATTENTIVE)
def test_attention_is_that_of_inspection(kind, tmp_path):
    import tensorflow as tf

    keras.utils.set_random_seed(0)
    make, size, covered = ATTENTIVE[kind]
    model = make()
    options = {"image_size": size} if kind == "any_size" else {}
    export.saved_model(model, tmp_path / "1", attention=True, warm_up=(), **options)
    files = [encoded(1, "PNG"), encoded(2)[:200], encoded(3, "PNG")]
    signatures = tf.saved_model.load(tmp_path / "1").signatures
    answer, plain = (signatures[f"serving_{name}"](image_bytes=tf.constant(files)) for name in ("attention", "bytes"))
    assert set(answer) == {*plain, "attention", "attention_corners"}
    for name in set(plain) - {"status"}:
        np.testing.assert_allclose(answer[name], plain[name], atol=1e-5, rtol=0, err_msg=name)
    assert answer["status"].numpy().tolist() == plain["status"].numpy().tolist() == [b"ok", b"damaged", b"ok"]
    assert not answer["attention"][1].numpy().any() and not answer["attention_corners"][1].numpy().any()
    transform = EvaluationTransform(size, keras_vit.config_of(model).preprocessing)
    images = [transform.in_numpy(read_image(data, model.input_shape[-1])) for data in (files[0], files[2])]
    expected = attention_rollout(model, keras_vit.preprocess_input(np.stack(images), model))
    # A map of one value alike everywhere would be right by chance.
    assert expected.std() > 1e-4
    np.testing.assert_allclose(answer["attention"].numpy()[[0, 2]], expected, atol=1e-5, rtol=0)
    (top, left), (bottom, right) = transform.seen(np.array((20, 30)))
    corners = [[top, left], [top + (bottom - top) * covered[0], left + (right - left) * covered[1]]]
    np.testing.assert_allclose(answer["attention_corners"].numpy()[[0, 2]], [corners] * 2, rtol=1e-6)


def named_attention():
    vit = build()
    return keras.Model(vit.input, {"attention": vit.output, "other": vit.output})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: keras_vit.BiTR50x1(image_size=32), "holds a ViT.*'bit"),
        (lambda: keras_vit.EfficientNetB0(image_size=32), "holds a ViT.*'efficientnet"),
        (lambda: keras_vit.CoAtNet0(image_size=32), "holds a ViT.*'coatnet"),
        (lambda: build(token_merging=3), "without token merging"),
        (lambda: build(in_channels=5), "1 or 3 channels.*5 channels"),
        (named_attention, "no output named 'status' or 'attention'"),
    ],
    ids=["bit", "efficientnet", "coatnet", "token_merging", "five_channels", "named_attention"],
)
def test_attention_is_refused_where_it_means_nothing(make, message, tmp_path):
    with pytest.raises(ValueError, match=message) as refusal:
        export.saved_model(make(), tmp_path / "1", attention=True)
    assert "attention" in str(refusal.value) and not any(tmp_path.iterdir())
