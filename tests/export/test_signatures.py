"""Each kind of model is exported with its signatures and returns the outputs of the model."""

import functools

import keras
import numpy as np
import pytest
from keras import ops

import keras_vit
from keras_vit import export
from keras_vit.images.evaluation_transform import EvaluationTransform
from keras_vit.images.files import read_pixels
from keras_vit.inspection import attention_rollout
from tests.errors import refuses
from tests.export.bodies import encoded, strings
from tests.export.server import Refused, Server
from tests.models.coatnet.test_model import build as coatnet
from tests.tiny import build

pytest.importorskip("tensorflow", reason="SavedModels are written by TensorFlow")

NAMES = ["ant", "bee", "cat", "dog", "emu"]
# Each kind has the size that files are resized to, and the part of that size that the patches cover.
ATTENTIVE = {"remainder": ((18, 15), (16 / 18, 0.8)), "own_head": ((16, 16), (1, 1)), "any_size": ((12, 20), (1, 1))}
ATTENTIVE |= {"hybrid": ((32, 32), (1, 1)), "rotary_map": ((16, 16), (1, 1))}


@keras.saving.register_keras_serializable(package="tests")
class Scaled(keras.layers.Layer):
    """A head that a user defined."""

    def build(self, shape):
        self.scale = self.add_weight(shape=(shape[-1],), initializer="glorot_uniform", name="scale")

    def call(self, x):
        return x * self.scale


def own_head():
    backbone = build(num_classes=0)
    return keras.Model(backbone.input, {"classes": Scaled()(backbone.output), "features": backbone.output})


def nested():
    """A model in a model, behind layers that keep the scale of the images."""
    inner = keras.Sequential([keras.Input((16, 16, 3)), build(num_classes=0)])
    augmentation = keras.Sequential([keras.layers.RandomFlip(), keras.layers.RandomRotation(0.1)])
    scale_kept = [augmentation, keras.layers.Resizing(16, 16), keras.layers.Identity()]
    return keras.Sequential([keras.Input((20, 20, 3)), *scale_kept, inner, keras.layers.Dense(3), Scaled()])


def kind(builder, outputs, size="16, 16, 3", **options):
    """Returns the builder of a model, the options of its export, and the signature serving_default."""
    return builder, options, f"images float32 (None, {size}) -> {outputs}"


def top(count, classes):
    """Returns the outputs of a model with `postprocess`."""
    best = f"classes int32 (None, {count}), labels string (None, {count})"
    every = f"outputs float32 (None, {classes}), probabilities float32 (None, {classes})"
    return f"{best}, {every}, scores float32 (None, {count})"


LOGITS = "outputs float32 (None, 5)"
MAPS = ", ".join(f"patch_map_{i} float32 (None, 4, 4, 12)" for i in (0, 1))
ANY_SIZE = {"image_size": (None, None), "grid_size": (4, 4), "pooling": "gap"}
LIMITS = {"image_size": (12, 20), "max_input_pixels": 32 * 32, "attention": True}
HYBRID = {"stages": (1, 1), "width_factor": 0.5, "patch_size": 1, "image_size": 32}
ROTARY_MAP = {"pooling": "map", "num_registers": 1, "position_embedding": "none", "rotary_embedding": "eva02"}
REMAINDER = {"image_size": (18, 15), "preprocessing": {"crop_fraction": 0.8}, "num_registers": 2}
GRAY = {"in_channels": 1, "include_preprocessing": True, "class_names": NAMES}
MULTI_LABEL = {"postprocess": "multi_label", "top": 1}
KINDS = {
    "any_size": kind(lambda: build(**ANY_SIZE), LOGITS, "None, None, 3", **LIMITS),
    "own_head": kind(own_head, "classes float32 (None, 12), features float32 (None, 12)", attention=True),
    "remainder": kind(lambda: build(**REMAINDER), LOGITS, "18, 15, 3", attention=True),
    "nested": kind(nested, top(3, 3), "20, 20, 3", postprocess="classify", top=9),
    "headless": kind(lambda: build(num_classes=0, pooling="none"), "outputs float32 (None, 17, 12)"),
    "features": kind(lambda: keras_vit.features(build(), blocks=(0, 1), format="map"), MAPS),
    "gray_multi_label": kind(lambda: build(**GRAY), top(1, 5), "16, 16, 1", **MULTI_LABEL),
    "five_channels_bfloat16": kind(lambda: build(in_channels=5, dtype="mixed_bfloat16"), LOGITS, "16, 16, 5"),
    "hybrid": kind(lambda: build(**HYBRID), LOGITS, "32, 32, 3", attention=True),
    "rotary_map": kind(lambda: build(**ROTARY_MAP), LOGITS, attention=True),
    "token_merging": kind(lambda: build(token_merging=3, pooling="gap", num_registers=1), LOGITS),
}
# JAX and PyTorch export in a child process, which takes seconds. These kinds add no branch of the export.
MARKS = dict.fromkeys(("headless", "hybrid", "rotary_map", "token_merging"), pytest.mark.long)
MARKS["own_head"] = pytest.mark.long_elsewhere


def kinds(names):
    return pytest.mark.parametrize("name", [pytest.param(name, marks=MARKS.get(name, ())) for name in names])


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """Returns a function from a kind to its model and the folder of its SavedModel."""

    @functools.cache
    def of(name):
        keras.utils.set_random_seed(0)
        make, options, _ = KINDS[name]
        model, path = make(), tmp_path_factory.mktemp(name) / "1"
        export.saved_model(model, path, **options)
        return model, path

    return of


@kinds(KINDS)
def test_exported_kind_has_signatures_and_outputs(exported, name):
    import tensorflow as tf

    model, path = exported(name)
    described = dict(line.split(": ", 1) for line in export.describe(path).splitlines())
    assert described["serving_default"] == KINDS[name][2]
    assert ("serving_bytes" in described) == (model.input_shape[-1] != 5)
    size = [side or 24 for side in model.input_shape[1:]]
    images = np.random.default_rng(3).uniform(-1, 1, (3, *size)).astype("float32")
    answer = tf.saved_model.load(path).signatures["serving_default"](images=tf.constant(images))
    outputs = model(images, training=False)
    if isinstance(outputs, dict):
        pairs = [(answer[key], outputs[key]) for key in outputs]
    else:
        outputs = keras.tree.flatten(outputs)
        keys = ["outputs"] if len(outputs) == 1 else ["patch_map_0", "patch_map_1"]
        pairs = zip([answer[key] for key in keys], outputs, strict=True)
    tolerance = 0.05 if name == "five_channels_bfloat16" else 1e-5
    for received, output in pairs:
        np.testing.assert_allclose(received, ops.convert_to_numpy(ops.cast(output, "float32")), atol=tolerance, rtol=0)
    if "labels" in answer:
        best = np.argsort(-answer["outputs"].numpy())[:, : answer["labels"].shape[1]]
        names = NAMES if name == "gray_multi_label" else ["0", "1", "2"]
        assert answer["labels"].numpy().astype(str).tolist() == np.array(names)[best].tolist()
    if name == "gray_multi_label":
        np.testing.assert_allclose(answer["probabilities"], 1 / (1 + np.exp(-answer["outputs"])), atol=1e-6)


def test_any_size_model_accepts_sizes_within_limits(exported):
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


def test_rescaling_before_model_needs_normalization(tmp_path):
    import tensorflow as tf

    scaling = keras.Sequential([keras.Input((16, 16, 3)), keras.layers.Rescaling(1 / 127.5, offset=-1)])
    model = keras.Sequential([keras.Input((16, 16, 3)), scaling, build()])
    refuses("model.*with rescaling.* before this layer.*normalization=", export.saved_model, model, tmp_path / "1")
    export.saved_model(model, tmp_path / "1", normalization=keras_vit.layers.ImageNormalization(apply=True))
    images = np.random.default_rng(0).integers(0, 256, (2, 16, 16, 3), "uint8")
    answer = tf.saved_model.load(tmp_path / "1").signatures["serving_uint8"](images=tf.constant(images))
    expected = ops.convert_to_numpy(model(images.astype("float32"), training=False))
    np.testing.assert_allclose(answer["outputs"], expected, atol=1e-5, rtol=0)


class Wrapped(keras.Model):
    """A subclassed model, which has no graph."""

    def __init__(self, vit, **kwargs):
        super().__init__(**kwargs)
        self.vit = vit

    def call(self, images):
        return self.vit(images / 127.5 - 1)


def test_custom_class_before_model_needs_normalization(tmp_path):
    model = keras.Sequential([keras.Input((16, 16, 3)), Wrapped(build())])
    refuses("a custom class.*normalization=", export.saved_model, model, tmp_path / "1")


@kinds(ATTENTIVE)
def test_exported_attention_equals_attention_rollout(exported, name):
    import tensorflow as tf

    size, covered = ATTENTIVE[name]
    model, path = exported(name)
    files = [encoded(1, "PNG"), encoded(2)[:200], encoded(3, "PNG")]
    signatures = tf.saved_model.load(path).signatures
    answer, plain = (signatures[f"serving_{name}"](image_bytes=tf.constant(files)) for name in ("attention", "bytes"))
    assert set(answer) == {*plain, "attention", "attention_corners"}
    for key in set(plain) - {"status"}:
        np.testing.assert_allclose(answer[key], plain[key], atol=1e-5, rtol=0, err_msg=key)
    assert answer["status"].numpy().tolist() == plain["status"].numpy().tolist() == [b"ok", b"damaged", b"ok"]
    assert not answer["attention"][1].numpy().any() and not answer["attention_corners"][1].numpy().any()
    transform = EvaluationTransform(size, keras_vit.config_of(model).preprocessing)
    images = [transform.in_numpy(read_pixels(data, model.input_shape[-1])) for data in (files[0], files[2])]
    expected = attention_rollout(model, keras_vit.preprocess_input(np.stack(images), model))
    # A constant map would agree by chance.
    assert expected.std() > 1e-4
    np.testing.assert_allclose(answer["attention"].numpy()[[0, 2]], expected, atol=1e-5, rtol=0)
    (top, left), (bottom, right) = transform.seen(np.array((20, 30)))
    corners = [[top, left], [top + (bottom - top) * covered[0], left + (right - left) * covered[1]]]
    np.testing.assert_allclose(answer["attention_corners"].numpy()[[0, 2]], [corners] * 2, rtol=1e-6)


def named_attention():
    vit = build()
    return keras.Model(vit.input, {"attention": vit.output, "other": vit.output})


@pytest.mark.parametrize(
    "make, message",
    [
        (coatnet, "holds a ViT.*'coatnet"),
        (lambda: build(token_merging=3), "without token merging"),
        (lambda: build(in_channels=5), "1 or 3 channels.*5 channels"),
        (named_attention, "no output named 'status' or 'attention'"),
    ],
    ids=["coatnet", "token_merging", "five_channels", "named_attention"],
)
def test_attention_of_unsupported_model_raises(make, message, tmp_path):
    with pytest.raises(ValueError, match=message) as refusal:
        export.saved_model(make(), tmp_path / "1", attention=True)
    assert "attention" in str(refusal.value) and not any(tmp_path.iterdir())
