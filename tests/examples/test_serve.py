import contextlib
import html
import json
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import keras
import numpy as np
import pytest
from keras import ops

from keras_vit import export, preprocess_input
from keras_vit.prediction.classify import read_image
from tests.errors import refuses
from tests.examples import scripts
from tests.export.bodies import encoded
from tests.tiny import build

# The server runs TensorFlow, so the export needs no child process there.
pytestmark = pytest.mark.backends("tensorflow")
LABELS = ["ant", "bee", "cat", "dog", "emu"]


@pytest.fixture(scope="module")
def model():
    keras.utils.set_random_seed(0)
    return build()


@pytest.fixture(scope="module")
def url(model, tmp_path_factory):
    """The address of a model."""
    folder = tmp_path_factory.mktemp("models") / "vit"
    export.saved_model(model, folder / "1", postprocess="classify", labels=LABELS, top=2)
    # The server must ignore the draft of a newer version.
    (folder / ".2.123.draft").mkdir()
    with scripts.served(folder) as address:
        yield address


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


def test_python_client_prints_class_or_status(model, url, files, capsys):
    client = scripts.load("serve/client.py")
    assert client.main([*files, "--url", url]) == 1
    lines = capsys.readouterr().out.splitlines()
    for path, line in zip(files[:2], lines, strict=False):
        logits = expected(model, path)
        probabilities = np.exp(logits) / np.exp(logits).sum()
        assert line == f"{path}: {LABELS[logits.argmax()]} {probabilities.max():.3f}"
    assert lines[2:] == [f"{files[2]}: damaged"]
    assert client.main([files[0], "--url", url]) == 0


def test_instances_and_inputs_return_outputs_of_model(model, url):
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


def test_bad_request_gets_error_and_next_request_succeeds(url):
    image = np.zeros((16, 16, 3)).tolist()
    nested = b"[" * 900
    ends = b"]" * 900 + b"}"
    bytes_, uint8 = ({"signature_name": f"serving_{name}"} for name in ("bytes", "uint8"))
    bodies = [b"", b"no json", b"[" * 100_000, b"\xff\xfe", b'{"instances": ' + nested + b"0" + ends]
    bodies += [b'{"signature_name": "serving_bytes", "instances": ' + nested + b'"a"' + ends, [], {}]
    rows = ([], image, [image, image[:5]], [[image]], ["text"], [{"other": image}])
    bodies += [{"instances": instances} for instances in rows]
    bodies += [{"instances": [image], "signature_name": name} for name in ("none", ["serving_default"])]
    bodies += [{"instances": [np.full((16, 16, 3), value).tolist()]} for value in (np.nan, 1e39)]
    bodies += [{"instances": [np.full((16, 16, 3), value).tolist()], **uint8} for value in (256, 0.5)]
    bodies += [{"instances": instances, **bytes_} for instances in ([image], [{"b64": "?"}])]
    for body in (*bodies, {"instances": [image], "inputs": image}):
        status, answer = post(url, body)
        assert status == 400 and answer["error"], body
        assert post(url, {"instances": [image]})[0] == 200


def test_request_that_names_no_input_of_two_is_refused():
    serve = scripts.load("serve/server.py")
    model = object.__new__(serve.Model)
    model.signatures = {"serving_default": SimpleNamespace(structured_input_signature=((), {"a": None, "b": None}))}
    for inputs in ([1.0], {"a": [1.0]}):
        body = json.dumps({"inputs": inputs})
        refuses(r"Expected \"inputs\" to have \['a', 'b'\]", model.parse, body, 8, error=serve.BadRequestError)


def test_page_files_refer_to_no_remote_or_inline_code(url):
    root = url.partition("/v1/")[0]
    for path, kind in (("/", "text/html"), ("/demo.css", "text/css"), ("/demo.js", "text/javascript")):
        with urllib.request.urlopen(f"{root}{path}", timeout=60) as response:
            headers, text = response.headers, response.read().decode()
        assert headers["Content-Type"] == f"{kind}; charset=utf-8" and headers["X-Content-Type-Options"] == "nosniff"
        policy = dict(part.split(maxsplit=1) for part in headers["Content-Security-Policy"].split("; "))
        assert policy["default-src"] == "'none'" and policy["script-src"] == policy["style-src"] == "'self'"
        assert not re.search(r"https?://|//\w+\.|style=|\son\w+=|innerHTML|\beval\b", text), path
        assert "{{" not in text
    for path, method, status in (("/demo.html", "GET", 404), ("/../server.py", "GET", 404), ("/", "POST", 405)):
        with pytest.raises(urllib.error.HTTPError) as refusal:
            urllib.request.urlopen(urllib.request.Request(f"{root}{path}", method=method), timeout=60)
        assert refusal.value.code == status and "Expected" in json.load(refusal.value)["error"]


def connected(url):
    host, port = re.search(r"//(.+):(\d+)/", url).groups()
    return socket.create_connection((host, int(port)), timeout=30)


def test_request_of_many_rows_or_bytes_is_refused(url):
    rows = b'{"instances": [' + b"0," * 128 + b"0]}"
    assert post(url, rows) == (400, {"error": "Expected at most 128 rows. Received: 129"})
    with connected(url) as connection:
        connection.sendall(b"POST /v1/models/vit:predict HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999\r\n\r\n{")
        assert connection.recv(100).startswith(b"HTTP/1.1 413 ")


def respond(application, path, method="GET", **environ):
    """Returns the status and the body of a response, without a server."""
    statuses = []
    environ |= {"REQUEST_METHOD": method, "PATH_INFO": path}
    body = application(environ, lambda status, headers: statuses.append(status))
    return int(statuses[0].split()[0]), b"".join(body)


def test_page_and_log_escape_names_and_paths(capsys):
    class Named:
        version, signatures = "7", {"serving_default": None}

    name = """"'><script>alert(1)</script> é"""
    application = scripts.load("serve/server.py").Application(Named(), name, max_body=1000, verbose=True)
    page = respond(application, "/")[1].decode()
    assert page.count("<script") == 1
    model = json.loads(html.unescape(re.search('data-model="([^"]*)"', page)[1]))
    assert model["name"] == name and model["signatures"] == ["serving_default"]
    capsys.readouterr()
    assert respond(application, "/\nPOST /v1 200\x1b[2J")[0] == 404
    assert capsys.readouterr().err == "GET /\\nPOST /v1 200\\x1b[2J 404\n"


def test_server_sends_only_named_sample_images(tmp_path):
    names = ["cat.JPG", "dog.png"]
    for name in names:
        (tmp_path / name).write_text(name)
    samples = [tmp_path / name for name in names]
    application = scripts.load("serve/server.py").Application(None, "vit", samples=samples)
    assert [respond(application, f"/samples/{i}") for i in (0, 1)] == [(200, b"cat.JPG"), (200, b"dog.png")]
    for path in ("/samples/2", "/samples/", "/samples/../demo.js", "/samples/dog.png"):
        assert respond(application, path)[0] == 404, path


def test_post_from_another_origin_is_refused():
    application = scripts.load("serve/server.py").Application(None, "vit")
    for origin in ("http://elsewhere.example", "null"):
        path, headers = "/v1/models/vit:predict", {"HTTP_ORIGIN": origin, "HTTP_HOST": "localhost"}
        assert respond(application, path, "POST", **headers)[0] == 403


def test_slow_connections_block_no_request(url):
    with contextlib.ExitStack() as stack:
        for _ in range(400):
            slow = stack.enter_context(connected(url))
            slow.sendall(b"POST /v1/models/vit:predict HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
        assert post(url, {"instances": [np.zeros((16, 16, 3)).tolist()]})[0] == 200


# A model whose predictions take longer than the server waits between two looks at the signal.
SLOW = """
import sys, time
sys.path.insert(0, sys.argv[1])
import server

class Slow:
    version, signatures = "1", {}
    __init__ = lambda self, folder: None
    parse = lambda self, body, max_rows: lambda: time.sleep(1.5) or {"predictions": [7]}

server.Model = Slow
server.main([sys.argv[2], "--port", "0"])
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.long)])
def test_stopped_server_answers_requests_under_way(number, tmp_path):
    command = [sys.executable, "-c", SLOW, str(scripts.EXAMPLES / "serve"), str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        url = re.search(r"http://\S+(?=:predict)", process.stdout.readline())[0]
        with ThreadPoolExecutor() as pool, connected(url) as arriving:
            arriving.sendall(b"POST %s:predict HTTP/1.1\r\n" % url[url.index("/v1") :].encode())
            computing = [pool.submit(post, url, {}) for _ in range(2)]
            time.sleep(0.7)
            process.send_signal(number)
            time.sleep(0.3)
            with pytest.raises(ConnectionRefusedError):
                connected(url)
            arriving.sendall(b"Host: x\r\nContent-Length: 2\r\n\r\n{}")
            assert [each.result() for each in computing] == [(200, {"predictions": [7]})] * 2
            assert arriving.recv(100).startswith(b"HTTP/1.1 200 ")
            assert process.wait(timeout=20) == 0
