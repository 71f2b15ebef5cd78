import os
import signal
import subprocess
import sys
import time

import hypothesis
import keras
import numpy as np
import pytest
from hypothesis import strategies as st
from keras import ops

import keras_vit
from keras_vit import export
from keras_vit.export import tensorflow_formats
from tests.errors import file_size_limit, refuses
from tests.export.bodies import bad_images, bad_requests, encoded, pixels, strings
from tests.export.server import Refused, Server, warm_up_requests
from tests.models.small import answers
from tests.tiny import build

LABELS = ["ant", "bee", "cat", "dog", "emu"]
BATCHES = (1, 7, 33)
GOLDEN = """
serving_bytes: image_bytes string (None,) -> classes int32 (None, 3), labels string (None, 3), \
outputs float32 (None, 5), probabilities float32 (None, 5), scores float32 (None, 3), status string (None,)
serving_default: images float32 (None, 16, 16, 3) -> classes int32 (None, 3), labels string (None, 3), \
outputs float32 (None, 5), probabilities float32 (None, 5), scores float32 (None, 3)
serving_uint8: images uint8 (None, 16, 16, 3) -> classes int32 (None, 3), labels string (None, 3), \
outputs float32 (None, 5), probabilities float32 (None, 5), scores float32 (None, 3)
""".strip()
# Random bytes, random bytes behind the start of an image, and images with changed bytes.
STARTS = st.sampled_from([b"", encoded(1)[:3], encoded(1, "PNG")[:16], encoded(1)[:300], encoded(1, "PNG")[:60]])
BODIES = st.one_of(
    st.binary(max_size=300),
    st.tuples(STARTS, st.binary(max_size=200)).map(b"".join),
    st.tuples(st.integers(2, 600), st.binary(min_size=1, max_size=40)).map(
        lambda cut: encoded(1)[: cut[0]] + cut[1] + encoded(1)[cut[0] + len(cut[1]) :]
    ),
)
REFUSED = [
    ({"postprocess": "nms"}, "postprocess"),
    ({"top": 0}, "top"),
    ({"warm_up": (0,)}, "warm_up"),
    ({"warm_up": (1, 8), "max_batch_size": 4}, "max_batch_size=4 images.*8"),
    ({"max_batch_size": 2.0}, "max_batch_size"),
    ({"labels": LABELS}, "postprocess"),
    ({"postprocess": "classify", "labels": LABELS[:4]}, "5 classes"),
    ({"postprocess": "classify", "labels": [*LABELS[:4], "d\rog"]}, "labels.*one line"),
    ({"image_size": (32, 32)}, "image_size"),
]


@pytest.fixture(scope="module")
def model():
    """A model of small weights: with large ones, float32 rounds visibly."""
    keras.utils.set_random_seed(0)
    return build(preprocessing={"crop_fraction": 0.9})


@pytest.fixture(scope="module")
def folder(model, tmp_path_factory):
    """The exported model, version 1."""
    path = tmp_path_factory.mktemp("models") / "vit" / "1"
    report = export.saved_model(model, path, postprocess="classify", labels=LABELS, top=3)
    assert report["path"] == path and report["difference"] < 1e-5 and report["num_checked"] == 2
    assert report["size"] == sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    return path


@pytest.fixture(scope="module")
def server(folder):
    return Server(folder)


def batch(count, size=(16, 16, 3)):
    return np.random.default_rng(count).uniform(-1, 1, (count, *size)).astype("float32")


def check_not_exported(message, model, path, error=ValueError, **options):
    """Checks that an export raises an error with this message and leaves no file."""
    refuses(message, export.saved_model, model, path, **options, error=error)
    assert not any(path.parent.iterdir())


def test_signatures_equal_golden_description(folder):
    assert export.describe(folder) == GOLDEN


@pytest.mark.parametrize("count", BATCHES)
def test_session_returns_outputs_of_model(model, server, count):
    images = batch(count)
    answer = server.ask("serving_default", images=images)
    logits = answers(model, images)
    np.testing.assert_allclose(answer["outputs"], logits, atol=1e-5, rtol=0)
    probabilities = ops.convert_to_numpy(ops.softmax(logits))
    np.testing.assert_allclose(answer["probabilities"], probabilities, atol=1e-5)
    best = np.argsort(-logits, axis=1)[:, :3]
    np.testing.assert_array_equal(answer["classes"], best)
    np.testing.assert_allclose(answer["scores"], np.take_along_axis(probabilities, best, 1), atol=1e-5)
    np.testing.assert_array_equal(answer["labels"].astype(str), np.array(LABELS)[best])


def test_openvino_returns_outputs_of_saved_model(model, folder):
    core = pytest.importorskip("openvino").Core()
    run = core.compile_model(core.read_model(folder), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    for count in BATCHES:
        images = batch(count)
        logits = answers(model, images)
        answer = run({"images": images})
        np.testing.assert_allclose(answer["outputs"], logits, atol=1e-5, rtol=0)
        np.testing.assert_array_equal(answer["labels"], np.array(LABELS)[np.argsort(-logits, axis=1)[:, :3]])


def test_uint8_images_are_scaled(model, server):
    images = np.stack([pixels(i, (16, 16, 3)) for i in range(3)])
    expected = answers(model, keras_vit.preprocess_input(images, model))
    np.testing.assert_allclose(server.ask("serving_uint8", images=images)["outputs"], expected, atol=1e-5, rtol=0)


def test_bad_image_leaves_other_rows_unchanged(server):
    bad = bad_images()
    alone = [server.ask("serving_bytes", image_bytes=strings(encoded(i))) for i in range(len(bad) + 1)]
    rows = [encoded(0)]
    for i, (data, _) in enumerate(bad.values()):
        rows += [data, encoded(i + 1)]
    answer = server.ask("serving_bytes", image_bytes=strings(*rows))
    for i, expected in enumerate(alone):
        for name, value in expected.items():
            if value.dtype == "float32":
                np.testing.assert_allclose(answer[name][2 * i], value[0], atol=1e-5)
            else:
                np.testing.assert_array_equal(answer[name][2 * i], value[0])
    for i, (name, (_, status)) in enumerate(bad.items()):
        assert answer["status"][2 * i + 1] == status.encode(), name
        assert not answer["outputs"][2 * i + 1].any() and not answer["scores"][2 * i + 1].any()
        assert answer["classes"][2 * i + 1].tolist() == [-1] * 3 and answer["labels"][2 * i + 1].tolist() == [b""] * 3


def test_bad_requests_are_refused(server):
    before = server.ask("serving_default", images=batch(2))
    requests = list(bad_requests())
    assert len(requests) >= 38
    for name, signature, inputs in requests:
        with pytest.raises(Refused):
            server.ask(signature, **inputs)
            pytest.fail(f"{signature} answered {name}")
    for name, value in server.ask("serving_default", images=batch(2)).items():
        np.testing.assert_array_equal(value, before[name])


# The long run has 200 examples, and the normal run has 20.
@hypothesis.settings(max_examples=4 * hypothesis.settings.default.max_examples)
@hypothesis.given(body=BODIES)
def test_random_image_bytes_do_not_change_server(server, body):
    before = server.ask("serving_bytes", image_bytes=strings(encoded(5)))
    answer = server.ask("serving_bytes", image_bytes=strings(body, encoded(5)))
    assert answer["status"][0] in (b"ok", b"unknown_format", b"too_large", b"damaged")
    assert np.isfinite(answer["outputs"]).all()
    after = server.ask("serving_bytes", image_bytes=strings(encoded(5)))
    np.testing.assert_array_equal(after["outputs"], before["outputs"])


def test_warm_up_requests_of_every_signature_succeed(model, server, tmp_path):
    pytest.importorskip("tensorflow_serving.apis", reason="its classes write the requests")
    export.saved_model(model, tmp_path / "1", postprocess="classify", labels=LABELS, top=3, warm_up=(1, 2))
    requests = warm_up_requests(tmp_path / "1")
    asked = [(name, len(next(iter(inputs.values())))) for name, inputs in requests]
    assert sorted(asked) == sorted((name, count) for name in server.signatures for count in (1, 2))
    for name, inputs in requests:
        assert set(server.ask(name, **inputs).get("status", [b"ok"])) == {b"ok"}
    # Constant images take few bytes, whatever their size.
    assert (tmp_path / "1" / tensorflow_formats.WARM_UP).stat().st_size < 5000


def test_saved_model_stores_weights_once_and_labels(model, folder):
    from tensorflow.train import list_variables

    stored = [int(np.prod(shape)) for _, shape in list_variables(str(folder / "variables" / "variables"))]
    # TensorFlow adds two scalars: the save counter and the object graph.
    assert model.count_params() <= sum(stored) <= model.count_params() + 2
    assert (folder / "assets" / "labels.txt").read_text() == "".join(f"{label}\n" for label in LABELS)


@pytest.mark.backends("tensorflow")
def test_full_disk_error_names_version_and_leaves_no_file(model, tmp_path):
    with file_size_limit(50_000):
        check_not_exported(f"Cannot write '{tmp_path / '1'}': .*too large", model, tmp_path / "1", OSError)


@pytest.mark.long
def test_killed_export_leaves_no_partial_version(tmp_path):
    code = "from keras_vit import export; from tests.tiny import build; export.saved_model(build(), 'PATH')"
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
    command = [sys.executable, "-c", code.replace("PATH", str(tmp_path / "1"))]
    process = subprocess.Popen(command, env=environment, start_new_session=True)
    # The export is at work when its draft appears.
    while not any(tmp_path.iterdir()):
        assert process.poll() is None
        time.sleep(0.005)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert [child.name[:3] for child in tmp_path.iterdir()] == [".1."]


def test_overwrite_replaces_whole_version(model, tmp_path):
    path = tmp_path / "1"
    path.mkdir()
    (path / "leftover").touch()
    refuses("overwrite", export.saved_model, model, path, error=FileExistsError)
    assert [file.name for file in path.iterdir()] == ["leftover"]
    # `images` may hold more images than a request.
    report = export.saved_model(model, path, overwrite=True, warm_up=(), max_batch_size=1, images=batch(3))
    assert report["num_checked"] == 5 and report["difference"] < 1e-5
    assert sorted(file.name for file in path.iterdir()) == ["assets", "fingerprint.pb", "saved_model.pb", "variables"]
    assert [child.name for child in tmp_path.iterdir()] == ["1"]


@pytest.mark.backends("tensorflow")
@pytest.mark.parametrize("wrong", [1e-3, np.nan])
def test_saved_model_of_other_outputs_is_removed(model, tmp_path, monkeypatch, wrong):
    right = tensorflow_formats.run_saved_model

    def run(folder, batches, settings):
        for outputs in right(folder, batches, settings):
            yield [output + np.float32(wrong) for output in outputs]

    monkeypatch.setattr(tensorflow_formats, "run_saved_model", run)
    check_not_exported("apart", model, tmp_path / "1", export.ParityError)


def test_image_size_is_limited_by_max_input_pixels(tmp_path):
    model = build(image_size=(None, None))
    message = "max_input_pixels=1023.*32 x 32 = 1024"
    check_not_exported(message, model, tmp_path / "1", image_size=32, max_input_pixels=1023)
    check_not_exported("`image_size`.*0", model, tmp_path / "1", image_size=0)
    # The path is checked after the size.
    (tmp_path / "1").mkdir()
    with pytest.raises(FileExistsError):
        export.saved_model(model, tmp_path / "1", image_size=32, max_input_pixels=1024)


@pytest.mark.parametrize("arguments, message", REFUSED)
def test_invalid_argument_is_named(model, tmp_path, arguments, message):
    check_not_exported(message, model, tmp_path / "1", **arguments)


@pytest.mark.parametrize("name", ["latest", "v1", "²", "1.5"])
def test_path_not_named_by_a_number_is_refused(model, tmp_path, name):
    check_not_exported("`path`.*named by a number", model, tmp_path / name)
