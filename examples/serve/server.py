"""A small server of SavedModels for one machine, with TensorFlow Serving's REST interface.

It needs TensorFlow alone, neither Keras nor keras_vit, and is meant for trying a model and its clients where there is
no Docker; for many users take docker-compose.yml beside it.

Command:  python examples/serve/server.py models/vit --port 8501
Hardware: any; a request takes as long as the model.
Expected: the answers of TensorFlow Serving to GET /v1/models/vit and POST /v1/models/vit:predict.
"""

import argparse
import base64
import binascii
import json
import os
import sys
import traceback
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import tensorflow as tf

# Some 100 images of 224 x 224 as numbers in JSON.
MAX_BODY = 256 * 1024 * 1024


class BadRequestError(Exception):
    """What a client did wrong."""


class Model:
    """The latest version of a model.

    Args:
        folder: The folder of its versions, each a SavedModel in a folder named by a number.
    """

    def __init__(self, folder):
        if not Path(folder).is_dir():
            raise SystemExit(f"There is no folder {folder}, which is to hold the versions of a model.")
        versions = [path for path in Path(folder).iterdir() if path.is_dir() and path.name.isdigit()]
        if not versions:
            raise SystemExit(f"There is no version in {folder}: no folder named by a number, as in {folder}/1.")
        path = max(versions, key=lambda version: int(version.name))
        self.version = path.name
        # Loading keeps the functions only as long as what they are part of.
        self.loaded = tf.saved_model.load(os.fspath(path))
        self.signatures = dict(self.loaded.signatures)

    def predict(self, request):
        """Answers the body of a request, {"instances" or "inputs": ..., "signature_name": ...}."""
        if not isinstance(request, dict) or ("instances" in request) == ("inputs" in request):
            raise BadRequestError('Expected a JSON object with "instances" (a row each) or "inputs" (a column each).')
        name = request.get("signature_name", "serving_default")
        if not isinstance(name, str) or name not in self.signatures:
            raise BadRequestError(f"Expected a signature_name out of {sorted(self.signatures)}. Received: {name!r}")
        signature = self.signatures[name]
        specs = signature.structured_input_signature[1]
        rows = "instances" in request
        columns = _columns(request["instances"], specs) if rows else _named(request["inputs"], specs)
        try:
            answer = signature(**{key: _tensor(key, columns[key], spec) for key, spec in specs.items()})
        except (tf.errors.OpError, ValueError, TypeError) as error:
            raise BadRequestError(_reason(error)) from error
        answer = {key: _plain(value) for key, value in answer.items()}
        # A single output has no name in an answer.
        single = next(iter(answer.values())) if len(answer) == 1 else None
        if not rows:
            return {"outputs": answer if single is None else single}
        if single is not None:
            return {"predictions": single}
        return {"predictions": [dict(zip(answer, row, strict=True)) for row in zip(*answer.values(), strict=True)]}


def _reason(error):
    """What is wrong, out of all that TensorFlow says about where it went wrong."""
    lines = (getattr(error, "message", None) or str(error)).splitlines()
    about = ("Graph execution error", "Detected at", "<stack", "\t", " ")
    return next((line for line in lines if line and not line.startswith(about)), "The model refused the request.")


def _columns(instances, specs):
    """The rows of a request as one list an input."""
    if not isinstance(instances, list) or not instances:
        raise BadRequestError('Expected "instances" to be a list of one row or more.')
    # Where there is one input, its name may be left out.
    rows = [row if isinstance(row, dict) and set(row) != {"b64"} else {next(iter(specs)): row} for row in instances]
    if any(set(row) != set(specs) for row in rows):
        raise BadRequestError(f"Expected each instance to have {sorted(specs)}.")
    return {key: [row[key] for row in rows] for key in specs}


def _named(inputs, specs):
    if not (isinstance(inputs, dict) and set(inputs) == set(specs)):
        inputs = {next(iter(specs)): inputs}
    return inputs


def _tensor(key, value, spec):
    """A tensor of a signature's type out of JSON."""
    try:
        if spec.dtype == tf.string:
            return tf.constant(_decoded(value), "string")
        array = np.array(value)
        if array.dtype.kind not in "iuf" or (spec.dtype.is_integer and array.dtype.kind == "f"):
            raise BadRequestError(f"Expected numbers of type {spec.dtype.name} as {key}.")
        if (
            spec.dtype.is_integer
            and array.size
            and not (spec.dtype.min <= array.min() <= array.max() <= spec.dtype.max)
        ):
            raise BadRequestError(f"Expected {key} from {spec.dtype.min} to {spec.dtype.max}.")
        # 1e39 becomes infinite, which the model itself refuses.
        with np.errstate(over="ignore"):
            return tf.constant(array.astype(spec.dtype.as_numpy_dtype))
    except (ValueError, TypeError, OverflowError) as error:
        raise BadRequestError(f"Expected {key} of shape {spec.shape} and type {spec.dtype.name}. {error}") from error


def _decoded(value):
    """Strings out of JSON, in which {"b64": ...} stands for bytes."""
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
    """A tensor as JSON has it."""
    array = tensor.numpy()
    if array.dtype == object:
        array = np.vectorize(lambda text: text.decode(errors="replace"), otypes="O")(array)
    return array.tolist()


class Handler(BaseHTTPRequestHandler):
    """Answers one connection."""

    protocol_version = "HTTP/1.1"
    timeout = 60

    def do_GET(self):
        """Says what the model is."""
        if self.path == f"/v1/models/{self.server.name}":
            status = {"error_code": "OK", "error_message": ""}
            version = {"version": self.server.model.version, "state": "AVAILABLE", "status": status}
            self._answer(200, {"model_version_status": [version]})
        else:
            self._answer(404, {"error": f"There is no {self.path}."})

    def do_POST(self):
        """Answers a prediction."""
        if self.path != f"/v1/models/{self.server.name}:predict":
            # Its body is left unread.
            self.close_connection = True
            return self._answer(404, {"error": f"There is no {self.path}."})
        try:
            length = int(self.headers.get("Content-Length", ""))
        except ValueError:
            length = -1
        if not 0 <= length <= MAX_BODY:
            self.close_connection = True
            return self._answer(413 if length > 0 else 411, {"error": f"Expected a body of up to {MAX_BODY} bytes."})
        # What goes wrong with the connection itself has nobody to be answered to.
        body = self.rfile.read(length)
        try:
            status, answer = 200, self._predict(body)
        except BadRequestError as error:
            status, answer = 400, {"error": str(error)}
        except Exception as error:
            traceback.print_exc()
            status, answer = 500, {"error": f"The server failed: {type(error).__name__}: {error}"}
        self._answer(status, answer)

    def _predict(self, body):
        try:
            try:
                request = json.loads(body)
            except ValueError as error:
                raise BadRequestError(f"Expected JSON. {error}") from error
            return self.server.model.predict(request)
        except RecursionError as error:
            raise BadRequestError("Expected JSON of fewer lists in lists.") from error

    def _answer(self, status, body):
        body = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format, *args):
        """Writes a line a request, if asked to."""
        if self.server.verbose:
            super().log_message(format, *args)


def make_server(folder, name=None, host="127.0.0.1", port=0, verbose=False):
    """Returns an HTTP server, ready for `serve_forever`."""
    model = Model(folder)
    try:
        server = ThreadingHTTPServer((host, port), Handler)
    except (OSError, OverflowError) as error:
        # In use, not allowed, or no number of a port.
        raise SystemExit(f"Cannot listen at {host}:{port}: {getattr(error, 'strerror', None) or error}") from error
    server.model, server.name, server.verbose = model, name or Path(folder).resolve().name, verbose
    return server


def main(argv=None):
    """Serves until it is stopped."""
    parser = argparse.ArgumentParser(description="Serves a SavedModel with TensorFlow Serving's REST interface.")
    parser.add_argument("folder", help="the folder of the model's versions, as models/vit")
    parser.add_argument("--name", help="the model's name in addresses (default: the folder's)")
    parser.add_argument("--host", default="127.0.0.1", help="the address to listen at (default: this machine alone)")
    parser.add_argument("--port", type=int, default=8501, help="0 takes a free one (default: 8501)")
    args = parser.parse_args(argv)
    server = make_server(args.folder, args.name, args.host, args.port, verbose=True)
    host, port = server.server_address[:2]
    print(f"Version {server.model.version} answers at http://{host}:{port}/v1/models/{server.name}:predict", flush=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        return 0


if __name__ == "__main__":
    sys.exit(main())
