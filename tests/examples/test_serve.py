import contextlib
import gc
import html
import io
import json
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
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
def server(model, tmp_path_factory):
    """The address of a model, the process id of its server, which has no Keras, and the folder of the model."""
    folder = tmp_path_factory.mktemp("models") / "vit"
    export.saved_model(model, folder / "1", postprocess="classify", labels=LABELS, top=2)
    # The server must ignore the draft of a newer version.
    (folder / ".2.123.draft").mkdir()
    with scripts.served(folder) as (address, process):
        yield address, process.pid, folder


@pytest.fixture(scope="module")
def url(server):
    return server[0]


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


def run_shell_client(*arguments):
    command = ["sh", scripts.EXAMPLES / "serve" / "client.sh", *arguments]
    return subprocess.run(command, capture_output=True, text=True)


def test_clients_name_missing_file(tmp_path):
    with pytest.raises(SystemExit, match=r"Cannot read .*nowhere\.jpg: No such file"):
        scripts.load("serve/client.py").main([str(tmp_path / "nowhere.jpg")])
    done = run_shell_client(tmp_path / "nowhere.jpg", "http://127.0.0.1:9")
    assert done.returncode == 1 and done.stderr == f"There is no file {tmp_path / 'nowhere.jpg'} to read.\n"


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_curl_client_returns_outputs_of_model(model, url, files):
    done = run_shell_client(files[0], url)
    assert done.returncode == 0, done.stderr
    (answer,) = json.loads(done.stdout)["predictions"]
    assert answer["status"] == "ok"
    np.testing.assert_allclose(answer["outputs"], expected(model, files[0]), atol=1e-4)


def test_busy_port_and_missing_folder_are_named(url, tmp_path, monkeypatch, capsys):
    serve = scripts.load("serve/server.py")
    refuses("There is no folder .*nowhere", serve.main, [str(tmp_path / "nowhere")], error=SystemExit)
    monkeypatch.setattr(serve, "Model", lambda folder: None)
    port = re.search(r":(\d+)/", url)[1]
    with pytest.raises(SystemExit, match=f"Cannot listen at 127.0.0.1:{port}: Address already in use"):
        serve.main([str(tmp_path), "--port", port])
    with pytest.raises(SystemExit):
        serve.main([str(tmp_path), "--port", "99999"])
    assert "expected 0 to 65535. Received: 99999" in capsys.readouterr().err


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


def responses(url, data):
    """Returns the number of responses to bytes that are sent over one connection."""
    with connected(url) as connection:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        received = b""
        while part := connection.recv(65536):
            received += part
    return len(re.findall(rb"HTTP/1\.1 \d+", received))


def test_request_inside_another_one_gets_no_response(url):
    post_line = b"POST /v1/models/vit:predict HTTP/1.1\r\nHost: x\r\n"
    hidden = b"GET /v1/models/vit HTTP/1.1\r\nHost: x\r\n\r\n"
    lengths = b"Content-Length: 2\r\nContent-Length: %d\r\n" % (2 + len(hidden))
    for request in (
        post_line + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n{}" + hidden,
        post_line + lengths + b"\r\n{}" + hidden,
        post_line + b"Content-Length: 0_2\r\n\r\n{}" + hidden,
        b"GET /v1/models/vit HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(hidden) + hidden,
    ):
        assert responses(url, request) == 1


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


def test_server_error_is_a_response_and_garbage_is_collected(capsys):
    collected = []

    class Broken:
        def parse(self, body, max_rows):
            collected.append(gc.isenabled())
            raise ZeroDivisionError("no such luck")

    application = scripts.load("serve/server.py").Application(Broken(), "vit")
    body = {"wsgi.input": io.BytesIO(b"{}")}
    status, answer = respond(application, "/v1/models/vit:predict", "POST", **body)
    assert status == 500
    assert json.loads(answer) == {"error": "The server failed: ZeroDivisionError: no such luck"}
    assert "Traceback" in capsys.readouterr().err
    # Parsing suspends the garbage collection.
    assert collected == [False] and gc.isenabled()


def test_post_from_another_origin_is_refused(url):
    image = {"instances": [np.zeros((16, 16, 3)).tolist()]}
    root = url.partition("/v1/")[0]
    for origin, status in ((root, 200), ("http://elsewhere.example", 403), ("null", 403)):
        request = urllib.request.Request(f"{url}:predict", json.dumps(image).encode(), {"Origin": origin})
        with contextlib.suppress(urllib.error.HTTPError), urllib.request.urlopen(request, timeout=60) as response:
            assert response.status == status
            continue
        assert status == 403


def test_slow_connections_block_no_request_and_take_no_thread(server):
    url, process_id, _ = server
    threads = Path("/proc", str(process_id), "task")
    before = len(list(threads.iterdir())) if threads.exists() else 0
    with contextlib.ExitStack() as stack:
        for _ in range(400):
            slow = stack.enter_context(connected(url))
            slow.sendall(b"POST /v1/models/vit:predict HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
        assert post(url, {"instances": [np.zeros((16, 16, 3)).tolist()]})[0] == 200
        if before:
            # TensorFlow may start a few threads.
            assert len(list(threads.iterdir())) < before + 50


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


def test_unfinished_versions_are_skipped_with_one_line(server, tmp_path, capsys):
    serve = scripts.load("serve/server.py")
    (tmp_path / "3" / "variables").mkdir(parents=True)
    for name in ("²", "٣"):
        (tmp_path / name).mkdir()
    refuses("There is no version in .* Expected a complete SavedModel", serve.Model, tmp_path, error=SystemExit)
    shutil.copytree(server[2] / "1", tmp_path / "1")
    shutil.copytree(server[2] / "1", tmp_path / "2")
    (tmp_path / "2" / "saved_model.pb").write_bytes(b"damaged")
    capsys.readouterr()
    assert serve.Model(tmp_path).version == "1"
    lines = capsys.readouterr().err.splitlines()
    assert [line[:18] for line in lines if "Skipped" in line] == ["Skipped version 3,", "Skipped version 2,"]


def test_head_response_has_no_body(url):
    head = b"HEAD /v1/models/vit HTTP/1.1\r\nHost: x\r\n"
    with connected(url) as connection:
        connection.sendall(head + b"Connection: close\r\n\r\n")
        received = b"".join(iter(lambda: connection.recv(65536), b""))
    assert received.startswith(b"HTTP/1.1 200 OK\r\n") and received.partition(b"\r\n\r\n")[2] == b""
    # The next response of the connection starts after the headers.
    assert responses(url, head + b"\r\n" + head.replace(b"HEAD", b"GET") + b"\r\n") == 2


@pytest.mark.long
def test_request_that_arrives_too_slowly_is_dropped(server):
    with scripts.served(server[2], "--request-timeout", "1") as (url, _), connected(url) as slow:
        for byte in b"POST /v1/models/vit:predict HTTP/1.1":
            try:
                slow.sendall(bytes([byte]))
            except OSError:
                break
            time.sleep(0.3)
        else:
            pytest.fail("the connection was not closed")
