"""CIFAR-10 from scratch with a small hybrid on one GPU: test accuracy after the last epoch.

Uses only the 50,000 training images. The hybrid's ResNet stem (arXiv 2010.11929, section 3.1) adds the locality that a
ViT cannot learn from so few images. Augmentation is flip, shift and random erasing in NumPy. The test images are used
only for the curve and the result, never to choose an epoch or setting.

    KERAS_BACKEND=jax python benchmarks/cifar10.py --data cifar10.npz
    KERAS_BACKEND=jax python benchmarks/cifar10.py --data ~/tensorflow_datasets
"""

import argparse
import json
import os
import pathlib
import platform
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np

import keras_vit
from keras_vit.files import replacing
from keras_vit.training import AdamW, WarmupDecay


class Batches(keras.utils.PyDataset):
    """Augmented batches of (images, one-hot labels), determined by the seed."""

    def __init__(self, images, labels, args, num_classes=10, **kwargs):
        super().__init__(**kwargs)
        self.images = np.pad(images, ((0, 0), (4, 4), (4, 4), (0, 0)), mode="reflect")
        self.labels = np.eye(num_classes, dtype="float32")[labels]
        self.args, self.epoch = args, 0
        self._shuffle()

    def _shuffle(self):
        self.order = np.random.default_rng([self.args.seed, self.epoch]).permutation(len(self.labels))

    def on_epoch_end(self):
        self.epoch += 1
        self._shuffle()

    def __len__(self):
        return len(self.labels) // self.args.batch_size

    def __getitem__(self, i):
        size, erase = self.args.batch_size, self.args.erase
        rng = np.random.default_rng([self.args.seed, self.epoch, i])
        chosen = self.order[i * size : (i + 1) * size]
        side = self.images.shape[1] - 8
        rows, columns = (rng.integers(9, size=(size, 1)) + np.arange(side) for _ in range(2))
        columns = np.where(rng.random((size, 1)) < 0.5, columns[:, ::-1], columns)
        images = self.images[chosen[:, None, None], rows[:, :, None], columns[:, None, :]].astype("float32")
        labels = self.labels[chosen]
        if erase:
            tops, lefts = (rng.integers(-erase // 2, side - erase // 2, size=(size, 1)) for _ in range(2))
            inside = [(np.arange(side) >= start) & (np.arange(side) < start + erase) for start in (tops, lefts)]
            images[inside[0][:, :, None] & inside[1][:, None, :]] = 127.5
        if self.args.mixup:
            share = rng.beta(self.args.mixup, self.args.mixup, size=(size, 1)).astype("float32")
            images = share[..., None, None] * images + (1 - share[..., None, None]) * images[::-1]
            labels = share * labels + (1 - share) * labels[::-1]
        return images, labels


def read(path):
    """Reads CIFAR-10 as {split: (images, labels)}, from an .npz file or a TFDS folder."""
    if path.suffix == ".npz":
        with np.load(path, allow_pickle=False) as file:
            return {split: (file[f"{split}_images"], file[f"{split}_labels"]) for split in ("train", "test")}
    import tensorflow_datasets as tfds

    data = tfds.load("cifar10", data_dir=path, batch_size=-1, download=False)
    return {split: (data[split]["image"].numpy(), data[split]["label"].numpy()) for split in ("train", "test")}


def build(args):
    """Builds the hybrid for 32 x 32 images, upscaled by `scale` as the stem divides each side by four."""
    hybrid = keras_vit.ViT(
        "R+Ti/16",
        image_size=32 * args.scale,
        patch_size=1,
        stages=tuple(args.stages),
        width_factor=args.width_factor,
        hidden_dim=args.hidden_dim,
        num_layers=args.num_layers,
        num_heads=args.hidden_dim // 64,
        mlp_dim=2 * args.hidden_dim,
        pooling="gap",
        position_embedding="sincos2d",
        drop_path_rate=args.drop_path,
        num_classes=10,
        include_preprocessing=True,
    )
    images = keras.Input((32, 32, 3))
    larger = keras.layers.Resizing(32 * args.scale, 32 * args.scale, name="resize")(images)
    return keras.Model(images, hybrid(larger))


def parse_arguments():
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n\n    ")[0], formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--data", type=pathlib.Path, required=True, help="an .npz file, or a folder of TFDS datasets with cifar10")
    default = pathlib.Path(__file__).parent / "results" / "cifar10.json"
    add(
        "--out",
        type=pathlib.Path,
        default=default,
        help="the JSON file of the results; the PNG is written to the same folder",
    )
    add("--dtype", default="float32", help="the dtype policy")
    add("--seed", type=int, default=0)
    add("--workers", type=int, default=8, help="threads that augment")
    add("--epochs", type=int, default=50)
    add("--batch-size", type=int, default=256)
    add("--learning-rate", type=float, default=1e-3)
    add("--weight-decay", type=float, default=0.1)
    add("--warm-up", type=float, default=0.05, help="share of the steps")
    add("--label-smoothing", type=float, default=0.1)
    add("--mixup", type=float, default=0.0, help="alpha of MixUp; 0 turns MixUp off")
    add("--erase", type=int, default=10, help="side of the erased square in pixels")
    add("--scale", type=int, default=4, help="factor by which the model enlarges the images")
    add("--stages", type=int, nargs="+", default=[2, 2], help="units of each ResNet stage")
    add("--width-factor", type=float, default=1.0)
    add("--hidden-dim", type=int, default=256, help="a multiple of 64")
    add("--num-layers", type=int, default=6)
    add("--drop-path", type=float, default=0.1)
    add("--curve-every", type=int, default=5, help="epochs between points of the curve")
    add(
        "--train-images",
        type=int,
        default=50_000,
        help="number of training images; if it is below 50,000, the remaining ones are the test images",
    )
    return parser.parse_args()


def draw(path, curve, epochs):
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    axes = figure.subplots()
    axes.plot([point["epoch"] for point in curve], [point["accuracy"] for point in curve], "o-")
    last = f"{curve[-1]['accuracy']:.4f} after {curve[-1]['epoch']} of {epochs} epochs"
    axes.set(xlabel="epoch", ylabel="test accuracy", title=f"CIFAR-10 from scratch: {last}")
    axes.grid(alpha=0.3)
    with replacing(path) as draft:
        figure.savefig(draft, format="png", dpi=110)


def main():
    args = parse_arguments()
    keras.utils.set_random_seed(args.seed)
    keras.config.set_dtype_policy(args.dtype)
    data = read(args.data)
    images, labels = data["train"]
    test = (
        data["test"] if args.train_images == len(labels) else (images[args.train_images :], labels[args.train_images :])
    )
    test = test[0].astype("float32"), np.eye(10, dtype="float32")[test[1]]
    batches = Batches(images[: args.train_images], labels[: args.train_images], args, workers=args.workers)
    model = build(args)
    steps = args.epochs * len(batches)
    schedule = WarmupDecay(args.learning_rate, total_steps=steps, warmup_steps=round(args.warm_up * steps))
    model.compile(
        AdamW(schedule, weight_decay=args.weight_decay),
        keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=args.label_smoothing),
        metrics=["accuracy"],
    )
    content = {
        "backend": keras.backend.backend(),
        "device": str(keras.distribution.list_devices()),
        "keras": keras.__version__,
        "keras_vit": keras_vit.__version__,
        "python": platform.python_version(),
        "settings": {name: v for name, v in vars(args).items() if name not in ("data", "out", "workers")},
        "parameters": model.count_params(),
        "curve": [],
    }
    done, start = 0, time.perf_counter()
    for end in [*range(args.curve_every, args.epochs, args.curve_every), args.epochs]:
        loss = model.fit(batches, initial_epoch=done, epochs=end, verbose=0).history["loss"][-1]
        accuracy = model.evaluate(*test, batch_size=500, verbose=0, return_dict=True)["accuracy"]
        done = end
        content["curve"].append({"epoch": end, "loss": loss, "accuracy": accuracy})
        content["seconds"] = time.perf_counter() - start
        print(f"epoch {end}: loss {loss:.4f}, accuracy {accuracy:.4f}, {content['seconds']:.0f} s", flush=True)
        # Written after each point, so that an interrupted run keeps its results.
        with replacing(args.out) as draft:
            draft.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        draw(args.out.with_suffix(".png"), content["curve"], args.epochs)
        if not np.isfinite(loss):
            raise SystemExit(f"Expected a finite loss. Received: {loss} in epoch {end}")


if __name__ == "__main__":
    main()
