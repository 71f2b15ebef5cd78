"""A small SavedModel server with TensorFlow Serving's REST interface, to try a model and its clients without Docker.

For production, use TensorFlow Serving: see docker-compose.yml. This server needs TensorFlow and waitress, but neither
Keras nor keras_vit.

Command:  pip install tensorflow waitress
          python examples/serve/server.py models/vit --port 8501
Hardware: any; a request takes as long as the model.
Expected: GET / is a page to try the model on image files. GET /v1/models/vit and POST /v1/models/vit:predict respond
          like TensorFlow Serving, within limits on body size, rows, connections and time (see --help). After SIGTERM or
          Ctrl-C, the server answers the requests that it has received, then ends.
"""

import argparse
import base64
import binascii
import contextlib
import gc
import html
import json
import os
import re
import selectors
import signal
import sys
import threading
import time
import traceback
from http import HTTPStatus
from pathlib import Path
from urllib.parse import urlsplit

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import tensorflow as tf
import waitress

# 8 MB are enough for 32 JPEG files of 180 kB in base64, or for 4 images of 224 x 224 as JSON numbers. The server parses
# 8 MB of JSON in up to half a second. Other requests wait during this time.
LIMITS = {"max_body": 8 * 1024 * 1024, "max_rows": 128, "max_connections": 1000, "threads": 4, "timeout": 60}
# A request must arrive within REQUEST_TIMEOUT seconds. A stopped server answers pending requests for GRACE seconds.
REQUEST_TIMEOUT, GRACE = 120, 10
# When the server is stopped, a connection may still send a request until it has been silent for this many seconds.
QUIET = 0.3

# The files of the demo page, which are in the folder of this script, and their types.
PAGE = {
    "/": ("demo.html", "text/html; charset=utf-8"),
    "/demo.css": ("demo.css", "text/css; charset=utf-8"),
    "/demo.js": ("demo.js", "text/javascript; charset=utf-8"),
}
# The file types of the sample images on the page.
SAMPLES = {".jpg": "image/jpeg", ".jpeg": "image/jpeg", ".png": "image/png"}
# With these headers, browsers only load the files of this server and the pictures that the user selects. Text that the
# page shows, such as the name of a class, cannot run as code.
HEADERS = [
    (
        "Content-Security-Policy",
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src blob: data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'",
    ),
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
    ("Cache-Control", "no-cache"),
]


class BadRequestError(Exception):
    """The request is invalid."""


class Model:
    """The latest version of a model. Each version is a SavedModel in a subfolder whose name is a number."""

    def __init__(self, folder):
        if not Path(folder).is_dir():
            raise SystemExit(f"There is no folder {folder}. Expected a folder with the versions of a model.")
        # Do not use str.isdigit, which is also True for digits that are not ASCII.
        versions = [path for path in Path(folder).iterdir() if path.is_dir() and re.fullmatch("[0-9]+", path.name)]
        for path in sorted(versions, key=lambda version: int(version.name), reverse=True):
            try:
                # Keep the loaded object, because its signatures stop working when it is deleted.
                self.loaded = tf.saved_model.load(os.fspath(path))
            # TensorFlow raises errors of many types for a damaged or unfinished version.
            except Exception as error:
                _log(f"Skipped version {path.name}, which is damaged or unfinished: {_reason(error)}")
                continue
            self.version, self.signatures = path.name, dict(self.loaded.signatures)
            return
        expected = f"Expected a complete SavedModel in a folder named by a number, as in {folder}/1."
        raise SystemExit(f"There is no version in {folder}. {expected}")

    def parse(self, body, max_rows):
        """Checks a JSON body with "instances" or "inputs"; returns a function that computes the response."""
        try:
            request = json.loads(body)
        except ValueError as error:
            raise BadRequestError(f"Expected JSON. {error}") from error
        if not isinstance(request, dict) or ("instances" in request) == ("inputs" in request):
            expected = 'a JSON object with "instances" (one per row) or "inputs" (a list per input)'
            raise BadRequestError(f"Expected {expected}.")
        name = request.get("signature_name", "serving_default")
        if not isinstance(name, str) or name not in self.signatures:
            raise BadRequestError(f"Expected a signature_name of {sorted(self.signatures)}. Received: {name!r}")
        signature = self.signatures[name]
        specs = signature.structured_input_signature[1]
        by_row = "instances" in request
        columns = _columns(request["instances"], specs, max_rows) if by_row else request["inputs"]
        if not (isinstance(columns, dict) and set(columns) == set(specs)):
            if len(specs) > 1:
                raise BadRequestError(f'Expected "inputs" to have {sorted(specs)}.')
            columns = {next(iter(specs)): columns}
        for values in columns.values():
            _check_rows(values, max_rows)
        tensors = {key: _tensor(key, columns[key], spec) for key, spec in specs.items()}
        return lambda: self._predict(signature, tensors, by_row)

    def _predict(self, signature, tensors, by_row):
        try:
            outputs = signature(**tensors)
        except (tf.errors.OpError, ValueError, TypeError) as error:
            raise BadRequestError(_reason(error)) from error
        outputs = {key: _plain(value) for key, value in outputs.items()}
        # As in TensorFlow Serving, a single output has no name.
        single = next(iter(outputs.values())) if len(outputs) == 1 else None
        if not by_row:
            return {"outputs": outputs if single is None else single}
        if single is not None:
            return {"predictions": single}
        return {"predictions": [dict(zip(outputs, row, strict=True)) for row in zip(*outputs.values(), strict=True)]}


def _log(text):
    """Writes one line to the log. Control characters and characters that are not ASCII are escaped."""
    print(text.encode("unicode_escape").decode(), file=sys.stderr, flush=True)


def _reason(error):
    """Returns the line of a TensorFlow error message that contains the reason."""
    lines = (getattr(error, "message", None) or str(error)).splitlines()
    about = ("Graph execution error", "Detected at", "<stack", "\t", " ")
    return next((line for line in lines if line and not line.startswith(about)), "The model refused the request.")


def _check_rows(values, max_rows):
    if isinstance(values, list) and len(values) > max_rows:
        raise BadRequestError(f"Expected at most {max_rows} rows. Received: {len(values)}")


def _columns(instances, specs, max_rows):
    """Converts the rows of a request to one list per input."""
    if not isinstance(instances, list) or not instances:
        raise BadRequestError('Expected "instances" to be a list of one row or more.')
    # Check the number of rows before the rows become dicts, which need a hundred times the memory of the JSON text.
    _check_rows(instances, max_rows)
    # If the signature has one input, a row may leave out the name of the input.
    rows = [row if isinstance(row, dict) and set(row) != {"b64"} else {next(iter(specs)): row} for row in instances]
    if any(set(row) != set(specs) for row in rows):
        raise BadRequestError(f"Expected each instance to have {sorted(specs)}.")
    return {key: [row[key] for row in rows] for key in specs}


def _tensor(key, value, spec):
    """Converts JSON values to a tensor of the signature's type."""
    try:
        if spec.dtype == tf.string:
            return tf.constant(_decoded(value), "string")
        array = np.array(value)
        if array.dtype.kind not in "iuf" or (spec.dtype.is_integer and array.dtype.kind == "f"):
            raise BadRequestError(f"Expected numbers of type {spec.dtype.name} as {key}.")
        kind = spec.dtype
        if kind.is_integer and array.size and not kind.min <= array.min() <= array.max() <= kind.max:
            raise BadRequestError(f"Expected {key} from {kind.min} to {kind.max}.")
        # Numbers that overflow become infinite, and the model refuses infinite inputs.
        with np.errstate(over="ignore"):
            return tf.constant(array.astype(spec.dtype.as_numpy_dtype))
    except (ValueError, TypeError, OverflowError) as error:
        raise BadRequestError(f"Expected {key} of shape {spec.shape} and type {spec.dtype.name}. {error}") from error


def _decoded(value):
    """Converts JSON strings to bytes; {"b64": ...} is base64."""
    if isinstance(value, list):
        return [_decoded(item) for item in value]
    if isinstance(value, dict) and set(value) == {"b64"} and isinstance(value["b64"], str):
        try:
            return base64.b64decode(value["b64"], validate=True)
        except binascii.Error as error:
            raise BadRequestError(f"Expected base64 in b64: {error}") from error
    if isinstance(value, str):
        return value.encode()
    raise BadRequestError('Expected a string, or bytes as {"b64": "..."}.')


def _plain(tensor):
    """Converts a tensor to JSON values."""
    array = tensor.numpy()
    if array.dtype == object:
        array = np.vectorize(lambda text: text.decode(errors="replace"), otypes="O")(array)
    return array.tolist()


@contextlib.contextmanager
def _without_collection():
    """Suspends Python's garbage collection, which would take ten seconds to check millions of lists that are in use."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


class Application:
    """The REST interface and the page as a WSGI application, for at most `max_rows` images per request."""

    def __init__(self, model, name, max_rows=128, max_body=LIMITS["max_body"], verbose=False, samples=()):
        self.model, self.name, self.max_rows, self.max_body, self.verbose = model, name, max_rows, max_body, verbose
        self.samples = {f"/samples/{i}": Path(path) for i, path in enumerate(samples)}
        self.stopping = False
        # Parsed JSON needs about 25 times the memory of its text, so requests are parsed one at a time.
        self.parsing = threading.Lock()

    def __call__(self, environ, start_response):
        try:
            status, body = self.respond(environ)
        except BadRequestError as error:
            status, body = HTTPStatus.BAD_REQUEST, {"error": str(error)}
        except Exception as error:
            traceback.print_exc()
            status = HTTPStatus.INTERNAL_SERVER_ERROR
            body = {"error": f"The server failed: {type(error).__name__}: {error}"}
        kind, body = ("application/json", json.dumps(body).encode()) if isinstance(body, dict) else body
        headers = [("Content-Type", kind), ("Content-Length", str(len(body))), *HEADERS]
        start_response(f"{status.value} {status.phrase}", headers)
        if self.verbose:
            _log(f"{environ['REQUEST_METHOD']} {environ['PATH_INFO']} {status.value}")
        return [] if environ["REQUEST_METHOD"] == "HEAD" else [body]

    def respond(self, environ):
        """Returns the status and the body of a response: a dict for JSON, or (type, bytes) for a file of the page."""
        # WSGI passes the bytes of a path as Latin-1.
        method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"].encode("latin-1").decode(errors="replace")
        address = f"/v1/models/{self.name}"
        if path not in (address, f"{address}:predict", *PAGE, *self.samples):
            error = f"Expected the path {address}, {address}:predict or /. Received: {path}"
            return HTTPStatus.NOT_FOUND, {"error": error}
        expected = "POST" if path == f"{address}:predict" else "GET"
        if method != expected and (method, expected) != ("HEAD", "GET"):
            return HTTPStatus.METHOD_NOT_ALLOWED, {"error": f"Expected {expected} {path}. Received: {method}"}
        # A browser sends the origin of the page that makes the POST request. Refuse pages of other servers.
        origin, host = environ.get("HTTP_ORIGIN"), environ.get("HTTP_HOST")
        if method == "POST" and origin is not None and urlsplit(origin).netloc != host:
            error = f"Expected a request from a page of {host}. Received: a request from a page of {origin}"
            return HTTPStatus.FORBIDDEN, {"error": error}
        if path in PAGE:
            return HTTPStatus.OK, self._file(*PAGE[path])
        if path in self.samples:
            return HTTPStatus.OK, (SAMPLES[self.samples[path].suffix.lower()], self.samples[path].read_bytes())
        if method != "POST":
            status = {"error_code": "OK", "error_message": ""}
            version = {"version": self.model.version, "state": "AVAILABLE", "status": status}
            return HTTPStatus.OK, {"model_version_status": [version]}
        body = environ["wsgi.input"].read()
        if self.stopping:
            return HTTPStatus.SERVICE_UNAVAILABLE, {"error": "The server is stopping. Send the request again later."}
        try:
            with self.parsing, _without_collection():
                call = self.model.parse(body, self.max_rows)
        except RecursionError as error:
            raise BadRequestError("Expected JSON with fewer nested lists.") from error
        return HTTPStatus.OK, call()

    def _file(self, name, kind):
        """Returns the type and the bytes of a file of the page. {{model}} is replaced by a description of the model."""
        model = {"name": self.name, "version": self.model.version, "max_body": self.max_body}
        model["signatures"] = sorted(self.model.signatures)
        model["samples"] = [path.name for path in self.samples.values()]
        text = Path(__file__).with_name(name).read_text(encoding="utf-8")
        return kind, text.replace("{{model}}", html.escape(json.dumps(model))).encode()


def make_server(application, host, port, connections=None, *, max_body, max_connections, threads, timeout):
    """Returns a listening waitress server that keeps its connections in the dict `connections`."""
    try:
        return waitress.create_server(
            application,
            map=connections,
            host=host,
            port=port,
            max_request_body_size=max_body,
            connection_limit=max_connections,
            threads=threads,
            channel_timeout=timeout,
            cleanup_interval=max(1, timeout // 2),
            # select() is limited to 1,024 connections.
            asyncore_use_poll=True,
            ident=None,
        )
    except (OSError, ValueError) as error:
        raise SystemExit(f"Cannot listen at {host}:{port}: {getattr(error, 'strerror', None) or error}") from error


def serve(server, application, connections, request_timeout):
    """Serves until SIGTERM or Ctrl-C. Then answers pending requests for up to `GRACE` seconds."""
    stop, arriving = threading.Event(), {}

    def stopped(number, frame):
        stop.set()
        # A second signal ends the process at once.
        signal.signal(number, signal.SIG_DFL)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stopped)
    threading.Thread(target=server.run, daemon=True).start()
    while not stop.wait(1):
        # Close the connections of clients that need longer than `request_timeout` to send a request. A client that
        # sends a byte per second never reaches the idle timeout.
        now, channels = time.monotonic(), [c for c in list(connections.values()) if getattr(c, "request", None)]
        arriving = {c: arriving[c] if arriving.get(c, [None])[0] is c.request else (c.request, now) for c in channels}
        for channel, (_, since) in arriving.items():
            if now - since > request_timeout:
                channel.will_close = True
    end = time.monotonic() + GRACE
    _stop_listening(connections)
    while time.monotonic() < end and any(map(_is_busy, list(connections.values()))):
        # Refuse new requests near the end of the grace period, because they could not be computed in time.
        application.stopping = time.monotonic() > end - GRACE / 5
        time.sleep(0.02)
    sys.stdout.flush()
    # End the process at once, because TensorFlow may still compute a request that took too long.
    os._exit(0)


def _stop_listening(connections):
    """Accepts the waiting connections, then closes the listening sockets, so that new clients are refused at once."""
    for server in [each for each in list(connections.values()) if getattr(each, "accepting", False)]:
        server.accepting = False
        # Wake the server's thread from poll(). The thread then calls poll() again without this socket.
        server.pull_trigger()
        time.sleep(0.05)
        with selectors.DefaultSelector() as waiting:
            waiting.register(server.socket, selectors.EVENT_READ)
            while waiting.select(0):
                server.handle_accept()
        server.socket.close()


def _is_busy(connection):
    """Returns True if a connection has a request or an unsent response, or was active less than `QUIET` seconds ago."""
    busy = any(getattr(connection, name, None) for name in ("request", "requests", "total_outbufs_len"))
    return busy or time.time() - getattr(connection, "last_activity", 0) < QUIET


def main(argv=None):
    """Serves until stopped."""
    parser = argparse.ArgumentParser(
        description="Serves a SavedModel with TensorFlow Serving's REST interface.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("folder", help="the folder with the versions of the model, such as models/vit")
    parser.add_argument("--name", help="the model's name in URLs; by default the name of the folder")
    parser.add_argument("--host", default="127.0.0.1", help="the address to listen on")
    parser.add_argument("--port", type=int, default=8501, help="the port; 0 selects a free port")
    parser.add_argument("--max-body", type=int, default=LIMITS["max_body"], help="maximum size of a request in bytes")
    parser.add_argument("--max-rows", type=int, default=LIMITS["max_rows"], help="maximum images in a request")
    connections = "the maximum number of open connections; further connections wait"
    parser.add_argument("--max-connections", type=int, default=LIMITS["max_connections"], help=connections)
    parser.add_argument("--threads", type=int, default=LIMITS["threads"], help="requests computed at the same time")
    timeout = "seconds after which a silent connection is closed"
    parser.add_argument("--timeout", type=int, default=LIMITS["timeout"], help=timeout)
    timeout = "seconds after which a request that is still arriving is dropped"
    parser.add_argument("--request-timeout", type=int, default=REQUEST_TIMEOUT, help=timeout)
    parser.add_argument("--samples", help="a folder of JPEG and PNG files; the page shows the first eight")
    args = vars(parser.parse_args(argv))
    if not 0 <= args["port"] <= 65535:
        parser.error(f"argument --port: expected 0 to 65535. Received: {args['port']}")
    for limit in (*LIMITS, "request_timeout"):
        if args[limit] < 1:
            parser.error(f"argument --{limit.replace('_', '-')}: expected 1 or more. Received: {args[limit]}")
    folder, name, samples = args.pop("folder"), args.pop("name"), args.pop("samples")
    if samples is not None and not Path(samples).is_dir():
        parser.error(f"argument --samples: expected a folder. Received: {samples}")
    files = sorted(filter(Path.is_file, Path(samples).iterdir())) if samples else []
    samples = [path for path in files if path.suffix.lower() in SAMPLES]
    # Give TensorFlow more threads. By default, decoding four large images at the same time would use all threads.
    os.environ.setdefault("TF_NUM_INTEROP_THREADS", str(8 * args["threads"]))
    limits = args.pop("max_rows"), args["max_body"]
    name = name or Path(folder).resolve().name
    application = Application(Model(folder), name, *limits, verbose=True, samples=samples[:8])
    connections, request_timeout = {}, args.pop("request_timeout")
    server = make_server(application, connections=connections, **args)
    # A host name may resolve to several addresses.
    listen = getattr(server, "effective_listen", None) or [(server.effective_host, server.effective_port)]
    for host, port in listen:
        address = f"http://{host}:{port}"
        model = f"{address}/v1/models/{application.name}"
        print(f"Version {application.model.version} is served at {model}:predict, a page at {address}/", flush=True)
    serve(server, application, connections, request_timeout)


if __name__ == "__main__":
    sys.exit(main())
