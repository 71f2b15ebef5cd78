"""Compares the input pipeline with other pipelines: images per second, in total and per second of CPU time.

`--task crop` (the default) decodes a JPEG, crops it at random to 224 pixels and flips it. The peers are
`keras.utils.image_dataset_from_directory` with RandomCrop and RandomFlip on batches, and a hand-written tf.data
pipeline that uses `decode_and_crop_jpeg`.

`--task augment` adds RandAugment, random erasing, and MixUp or CutMix, as in DeiT (the policy "deit", with each image
once). The row `resized` is our pipeline on a copy that `resize_folder` made. timm's row uses PyTorch's DataLoader
without workers, timm's RandAugment, erasing and mixing, and Pillow to decode and crop, because timm's own crop needs
torchvision. The row of keras_cv applies its layers after the hand-written crop, with RandomCutout for erasing.

The pipelines take turns in one process. The number of images per CPU second is the speed of one core, whatever else the
machine does. A GPU that trains on --gpu images per second needs --gpu divided by this number of cores. --enlarge-to
first writes a copy of the images with this shorter side in pixels; 375 is the shorter side of most of ImageNet's
photos. An interrupted benchmark continues where it stopped.

    python benchmarks/pipeline.py --data flowers17
    python benchmarks/pipeline.py --data flowers17 --task augment --enlarge-to 375 --gpu 1500
"""

import argparse
import contextlib
import dataclasses
import math
import os
import pathlib
import random
import statistics
import tempfile
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import tensorflow as tf
from measure import resumed, write
from PIL import Image

from keras_vit import data
from keras_vit.console import text_table

RESULTS = pathlib.Path(__file__).parent / "results"
SIZE, BATCH = 224, 64
# Batches per round.
WARM_UP, TIMED = 10, 40
POLICY = dataclasses.replace(data.POLICIES["deit"], repeats=1)
SHORTER_SIDE = 256


def ours(folder, policy="none"):
    return data.from_directory(folder, image_size=SIZE, batch_size=BATCH, repeat=True, augment=policy)


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


def files_of(folder):
    """Returns the names of the classes, and arrays of paths and labels."""
    names = sorted(entry.name for entry in folder.iterdir() if entry.is_dir())
    files = [(str(file), i) for i, name in enumerate(names) for file in sorted((folder / name).iterdir())]
    return names, *(np.array(column) for column in zip(*files, strict=True))


def cropped(folder):
    """Returns a tf.data.Dataset of images of 0..255, cropped and flipped by hand, and labels."""
    _, paths, labels = files_of(folder)

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
        return tf.image.random_flip_left_right(image), label

    pairs = tf.data.Dataset.from_tensor_slices((paths, labels)).shuffle(len(paths), seed=0).repeat()
    return pairs.map(load, tf.data.AUTOTUNE)


def by_hand(folder):
    images = cropped(folder).map(lambda image, label: (image / 127.5 - 1, label), tf.data.AUTOTUNE)
    return images.batch(BATCH).prefetch(tf.data.AUTOTUNE)


def by_keras_cv(folder):
    import keras_cv

    classes = len(files_of(folder)[0])
    augment = keras_cv.layers.RandAugment((0, 255), POLICY.randaugment[0], magnitude=0.9, rate=0.5)
    erase = keras_cv.layers.RandomCutout((0.1, 0.5), (0.1, 0.5), "gaussian_noise")
    mix, cut = keras_cv.layers.MixUp(POLICY.mixup), keras_cv.layers.CutMix(POLICY.cutmix)

    def finish(images, labels):
        images = erase(augment(images))
        batch = {"images": images, "labels": tf.one_hot(labels, classes)}
        batch = tf.cond(tf.random.uniform(()) < 0.5, lambda: mix(batch), lambda: cut(batch))
        return batch["images"] / 127.5 - 1, batch["labels"]

    return cropped(folder).batch(BATCH).map(finish, tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)


def crop_by_pillow(image):
    """Returns a random crop of a Pillow image, drawn as torchvision does."""
    width, height = image.size
    for _ in range(10):
        area = width * height * random.uniform(0.05, 1)
        ratio = math.exp(random.uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if w <= width and h <= height:
            break
    else:
        w = h = min(width, height)
    left, top = random.randint(0, width - w), random.randint(0, height - h)
    return image.resize((SIZE, SIZE), Image.Resampling.BILINEAR, (left, top, left + w, top + h))


def by_timm(folder):
    from peers import import_timm

    import_timm()
    import torch
    from timm.data.auto_augment import rand_augment_transform
    from timm.data.mixup import Mixup
    from timm.data.random_erasing import RandomErasing

    # One core, as each of the DataLoader's workers.
    torch.set_num_threads(1)
    names, paths, labels = files_of(folder)
    number, magnitude = POLICY.randaugment
    augment = rand_augment_transform(f"rand-m{magnitude}-n{number}-mstd{POLICY.magnitude_std}-inc1")
    erase = RandomErasing(POLICY.erasing, mode="pixel", device="cpu")
    mix = Mixup(POLICY.mixup, POLICY.cutmix, label_smoothing=POLICY.label_smoothing, num_classes=len(names))

    class Photos(torch.utils.data.Dataset):
        def __len__(self):
            return len(paths)

        def __getitem__(self, i):
            with Image.open(paths[i]) as file:
                image = crop_by_pillow(file.convert("RGB"))
            if random.random() < 0.5:
                image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
            return torch.from_numpy(np.array(augment(image)).transpose(2, 0, 1)), int(labels[i])

    class Batches:
        def __iter__(self):
            while True:
                loader = torch.utils.data.DataLoader(Photos(), BATCH, shuffle=True, drop_last=len(paths) >= BATCH)
                for images, numbers in loader:
                    yield mix(erase(images.float().sub_(127.5).div_(127.5)), numbers)

    return Batches()


def by_ours_resized(folder):
    copy = folder.parent / f"{folder.name}_{SHORTER_SIDE}"
    if data.resize_folder(folder, copy, shorter_side=SHORTER_SIDE):
        raise RuntimeError(f"Expected images that decode in {folder}")
    return ours(copy, POLICY)


TASKS = {
    "crop": {"keras_vit": ours, "keras": by_keras, "by_hand": by_hand},
    "augment": {
        "keras_vit": lambda folder: ours(folder, POLICY),
        "resized": by_ours_resized,
        "timm": by_timm,
        "keras_cv": by_keras_cv,
    },
}


def rates(batches, warm_up, timed):
    """Returns the images per second and per CPU second of a running epoch, without the setup time."""
    iterator = iter(batches)
    for _ in range(warm_up):
        next(iterator)
    start, cpu = time.perf_counter(), time.process_time()
    count = sum(len(next(iterator)[0]) for _ in range(timed))
    return count / (time.perf_counter() - start), count / (time.process_time() - cpu)


def enlarged(folder, side, out):
    """Writes copies of all images with a shorter side of so many pixels; returns their folder."""
    for file in sorted(folder.glob("*/*")):
        with Image.open(file) as image:
            factor = side / min(image.size)
            size = [round(length * factor) for length in image.size]
            copy = out / file.parent.name / f"{file.stem}.jpg"
            copy.parent.mkdir(parents=True, exist_ok=True)
            image.convert("RGB").resize(size, Image.Resampling.BICUBIC).save(copy, quality=95)
    return out


def summary(content):
    """Returns the table of a results file."""
    lines, gpu = [], content["images/s of the GPU"]
    for name, samples in content["samples"].items():
        wall, cpu = (statistics.median(column) for column in zip(*samples, strict=True))
        pairs = zip(content["samples"]["keras_vit"], samples, strict=False)
        ratio = statistics.median(ours[1] / theirs[1] for ours, theirs in pairs)
        lines.append([name, wall, cpu, ratio, math.ceil(gpu / cpu)])
    columns = ["pipeline", "images/s", "images/CPU s", "ours / it", f"cores for {gpu:,} images/s"]
    return text_table(columns, lines, decimals=2)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n\n    ")[0], formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=pathlib.Path, required=True, help="a folder with a folder of JPEGs a class")
    parser.add_argument("--task", choices=TASKS, default="crop", help="(default: crop)")
    parser.add_argument("--enlarge-to", type=int, help="pixels of the shorter side (default: the images as they are)")
    parser.add_argument("--gpu", type=int, default=1500, help="images/s of a GPU that trains B/16 (default: 1500)")
    parser.add_argument("--rounds", type=int, default=15, help="timed rounds (default: 15)")
    parser.add_argument("--quick", action="store_true", help="one round of a batch, no file: to see that it runs")
    parser.add_argument("--out", type=pathlib.Path, help="the JSON (default: results/pipeline_<task>.json)")
    args = parser.parse_args()
    out = None if args.quick else args.out or RESULTS / f"pipeline_{args.task}.json"
    rounds, warm_up, timed = (1, 0, 1) if args.quick else (args.rounds, WARM_UP, TIMED)
    facts = {"task": args.task, "enlarged to": args.enlarge_to, "batch": BATCH, "images/s of the GPU": args.gpu}
    content = resumed(out, facts)
    samples = content.setdefault("samples", {})
    with contextlib.ExitStack() as stack:
        folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="keras_vit_"))) / "images"
        if args.enlarge_to is None:
            # A copy of the images is written beside their folder.
            folder.symlink_to(args.data.resolve())
        else:
            enlarged(args.data, args.enlarge_to, folder)
        sides = {}
        for name, make in TASKS[args.task].items():
            try:
                sides[name] = make(folder)
            except ImportError as error:
                print(f"skipped {name}: {error}")
                continue
            samples.setdefault(name, [])
            rates(sides[name], warm_up, timed)
        names = list(sides)
        while (i := min(len(samples[name]) for name in names)) < rounds:
            # The order rotates.
            for name in names[i % len(names) :] + names[: i % len(names)]:
                if len(samples[name]) == i:
                    samples[name].append(rates(sides[name], warm_up, timed))
            content.setdefault("load average", []).append(os.getloadavg()[0])
            write(out, content)
    print(summary(content))


if __name__ == "__main__":
    main()
