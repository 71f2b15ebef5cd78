"""Sends image files to a server and prints their classes. It uses only the standard library.

The server is TensorFlow Serving or server.py. Export the model with postprocess="classify". If you export the model
without `postprocess`, this script prints the outputs instead of the class.

Command:  python examples/serve/client.py cat.jpg dog.png
Hardware: any.
Expected: one line per image with the file's name, the top-1 class and the probability. If the server cannot read the
          image, the line contains the reason instead of the class.
"""

import argparse
import base64
import json
import sys
import urllib.error
import urllib.request
from pathlib import Path


def predict(url, images):
    """Sends the bytes of image files to the server at `url`; returns one dict of outputs per image."""
    rows = [{"image_bytes": {"b64": base64.b64encode(data).decode()}} for data in images]
    body = json.dumps({"signature_name": "serving_bytes", "instances": rows}).encode()
    request = urllib.request.Request(f"{url}:predict", body, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return json.load(response)["predictions"]
    except urllib.error.HTTPError as error:
        raise SystemExit(f"The server refused: {error.read().decode(errors='replace')}") from error
    except OSError as error:
        # OSError includes URLError, connection errors and timeouts.
        reason = getattr(error, "reason", error)
        if isinstance(reason, (BrokenPipeError, ConnectionResetError)):
            cause = f"The request of {len(body)} bytes may be larger than the server's --max-body."
            raise SystemExit(f"The server at {url} closed the connection. {cause}") from error
        raise SystemExit(f"No server answers at {url}: {reason}. Start one, or pass --url.") from error


def main(argv=None):
    """Prints one line per image; returns 1 if an image could not be read."""
    parser = argparse.ArgumentParser(description="Classifies images with a server that runs an exported model.")
    parser.add_argument("images", nargs="+", type=Path, metavar="IMAGE")
    parser.add_argument("--url", default="http://127.0.0.1:8501/v1/models/vit")
    args = parser.parse_args(argv)
    try:
        images = [path.read_bytes() for path in args.images]
    except OSError as error:
        raise SystemExit(f"Cannot read {error.filename}: {error.strerror}") from error
    # A request with several photos could be larger than the server allows.
    answers = [predict(args.url, [image])[0] for image in images]
    for path, answer in zip(args.images, answers, strict=True):
        if answer["status"] != "ok":
            print(f"{path}: {answer['status']}")
        elif "labels" in answer:
            print(f"{path}: {answer['labels'][0]} {answer['scores'][0]:.3f}")
        else:
            outputs = {name: value for name, value in answer.items() if name != "status"}
            print(f"{path}: {outputs.get('outputs', outputs)}")
    return int(any(answer["status"] != "ok" for answer in answers))


if __name__ == "__main__":
    sys.exit(main())
