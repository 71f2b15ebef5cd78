"""Exports a model to every format, from every backend, in every precision, and compares the outputs with the model's.

Each cell of the table is one call of keras_vit.export. Results go to results/export_<backend>.json after each cell, so
an interrupted run resumes. --table prints the results as the Markdown table of the documentation.

    python benchmarks/export.py --weights ViT-B_16-224.npz --images ViT-B_16-224.reference.npz
    python benchmarks/export.py --table
"""

import argparse
import importlib.metadata
import json
import os
import pathlib
import platform
import subprocess
import sys
import tempfile
import time

BACKENDS = ("tensorflow", "jax", "torch")
PRECISIONS = ("float32", "float16", "bfloat16", "int8")
FORMATS = {
    "saved_model": ("SavedModel", ""),
    "onnx": ("ONNX", ".onnx"),
    "openvino": ("OpenVINO", ".xml"),
    "litert": ("LiteRT", ".tflite"),
    "torch_export": ("torch.export", ".pt2"),
}
PACKAGES = ("keras", "tensorflow", "tensorflow-cpu", "jax", "torch", "onnx", "onnxscript", "onnxruntime", "openvino")
PACKAGES += ("ai-edge-litert", "numpy")
RESULTS = pathlib.Path(__file__).parent / "results"
ONLY_FLOAT32 = "its weights are stored as TensorFlow computes with them"
# {start of an error message: the reason that the table shows}.
SHORT_REASONS = {
    ONLY_FLOAT32: "A SavedModel's weights are stored as TensorFlow computes with them.",
    "Invalid value received for argument `precision`. Expected, for .tflite files": (
        "LiteRT's converter stores no bfloat16."
    ),
}
LOAD_SAVED_MODEL = """
import sys, numpy, tensorflow as tf
serve = tf.saved_model.load(sys.argv[1]).signatures["serving_default"]
images = numpy.load(sys.argv[2])
batches = [images[i : i + 8] for i in range(0, len(images), 8)]
numpy.save(sys.argv[3], numpy.concatenate([serve(images=batch)["outputs"] for batch in batches]))
"""


def versions():
    found = {}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def load(args):
    """Returns the model, the preprocessed images, and the labels."""
    import keras
    import numpy as np

    import keras_vit

    if args.weights is None:
        keras.utils.set_random_seed(0)
        sizes = {"image_size": 32, "num_layers": 2, "hidden_dim": 96, "num_heads": 3, "mlp_dim": 192}
        model = keras_vit.ViT("B/16", num_classes=10, head_init="glorot_uniform", **sizes)
        return model, np.random.default_rng(0).uniform(-1, 1, (21, 32, 32, 3)).astype("float32"), None
    model = keras_vit.from_pretrained(args.weights)
    with np.load(args.images) as file:
        images = keras_vit.preprocess_input(file["images"].astype("float32"), model)
        return model, np.asarray(images), file["labels"]


def run_cell(model, images, labels, format, precision, folder):
    """Runs one cell of the table: returns the export report, or the reason for a failure."""
    import keras_vit.export

    path = pathlib.Path(folder, f"{format}_{precision}{FORMATS[format][1]}")
    start = time.perf_counter()
    try:
        if format == "saved_model":
            cell = saved_model_cell(model, images, labels, precision, path)
        else:
            report = getattr(keras_vit.export, format)(model, path, precision=precision, images=images, labels=labels)
            cell = {"size": report["size"], "difference": report["difference"], "num_checked": report["num_checked"]}
            cell["change"] = report["change"]
    except (ImportError, ValueError, RuntimeError) as error:
        return {"refused": str(error)}
    return {**cell, "seconds": round(time.perf_counter() - start, 1)}


def saved_model_cell(model, images, labels, precision, path):
    import numpy as np

    import keras_vit.export
    from keras_vit.export.parity import accuracy_change, model_outputs

    if precision != "float32":
        raise ValueError(ONLY_FLOAT32)
    keras_vit.export.saved_model(model, path)
    files = path.with_name("images.npy"), path.with_name("outputs.npy")
    np.save(files[0], images)
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "-1"}
    subprocess.run([sys.executable, "-c", LOAD_SAVED_MODEL, path, *files], check=True, env=environment)
    change = accuracy_change(model_outputs(model, images)[0], np.load(files[1]), labels)
    size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    return {"size": size, "difference": change["largest"], "num_checked": len(images), "change": change}


def run_backend(args):
    """Runs the missing cells of the current backend."""
    import keras

    from keras_vit.files import replacing
    from keras_vit.version import __version__

    path = args.out / f"export_{keras.backend.backend()}.json"
    content = json.loads(path.read_text(encoding="utf-8")) if path.exists() and not args.again else {"cells": {}}
    model, images, labels = load(args)
    name = "tiny" if args.weights is None else pathlib.Path(args.weights).name
    if content.setdefault("model", name) != name:
        raise SystemExit(f"{path} holds results of {content['model']!r}: pass --again to replace them by {name!r}.")
    content |= {
        "num_parameters": model.count_params(),
        "backend": keras.backend.backend(),
        "keras_vit": __version__,
        "machine": platform.machine(),
        "python": platform.python_version(),
        "versions": versions(),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    for precision in args.precisions:
        for format in args.formats:
            key = f"{format} {precision}"
            if key in content["cells"]:
                continue
            with tempfile.TemporaryDirectory(prefix="keras_vit_") as folder:
                content["cells"][key] = run_cell(model, images, labels, format, precision, folder)
            with replacing(path) as draft:
                draft.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
            print(keras.backend.backend(), key, content["cells"][key], flush=True)


def table(folder):
    """Returns the Markdown table and the reasons for refused cells; combinations without results have no row."""
    results = {}
    for backend in BACKENDS:
        path = folder / f"export_{backend}.json"
        if path.exists():
            results[backend] = json.loads(path.read_text(encoding="utf-8"))["cells"]
    lines = ["| Format | weights | MB | TensorFlow | JAX | PyTorch | same top-1 | change |", "|---" * 8 + "|"]
    reasons = {}
    for format, (title, _) in FORMATS.items():
        refused = {}
        for precision in PRECISIONS:
            cells = [results.get(backend, {}).get(f"{format} {precision}") for backend in BACKENDS]
            row = [_difference(cell, reasons) for cell in cells]
            done = [cell for cell in cells if cell is not None and "refused" not in cell]
            if done:
                changes = [cell["change"] for cell in done]
                top1 = f"{min(c['same_top1'] for c in changes)} of {changes[0]['num_images']}"
                change = f"{max(c['largest'] for c in changes):.1g}"
                row = [f"{max(cell['size'] for cell in done) / 1e6:.0f}", *row, top1, change]
                lines.append(f"| {' | '.join([title, precision, *row])} |")
            elif any(cells):
                refused.setdefault(tuple(row), []).append(precision)
        lines += [f"| {title} | {', '.join(names)} | | {' | '.join(row)} | | |" for row, names in refused.items()]
    return "\n".join([*lines, "", " ".join(f"({number}) {reason}" for reason, number in reasons.items())]).rstrip()


def _difference(cell, reasons):
    """Returns a cell's text for one backend; notes the reason if the export is refused."""
    if cell is None:
        return "not run"
    if "refused" not in cell:
        return f"{cell['difference']:.1g}"
    said = cell["refused"].strip().splitlines()[-1]
    reason = next((short for start, short in SHORT_REASONS.items() if said.startswith(start)), said)
    return f"no ({reasons.setdefault(reason, len(reasons) + 1)})"


def parse_arguments():
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n\n    ")[0], formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--weights", help="a checkpoint (default: a tiny model of random weights)")
    parser.add_argument("--images", help=".npz of images, uint8 of the model's size, and labels")
    parser.add_argument("--backends", nargs="+", choices=BACKENDS, default=BACKENDS)
    parser.add_argument("--formats", nargs="+", choices=FORMATS, default=tuple(FORMATS))
    parser.add_argument("--precisions", nargs="+", choices=PRECISIONS, default=PRECISIONS)
    parser.add_argument("--again", action="store_true", help="ignore the results of earlier runs and replace them")
    parser.add_argument("--table", action="store_true", help="only print the table of the results of earlier runs")
    parser.add_argument("--out", type=pathlib.Path, default=RESULTS, help="folder of the JSON files")
    args = parser.parse_args()
    if (args.weights is None) != (args.images is None):
        parser.error("--weights and --images go together")
    return args


def main():
    args = parse_arguments()
    if not args.table:
        if os.environ.get("KERAS_VIT_EXPORT_CHILD"):
            run_backend(args)
            return
        for backend in args.backends:
            # Each process has one backend.
            environment = {**os.environ, "KERAS_BACKEND": backend, "KERAS_VIT_EXPORT_CHILD": "1"}
            subprocess.run([sys.executable, *sys.argv], check=True, env=environment)
    print(table(args.out))


if __name__ == "__main__":
    main()
