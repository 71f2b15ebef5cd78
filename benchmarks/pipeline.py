"""Images per second of the input pipeline (decode JPEG, random crop to 224, flip), compared with two others.

These are `keras.utils.image_dataset_from_directory` with RandomCrop and RandomFlip on batches, and a hand-written
tf.data pipeline around `decode_and_crop_jpeg`. The three take turns in one process; the result is the median of the
ratios.

    python benchmarks/pipeline.py --data flowers17
"""

import argparse
import json
import os
import pathlib
import platform
import statistics
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import tensorflow as tf

from keras_vit import data
from keras_vit.files import replacing

SIZE, BATCH = 224, 64
# Batches per round.
WARM_UP, TIMED = 10, 40


def ours(folder):
    return data.from_directory(folder, image_size=SIZE, batch_size=BATCH, repeat=True)


def by_keras(folder):
    """Keras' pipeline; images are resized to 256, as for the crop in the paper's fine-tuning."""
    images = keras.utils.image_dataset_from_directory(
        folder, image_size=(256, 256), batch_size=BATCH, seed=0, verbose=False
    )
    layers = [keras.layers.RandomCrop(SIZE, SIZE, seed=0), keras.layers.RandomFlip("horizontal", seed=1)]
    layers.append(keras.layers.Rescaling(1 / 127.5, -1))

    def augment(x, y):
        for layer in layers:
            x = layer(x, training=True)
        return x, y

    return images.repeat().map(augment, tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)


def by_hand(folder):
    names = sorted(entry.name for entry in folder.iterdir() if entry.is_dir())
    files = [(str(file), i) for i, name in enumerate(names) for file in sorted((folder / name).iterdir())]
    paths, labels = (np.array(column) for column in zip(*files, strict=True))

    def load(path, label):
        encoded = tf.io.read_file(path)
        start, size, _ = tf.image.sample_distorted_bounding_box(
            tf.image.extract_jpeg_shape(encoded),
            tf.zeros((0, 0, 4)),
            min_object_covered=0.0,
            aspect_ratio_range=(3 / 4, 4 / 3),
            area_range=(0.05, 1.0),
            use_image_if_no_bounding_boxes=True,
        )
        window = tf.concat([start[:2], size[:2]], 0)
        image = tf.image.resize(tf.image.decode_and_crop_jpeg(encoded, window, 3), (SIZE, SIZE))
        return tf.image.random_flip_left_right(image) / 127.5 - 1, label

    pairs = tf.data.Dataset.from_tensor_slices((paths, labels)).shuffle(len(files), seed=0).repeat()
    return pairs.map(load, tf.data.AUTOTUNE).batch(BATCH).prefetch(tf.data.AUTOTUNE)


def rate(dataset):
    """Returns the images per second of a running epoch, without the setup time."""
    iterator = iter(dataset)
    for _ in range(WARM_UP):
        next(iterator)
    start = time.perf_counter()
    count = sum(len(next(iterator)[0]) for _ in range(TIMED))
    return count / (time.perf_counter() - start)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--data", type=pathlib.Path, required=True, help="a folder with a folder of JPEGs a class")
    parser.add_argument("--rounds", type=int, default=15, help="timed rounds (default: 15)")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path(__file__).parent / "results" / "pipeline.json")
    args = parser.parse_args()
    sides = {"keras_vit": ours(args.data), "keras": by_keras(args.data), "by_hand": by_hand(args.data)}
    for dataset in sides.values():
        rate(dataset)
    loads, rates = [os.getloadavg()[0]], {name: [] for name in sides}
    names = list(sides)
    for i in range(args.rounds):
        # The order rotates.
        for name in names[i % 3 :] + names[: i % 3]:
            rates[name].append(rate(sides[name]))
        loads.append(os.getloadavg()[0])
    content = {
        "task": f"decode, crop to {SIZE}, flip; batches of {BATCH}",
        "backend": keras.backend.backend(),
        "images": sides["keras_vit"].num_images,
        "rounds": args.rounds,
        "cpu_count": os.cpu_count(),
        "machine": platform.machine(),
        "load_average": {"min": min(loads), "max": max(loads)},
        "images_per_second": {name: statistics.median(values) for name, values in rates.items()},
        "ratios": {},
        "samples": rates,
    }
    for name in names[1:]:
        ratios = [a / b for a, b in zip(rates["keras_vit"], rates[name], strict=True)]
        low, median, high = np.quantile(ratios, (0.25, 0.5, 0.75)).tolist()
        content["ratios"][name] = {"q1": low, "median": median, "q3": high}
        print(f"keras_vit / {name}: {median:.3f} ({low:.3f} to {high:.3f})")
    print({name: round(value) for name, value in content["images_per_second"].items()}, "images/s, load", loads)
    with replacing(args.out) as draft:
        draft.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
