"""Executes the notebooks of this folder, and stores them with their outputs. The .py files are the notebooks' sources.

The environment variable KERAS_BACKEND chooses the backend. samples.py prepares the data of the notebooks, and describes
the environment variables KERAS_VIT_SAMPLES and KERAS_VIT_QUICK.

Command:  python examples/notebooks/run.py [NAME ...] [--check]
Needs:    pip install ".[notebooks]", in a clone of the repository
"""

import argparse
import os
import re
import shutil
import sys
import tempfile
import time
from pathlib import Path

import jupytext
import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

FOLDER = Path(__file__).resolve().parent
SAMPLES = FOLDER / "samples.py"
# Options of the kernel that make the pictures in the notebooks small.
PICTURES = [
    "--InlineBackend.figure_formats={'jpeg'}",
    "--InlineBackend.print_figure_kwargs={'bbox_inches': 'tight', 'dpi': 64, 'pil_kwargs': {'quality': 75}}",
]
# Matches the log lines that TensorFlow's C++ code writes before logging can be switched off.
NATIVE_LOGS = re.compile(
    r"^(WARNING: All log messages before absl|[IW]\d{4} \d\d:|To enable the following).*\n?", re.MULTILINE
)


def sources(folder=FOLDER):
    """Returns {name: path} of the notebooks' sources."""
    return {path.stem: path for path in sorted(folder.glob("*.py")) if path.stem not in ("run", "samples")}


def read(path):
    """Converts a source file to a notebook without outputs. The same file always gives the same notebook."""
    notebook = jupytext.read(path, fmt="py:percent")
    notebook.metadata = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    for i, cell in enumerate(notebook.cells):
        cell.id = f"cell-{i}"
    return notebook


def execute(path):
    """Returns the notebook of a source file with its outputs; raises an error if a cell fails or warns."""
    notebook = read(path)
    options = {"record_timing": False, "coalesce_streams": True, "extra_arguments": ["--log-level=ERROR", *PICTURES]}
    client = NotebookClient(notebook, timeout=None, kernel_name="python3", **options)
    # Run the notebook in a temporary folder, so that the files that it writes are deleted.
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(SAMPLES, folder)
        client.execute(cwd=folder)
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            if output.get("name") == "stderr":
                output.text = NATIVE_LOGS.sub("", output.text)
                if re.search(r"\w*Warning: ", output.text):
                    raise RuntimeError(f"Expected no warnings in {path.name}. Received: {output.text}")
        if "outputs" in cell:
            cell.outputs = [output for output in cell.outputs if output.get("text") != ""]
    return notebook


def store(notebook, path):
    """Writes a notebook, and replaces `path` only when the new file is complete."""
    # Import this late, because it imports Keras, which `--help` does not need.
    from keras_vit.files import replacing

    with replacing(path) as draft:
        nbformat.write(notebook, draft)


def parse_arguments(argv=None):
    """Parses the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="notebooks, without .py (default: all)")
    parser.add_argument("--check", action="store_true", help="only execute; write nothing")
    args = parser.parse_args(argv)
    if unknown := sorted(set(args.names) - set(sources())):
        parser.error(f"expected names among {', '.join(sources())}, received {', '.join(unknown)}")
    return args


def main(argv=None):
    """Executes the notebooks one after the other."""
    args = parse_arguments(argv)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    # Make the paths absolute, because the kernels start in another folder.
    for name in ("KERAS_VIT_SAMPLES", "PYTHONPATH"):
        if os.environ.get(name):
            os.environ[name] = os.pathsep.join(map(os.path.abspath, os.environ[name].split(os.pathsep)))
    failed = []
    for name, path in sources().items():
        if args.names and name not in args.names:
            continue
        started = time.time()
        try:
            notebook = execute(path)
        except (CellExecutionError, RuntimeError) as error:
            print(error, file=sys.stderr)
            failed.append(name)
        else:
            if not args.check:
                store(notebook, path.with_suffix(".ipynb"))
        print(f"{name}: {'failed' if name in failed else 'executed'} in {time.time() - started:.0f} s", flush=True)
    if failed:
        raise SystemExit(f"These notebooks failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
