"""Compares ViT-B/16 in int8 and bfloat16 with float32: speed and top-1 in OpenVINO, ONNX Runtime and TensorFlow.

The pictures are random crops and flips of reference images. A third of the reference images is used for calibration,
and the rest for the comparison of top-1 classes. The sides take turns. A row's ratio is its images per second divided
by the images per second of the same runtime in float32: the median over rounds, with an interval of at least 95% for
the median. OpenVINO is set to compute in float32, since it would use bfloat16 on a processor with AMX. Agreement is the
share of pictures that have the same top-1 class as in the float32 model.

    KERAS_BACKEND=tensorflow PYTHONPATH=. python benchmarks/int8.py --weights ViT-B_16-224.npz \
        --images ViT-B_16-224.reference.npz
"""

import argparse
import functools
import importlib.metadata
import json
import os
import pathlib
import tempfile

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
from measure import compare, medians, processor, take_turns

import keras_vit
from keras_vit.files import replacing

RESULTS = pathlib.Path(__file__).parent / "results" / "int8.json"
BASES = {"OpenVINO": "OpenVINO float32", "ONNX": "ONNX Runtime float32", "TensorFlow": "TensorFlow float32"}


def crops(images, count, seed):
    """Returns random crops of at least half the area of each picture, flipped at random, as uint8."""
    rng = np.random.default_rng(seed)
    side = images.shape[1]
    pictures = []
    for i in range(count):
        size = rng.integers(round(0.71 * side), side + 1)
        top, left = rng.integers(0, side - size + 1, 2)
        crop = images[i % len(images), top : top + size, left : left + size]
        crop = crop[:, ::-1] if rng.random() < 0.5 else crop
        pictures.append(keras.ops.convert_to_numpy(keras.ops.image.resize(crop.astype("float32"), (side, side))))
    return np.stack(pictures).round().clip(0, 255).astype("uint8")


def openvino_side(path, hint):
    import openvino

    compiled = openvino.Core().compile_model(path, "CPU", {"INFERENCE_PRECISION_HINT": hint})
    return lambda batch: compiled(batch)["outputs"]


def onnx_side(path):
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return lambda batch: session.run(None, {"images": batch})[0]


def keras_side(model):
    return lambda batch: np.asarray(model.predict_on_batch(batch), "float32")


def sides_of(model, weights, calibration, folder, bfloat16):
    """Returns {label: function that computes the logits of a batch}."""
    files = {name: str(folder / name) for name in ("float32.xml", "static.xml", "float32.onnx", "int8.onnx")}
    keras_vit.export.openvino(model, files["float32.xml"])
    report = keras_vit.export.openvino(model, files["static.xml"], precision="int8_static", images=calibration)
    print(keras_vit.export.parity.summary(report))
    keras_vit.export.onnx(model, files["float32.onnx"])
    keras_vit.export.onnx(model, files["int8.onnx"], precision="int8")
    quantized = keras_vit.from_pretrained(weights)
    quantized.quantize("int8")
    sides = {
        "OpenVINO float32": openvino_side(files["float32.xml"], "f32"),
        "OpenVINO int8_static": openvino_side(files["static.xml"], "f32"),
        "ONNX Runtime float32": onnx_side(files["float32.onnx"]),
        "ONNX Runtime int8 kernels": onnx_side(files["int8.onnx"]),
        "TensorFlow float32": keras_side(model),
        "TensorFlow int8": keras_side(quantized),
    }
    if bfloat16:
        sides["OpenVINO bfloat16"] = openvino_side(files["float32.xml"], "bf16")
        sides["TensorFlow bfloat16"] = keras_side(keras_vit.from_pretrained(weights, dtype="mixed_bfloat16"))
    return sides


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--weights", required=True, help="of a ViT")
    add("--images", required=True, help=".npz file with `images`, uint8, of the model's size")
    add("--calibrate", type=int, default=100, help="pictures to calibrate with (default: 100)")
    add("--pictures", type=int, default=500, help="pictures to score (default: 500)")
    add("--batch-size", type=int, default=8)
    add("--rounds", type=int, default=15)
    add("--no-bfloat16", action="store_true", help="leave it out, on processors that take minutes for it")
    add("--out", type=pathlib.Path, default=RESULTS)
    args = parser.parse_args()
    model = keras_vit.from_pretrained(args.weights)
    with np.load(args.images, allow_pickle=False) as file:
        images = file["images"]
    prepare = functools.partial(keras_vit.preprocess_input, model=model)
    calibration, pictures = (
        np.asarray(prepare(crops(chosen, count, seed=0)), "float32")
        for chosen, count in ((images[: len(images) // 3], args.calibrate), (images[len(images) // 3 :], args.pictures))
    )
    batches = [pictures[i : i + args.batch_size] for i in range(0, len(pictures), args.batch_size)]
    with tempfile.TemporaryDirectory() as folder:
        sides = sides_of(model, args.weights, calibration, pathlib.Path(folder), not args.no_bfloat16)
        classes = {label: np.concatenate([run(b) for b in batches]).argmax(1) for label, run in sides.items()}
        runs = {label: functools.partial(run, batches[0]) for label, run in sides.items()}
        samples, _ = take_turns(runs, len(batches[0]), args.rounds, warm_up=2)
    wall = samples["wall"]
    rows = []
    for label in sides:
        base = next(value for start, value in BASES.items() if label.startswith(start))
        ratio = None if label == base else compare({label: wall[label], base: wall[base]}, label)[base]
        rows.append(
            {
                "side": label,
                "images a second": medians(wall)[label],
                "ratio to float32": ratio,
                "top-1 agreement": float((classes[label] == classes[base]).mean()),
            }
        )
        print(label, {**rows[-1], "ratio to float32": ratio and round(ratio["median"], 3)}, flush=True)
    packages = ("keras", "openvino", "nncf", "onnxruntime")
    facts = {
        "keras_vit": keras_vit.__version__,
        "processor": processor(),
        "cores": len(os.sched_getaffinity(0)),
        "versions": {name: importlib.metadata.version(name) for name in packages},
        "batch_size": args.batch_size,
        "calibration": len(calibration),
        "pictures": len(pictures),
    }
    with replacing(args.out) as draft:
        draft.write_text(json.dumps({**facts, "rows": rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
