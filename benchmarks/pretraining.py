"""Cost and gain of self-supervised pre-training: the MAE step time, and accuracy with few labels.

`--what step` compares MAE's training step at 75% masking with the supervised step of the same encoder (ViT-B/16 at
224); the two take turns, and the result is the median of the ratios.

`--what labels` pre-trains a small ViT on Fashion-MNIST without labels, fine-tunes it on 1,000 balanced labels, and
tests it on the 10,000 test images, for each method and seed. The baselines are trained from scratch with the same
settings ("scratch"), and for --scratch-factor times as many epochs ("scratch_long"). Results are written after each
run, so an interrupted benchmark resumes.

    python benchmarks/pretraining.py --what step
    python benchmarks/pretraining.py --what labels --data-dir ~/tensorflow_datasets
"""

import argparse
import json
import os
import pathlib
import statistics
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
from measure import compare, environment, medians, take_turns, write

import keras_vit
from keras_vit.files import replacing
from keras_vit.pretraining import MAE, MaskedPatchPrediction, SimMIM, plot_reconstructions
from keras_vit.training import AdamW, WarmupDecay

RESULTS = pathlib.Path(__file__).parent / "results"
METHODS = ("scratch", "scratch_long", "masked_patch", "simmim", "mae")


def measure_steps(args):
    """Times the two steps in turns; returns the results."""
    keras.utils.set_random_seed(0)
    size = {"image_size": args.image_size, "num_layers": args.num_layers}
    supervised = keras_vit.ViT(args.variant, num_classes=1000, **size)
    supervised.compile(keras.optimizers.AdamW(1e-4), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    mae = MAE(keras_vit.ViT(args.variant, num_classes=0, **size), mask_ratio=0.75)
    mae.compile(keras.optimizers.AdamW(1e-4))
    rng = np.random.default_rng(0)
    images = rng.uniform(-1, 1, (args.batch_size, args.image_size, args.image_size, 3)).astype("float32")
    labels = rng.integers(0, 1000, args.batch_size)
    steps = {
        "supervised": lambda: supervised.train_on_batch(images, labels),
        "mae": lambda: mae.train_on_batch(images),
    }
    samples, _ = take_turns(steps, args.batch_size, args.rounds, args.warm_up)
    results = {}
    for clock, rates in samples.items():
        seconds = {name: args.batch_size / rate for name, rate in medians(rates).items()}
        times = compare(rates, "mae")["supervised"]
        results[clock] = {"median_seconds": seconds, "mae_to_supervised": times, "images_per_second": rates}
        print(
            f"{clock:5} supervised {seconds['supervised']:.3f} s, MAE {seconds['mae']:.3f} s a step: "
            f"{times['median']:.2f} times as fast ({times['low']:.2f} to {times['high']:.2f})"
        )
    model = f"{args.variant} at {args.image_size}, {len(mae.encoder.blocks)} blocks, float32"
    decoder = f"{len(mae.decoder_blocks)} blocks of width {mae.decoder_embedding.units}"
    facts = {"model": model, "decoder": decoder, "batch_size": args.batch_size, "rounds": args.rounds}
    return {**environment(), **facts, "jit_compile": mae.jit_compile, "results": results}


class Batches(keras.utils.PyDataset):
    """Shuffled batches with random flips and shifts of up to two pixels."""

    def __init__(self, images, labels, batch_size, seed):
        super().__init__()
        self.images, self.labels, self.batch_size = images, labels, batch_size
        self.rng = np.random.default_rng(seed)
        self.on_epoch_end()

    def __len__(self):
        return len(self.images) // self.batch_size

    def on_epoch_end(self):
        self.order = self.rng.permutation(len(self.images))

    def __getitem__(self, index):
        chosen = self.order[index * self.batch_size : (index + 1) * self.batch_size]
        height, width = self.images.shape[1:3]
        rows, columns = (
            np.clip(np.arange(side) + self.rng.integers(-2, 3, (len(chosen), 1)), 0, side - 1)
            for side in (height, width)
        )
        mirrored = self.rng.random((len(chosen), 1)) < 0.5
        columns = np.where(mirrored, columns[:, ::-1], columns)
        images = self.images[chosen[:, None, None], rows[:, :, None], columns[:, None, :]].astype("float32")
        return (images,) if self.labels is None else (images, self.labels[chosen])


def read_images(data_dir):
    """Reads Fashion-MNIST as {split: (images, labels)}, from a TFDS folder or an .npz file."""
    if str(data_dir).endswith(".npz"):
        with np.load(data_dir, allow_pickle=False) as file:
            return {split: (file[f"{split}_images"], file[f"{split}_labels"]) for split in ("train", "test")}
    import tensorflow_datasets as tfds

    arrays = {}
    for split in ("train", "test"):
        loaded = tfds.load("fashion_mnist", split=split, data_dir=data_dir, batch_size=-1, download=False)
        arrays[split] = loaded["image"].numpy(), loaded["label"].numpy()
    return arrays


def build_model(settings):
    return keras_vit.ViT(
        "Ti/16",
        image_size=28,
        patch_size=settings["patch_size"],
        in_channels=1,
        num_classes=10,
        hidden_dim=settings["hidden_dim"],
        num_layers=settings["num_layers"],
        num_heads=settings["hidden_dim"] // 32,
        mlp_dim=2 * settings["hidden_dim"],
        pooling="gap",
        position_embedding="sincos2d",
        include_preprocessing=True,
    )


def optimizer_for(learning_rate, steps):
    return AdamW(WarmupDecay(learning_rate, total_steps=steps, warmup_steps=steps // 10))


def pretrain(model, method, images, settings, seed):
    """Pre-trains the model in place; returns the wrapper and the loss per epoch."""
    if method == "masked_patch":
        wrapper = MaskedPatchPrediction(model, seed=seed)
    elif method == "simmim":
        wrapper = SimMIM(model, mask_unit=settings["mask_unit"], seed=seed)
    else:
        wrapper = MAE(model, decoder_num_layers=settings["decoder_num_layers"], seed=seed)
    batches = Batches(images, None, settings["pretrain_batch_size"], seed)
    epochs = settings["pretrain_epochs"][method]
    wrapper.compile(optimizer_for(settings["pretrain_learning_rate"], epochs * len(batches)))
    return wrapper, wrapper.fit(batches, epochs=epochs, verbose=2).history["loss"]


def finetune(model, labelled, test, epochs, settings, seed):
    """Fine-tunes the model; returns its test accuracies during training."""
    batches = Batches(*labelled, settings["batch_size"], seed)
    model.compile(
        optimizer_for(settings["learning_rate"], epochs * len(batches)),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    curve, done = [], 0
    # Tested at four points only, as there are ten times as many test images as labelled ones.
    for end in sorted({max(1, epochs * quarter // 4) for quarter in range(1, 5)}):
        model.fit(batches, initial_epoch=done, epochs=end, verbose=0)
        curve.append((end, model.evaluate(*test, batch_size=500, verbose=0)[1]))
        done = end
    return curve


def run(method, seed, data, settings, picture):
    keras.utils.set_random_seed(seed)
    images, labels = data["train"]
    rng = np.random.default_rng(seed)
    chosen = [rng.permutation(np.flatnonzero(labels == k))[: settings["num_labels"] // 10] for k in range(10)]
    chosen = np.concatenate(chosen)
    model = build_model(settings)
    result = {}
    start, cpu = time.perf_counter(), time.process_time()
    if method.startswith("scratch"):
        epochs = settings["epochs"] * (settings["scratch_factor"] if method == "scratch_long" else 1)
    else:
        epochs = settings["epochs"]
        wrapper, result["pretraining_loss"] = pretrain(model, method, images, settings, seed)
        result["pretraining_seconds"] = time.perf_counter() - start
        if picture is not None:
            plot_reconstructions(wrapper.reconstruct(data["test"][0][:6].astype("float32")), picture)
    labelled = images[chosen], labels[chosen]
    test = data["test"][0].astype("float32"), data["test"][1]
    result["test_accuracy_by_epoch"] = finetune(model, labelled, test, epochs, settings, seed)
    result["test_accuracy"] = result["test_accuracy_by_epoch"][-1][1]
    return {**result, "seconds": time.perf_counter() - start, "cpu_seconds": time.process_time() - cpu}


def summarize(runs):
    """Returns mean and spread over seeds per method, and the gain per seed over the better baseline."""
    summary = {}
    for method in METHODS:
        accuracies = {k.split("/")[1]: v["test_accuracy"] for k, v in runs.items() if k.startswith(f"{method}/")}
        if accuracies:
            values = list(accuracies.values())
            scratch = [
                [runs[f"{name}/{seed}"]["test_accuracy"] for name in METHODS[:2] if f"{name}/{seed}" in runs]
                for seed in accuracies
            ]
            gains = [value - max(s) for value, s in zip(values, scratch, strict=True) if s]
            summary[method] = {
                "mean": statistics.mean(values),
                "standard_deviation": statistics.stdev(values) if len(values) > 1 else None,
                "gain_over_the_better_scratch": gains,
            }
    return summary


def draw(runs, path):
    """Plots the mean and range of test accuracy over seeds during fine-tuning."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    axes = figure.subplots()
    for method in METHODS:
        curves = [v["test_accuracy_by_epoch"] for k, v in runs.items() if k.startswith(f"{method}/")]
        if curves:
            accuracies = np.array([[accuracy for _, accuracy in curve] for curve in curves])
            shares = np.array([epoch for epoch, _ in curves[0]]) / curves[0][-1][0]
            line = axes.plot(shares, accuracies.mean(axis=0), "o-", label=f"{method} ({accuracies[:, -1].mean():.4f})")
            axes.fill_between(
                shares, accuracies.min(axis=0), accuracies.max(axis=0), color=line[0].get_color(), alpha=0.2
            )
    axes.set(xlabel="share of the fine-tuning", ylabel="test accuracy", title="Fashion-MNIST, few labels")
    axes.grid(alpha=0.3)
    axes.legend(title="last, mean of the seeds", frameon=False)
    with replacing(path) as draft:
        figure.savefig(draft, format="png", dpi=110)


def measure_labels(args):
    settings = {
        "patch_size": args.patch_size,
        "hidden_dim": args.hidden_dim,
        "num_layers": args.num_layers or 4,
        "num_labels": args.num_labels,
        "mask_unit": args.mask_unit,
        "decoder_num_layers": args.decoder_num_layers,
        "pretrain_epochs": dict(zip(METHODS[2:], args.pretrain_epochs, strict=True)),
        "pretrain_images": args.pretrain_images,
        "pretrain_batch_size": args.pretrain_batch_size,
        "pretrain_learning_rate": args.pretrain_learning_rate,
        "epochs": args.epochs,
        "scratch_factor": args.scratch_factor,
        "batch_size": args.batch_size,
        "learning_rate": args.learning_rate,
    }
    content = {**environment(), "settings": settings, "runs": {}}
    if args.out.exists():
        before = json.loads(args.out.read_text())
        if before["settings"] != settings:
            raise SystemExit(f"{args.out} holds runs of other settings, {before['settings']}. Give another --out.")
        content = before
    data = read_images(args.data_dir)
    data["train"] = tuple(array[: args.pretrain_images] for array in data["train"])
    runs = content["runs"]
    for seed in args.seeds:
        for method in args.methods:
            if f"{method}/{seed}" in runs:
                continue
            picture = args.out.with_name(f"{args.out.stem}_{method}.png") if seed == args.seeds[0] else None
            runs[f"{method}/{seed}"] = result = run(method, seed, data, settings, picture)
            print(f"{method:13} seed {seed}: {result['test_accuracy']:.4f} in {result['seconds']:.0f} s", flush=True)
            content["summary"] = summarize(runs)
            write(args.out, content)
            draw(runs, args.out.with_suffix(".png"))
    for method, row in content["summary"].items():
        spread = "" if row["standard_deviation"] is None else f" ± {row['standard_deviation']:.4f}"
        gains = ", ".join(f"{gain:+.4f}" for gain in row["gain_over_the_better_scratch"])
        print(f"{method:13} {row['mean']:.4f}{spread}   over the better scratch: {gains}")


def parse_arguments():
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n\n    ")[0], formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--what", choices=("step", "labels"), required=True)
    add("--out", type=pathlib.Path, help="the JSON file (default: results/pretraining_<what>.json beside this file)")
    add("--batch-size", type=int, help="images a supervised step (default: 8 for step, 50 for labels)")
    add("--num-layers", type=int, help="blocks of the encoder (default: the variant's for step, 4 for labels)")
    step = parser.add_argument_group("step")
    step.add_argument("--variant", default="B/16")
    step.add_argument("--image-size", type=int, default=224)
    step.add_argument("--rounds", type=int, default=10)
    step.add_argument("--warm-up", type=int, default=2)
    labels = parser.add_argument_group("labels")
    add = labels.add_argument
    add("--data-dir", help="the folder that holds TFDS datasets, or an .npz file of {train,test}_{images,labels}")
    add("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    add("--seeds", nargs="+", type=int, default=[0, 1, 2])
    add("--patch-size", type=int, default=7, help="pixels a side, of 28")
    add("--hidden-dim", type=int, default=96, help="a multiple of 32")
    add("--num-labels", type=int, default=1000)
    add("--mask-unit", type=int, default=7, help="SimMIM's squares, in pixels")
    add("--decoder-num-layers", type=int, default=1, help="MAE's")
    add("--pretrain-epochs", nargs=3, type=int, default=[16, 20, 12], help="of masked_patch, simmim and mae")
    add("--pretrain-images", type=int, default=60_000)
    add("--pretrain-batch-size", type=int, default=128)
    add("--pretrain-learning-rate", type=float, default=2e-3)
    add("--epochs", type=int, default=100, help="of fine-tuning")
    add("--scratch-factor", type=int, default=3)
    add("--learning-rate", type=float, default=1e-3)
    args = parser.parse_args()
    args.out = args.out or RESULTS / f"pretraining_{args.what}.json"
    args.batch_size = args.batch_size or {"step": 8, "labels": 50}[args.what]
    return args


def main():
    args = parse_arguments()
    if args.what == "labels":
        measure_labels(args)
    else:
        write(args.out, measure_steps(args))
    print(f"Wrote {args.out}")


if __name__ == "__main__":
    main()
