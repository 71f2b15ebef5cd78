import json
import os
import re
import shutil
import subprocess
import sys
import threading
import urllib.error
import urllib.request

import keras
import numpy as np
import pytest
from keras import ops

from keras_vit import export, preprocess_input
from keras_vit.models.classify import read_image
from tests.examples import scripts
from tests.export.bodies import encoded
from tests.tiny import build

if keras.backend.backend() != "tensorflow":
    # tests/export compares what the other backends export with their models.
    pytest.skip("the server runs the model on TensorFlow, whichever backend it comes from", allow_module_level=True)
LABELS = ["ant", "bee", "cat", "dog", "emu"]


@pytest.fixture(scope="module")
def model():
    keras.utils.set_random_seed(0)
    return build()


@pytest.fixture(scope="module")
def url(model, tmp_path_factory):
    """The address of a model at a server that is a process without Keras."""
    folder = tmp_path_factory.mktemp("models") / "vit"
    export.saved_model(model, folder / "1", postprocess="classify", labels=LABELS, top=2)
    # A newer version that is not finished must not be taken up.
    (folder / ".2.123.draft").mkdir()
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
    script = "import sys, runpy; sys.modules.update(keras=None, keras_vit=None); sys.argv.pop(0); "
    script += "runpy.run_path(sys.argv[0], run_name='__main__')"
    server = str(scripts.EXAMPLES / "serve" / "server.py")
    process = subprocess.Popen(
        [sys.executable, "-c", script, server, str(folder), "--port", "0"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    found = re.search(r"http://\S+(?=:predict)", process.stdout.readline())
    assert found, "the server did not start"
    yield found[0]
    process.terminate()
    process.wait(timeout=30)


def post(url, body):
    body = body if isinstance(body, bytes) else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(f"{url}:predict", body, timeout=60) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def expected(model, path):
    logits = model(preprocess_input(read_image(path, model)[None], model), training=False)
    return ops.convert_to_numpy(logits)[0]


@pytest.fixture
def files(tmp_path):
    (tmp_path / "a.jpg").write_bytes(encoded(1))
    (tmp_path / "b.png").write_bytes(encoded(2, "PNG"))
    (tmp_path / "c.jpg").write_bytes(encoded(3)[:400])
    return [str(tmp_path / name) for name in ("a.jpg", "b.png", "c.jpg")]


def test_the_python_client_names_images_and_says_which_are_none(model, url, files, capsys):
    client = scripts.load("serve/client.py")
    assert client.main([*files, "--url", url]) == 1
    lines = capsys.readouterr().out.splitlines()
    for path, line in zip(files[:2], lines, strict=False):
        logits = expected(model, path)
        probabilities = np.exp(logits) / np.exp(logits).sum()
        assert line == f"{path}: {LABELS[logits.argmax()]} {probabilities.max():.3f}"
    assert lines[2:] == [f"{files[2]}: damaged"]
    assert client.main([files[0], "--url", url]) == 0


def test_the_client_says_why_it_was_refused(url, files):
    client = scripts.load("serve/client.py")
    with pytest.raises(SystemExit, match="1 to 128 images"):
        client.predict(url, [b""] * 129)
    with pytest.raises(SystemExit, match="No server answers"):
        client.predict("http://127.0.0.1:9/v1/models/vit", [b""])


def test_the_clients_name_a_file_that_is_not_there(tmp_path):
    client = scripts.load("serve/client.py")
    with pytest.raises(SystemExit, match=r"Cannot read .*nowhere\.jpg: No such file"):
        client.main([str(tmp_path / "nowhere.jpg")])
    done = subprocess.run(
        ["sh", scripts.EXAMPLES / "serve" / "client.sh", tmp_path / "nowhere.jpg", "http://127.0.0.1:9"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1 and done.stderr == f"There is no file {tmp_path / 'nowhere.jpg'} to read.\n"


def test_a_busy_port_and_a_missing_folder_are_said_in_a_line(url, tmp_path, monkeypatch):
    serve = scripts.load("serve/server.py")
    with pytest.raises(SystemExit, match="There is no folder .*nowhere"):
        serve.main([str(tmp_path / "nowhere")])
    monkeypatch.setattr(serve, "Model", lambda folder: None)
    port = re.search(r":(\d+)/", url)[1]
    for number, message in ((port, "Address already in use"), ("99999", "0-65535")):
        with pytest.raises(SystemExit, match=f"Cannot listen at 127.0.0.1:{number}: .*{message}"):
            serve.main([str(tmp_path), "--port", number])


def test_the_curl_client_gets_the_same_answer(model, url, files):
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    done = subprocess.run(
        ["sh", scripts.EXAMPLES / "serve" / "client.sh", files[0], url], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    (answer,) = json.loads(done.stdout)["predictions"]
    assert answer["status"] == "ok"
    np.testing.assert_allclose(answer["outputs"], expected(model, files[0]), atol=1e-4)


def test_numbers_are_answered_in_rows_and_columns(model, url):
    images = np.random.default_rng(0).uniform(-1, 1, (2, 16, 16, 3)).astype("float32")
    logits = ops.convert_to_numpy(model(images, training=False))
    for instances in (images.tolist(), [{"images": image.tolist()} for image in images]):
        status, answer = post(url, {"instances": instances})
        assert status == 200
        np.testing.assert_allclose([row["outputs"] for row in answer["predictions"]], logits, atol=1e-5)
    status, answer = post(url, {"inputs": {"images": images.tolist()}})
    np.testing.assert_allclose(answer["outputs"]["outputs"], logits, atol=1e-5)
    with urllib.request.urlopen(url, timeout=60) as response:
        assert json.load(response)["model_version_status"][0]["version"] == "1"


def test_bad_requests_get_an_error_and_the_next_good_one_an_answer(url):
    image = np.zeros((16, 16, 3)).tolist()
    for body in (
        b"",
        b"no json",
        b"[" * 100_000,
        b"\xff\xfe",
        b'{"instances": ' + b"[" * 900 + b"0" + b"]" * 900 + b"}",
        b'{"signature_name": "serving_bytes", "instances": ' + b"[" * 900 + b'"a"' + b"]" * 900 + b"}",
        [],
        {},
        {"instances": []},
        {"instances": image},
        {"instances": [image, image[:5]]},
        {"instances": [[image]]},
        {"instances": ["text"]},
        {"instances": [{"other": image}]},
        {"instances": [image], "inputs": image},
        {"instances": [image], "signature_name": "none"},
        {"instances": [image], "signature_name": ["serving_default"]},
        {"instances": [np.full((16, 16, 3), np.nan).tolist()]},
        {"instances": [np.full((16, 16, 3), 1e39).tolist()]},
        {"instances": [np.full((16, 16, 3), 256).tolist()], "signature_name": "serving_uint8"},
        {"instances": [np.full((16, 16, 3), 0.5).tolist()], "signature_name": "serving_uint8"},
        {"instances": [image], "signature_name": "serving_bytes"},
        {"instances": [{"b64": "?"}], "signature_name": "serving_bytes"},
    ):
        status, answer = post(url, body)
        assert status == 400 and answer["error"], body
        assert post(url, {"instances": [image]})[0] == 200


def test_what_goes_wrong_in_the_server_is_answered(monkeypatch, capsys):
    serve = scripts.load("serve/server.py")

    class Broken:
        version = "1"

        def __init__(self, folder):
            pass

        def predict(self, request):
            raise ZeroDivisionError("no such luck")

    monkeypatch.setattr(serve, "Model", Broken)
    with serve.make_server("vit", "vit") as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            for _ in range(2):
                status, answer = post(f"http://127.0.0.1:{server.server_port}/v1/models/vit", {})
                assert (status, answer) == (500, {"error": "The server failed: ZeroDivisionError: no such luck"})
        finally:
            server.shutdown()
            thread.join()
    assert capsys.readouterr().err.count("Traceback") == 2
