"""Throughput of ViT-B/16 beside other implementations, in one process: forward pass and training step, float32.

The peers are keras-hub's ViT and, on the torch backend, timm's; install them with `pip install keras-hub timm`. All
sides get the same weights, GELU, loss and optimizer (SGD, momentum 0.9), no dropout, and, in Keras, the same
jit_compile. Their outputs are compared before anything is timed. The sides take turns, A B A B, and each round gives
one ratio, so that other load on the machine hits both; the median of the ratios is the result. Images per second of
CPU time are counted too: on a machine that others use at the same time, and with OMP_NUM_THREADS=1, which leaves no
thread spinning, they vary less.

    KERAS_BACKEND=torch python benchmarks/throughput.py --rounds 20
"""

import argparse
import enum
import importlib.metadata
import json
import os
import pathlib
import platform
import statistics
import sys
import time
import types

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np

import keras_vit
from keras_vit.files import replacing

OURS = "keras_vit"
NUM_CLASSES = 1000
NUM_HEADS = 12
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
JIT_COMPILE = {"auto": "auto", "on": True, "off": False}
# Float32 sums in another order, through 12 blocks, on logits of about 1.
TOLERANCE = 1e-3


class KerasSide:
    """A Keras model, run through the compiled functions that model.predict and model.fit use."""

    def __init__(self, model, jit_compile):
        self.model = model
        self.num_parameters = model.count_params()
        model.compile(
            optimizer=keras.optimizers.SGD(1e-3, momentum=0.9),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            # keras-hub would add an accuracy of its own otherwise.
            metrics=None,
            jit_compile=jit_compile,
        )

    def forward(self, images):
        return self.model.predict_on_batch(images)

    def train(self, images, labels):
        # The loss comes back as a NumPy number, so the step is over.
        return self.model.train_on_batch(images, labels, return_dict=True)["loss"]


class TorchSide:
    """A torch.nn.Module with the usual eager training step."""

    def __init__(self, module):
        import torch

        self.torch = torch
        self.module = module
        self.num_parameters = sum(p.numel() for p in module.parameters())
        self.optimizer = torch.optim.SGD(module.parameters(), lr=1e-3, momentum=0.9)
        self.loss = torch.nn.CrossEntropyLoss()

    def _images(self, images):
        return self.torch.from_numpy(images).permute(0, 3, 1, 2).contiguous()

    def forward(self, images):
        self.module.eval()
        with self.torch.no_grad():
            return self.module(self._images(images)).numpy()

    def train(self, images, labels):
        self.module.train()
        self.optimizer.zero_grad()
        loss = self.loss(self.module(self._images(images)), self.torch.from_numpy(labels))
        loss.backward()
        self.optimizer.step()
        return loss.item()


def our_model(num_layers):
    # The head is not left at zero, so that the outputs of the sides can be compared.
    return keras_vit.ViT(
        "B/16", num_layers=num_layers, num_classes=NUM_CLASSES, activation="gelu", head_init="glorot_uniform"
    )


def our_weights(model):
    """Embedding, blocks and head of our model as NumPy arrays, each part a list in the order of its variables."""
    weights = [np.asarray(w) for w in model.get_weights()]
    return weights[:4], [weights[i : i + 12] for i in range(4, len(weights) - 4, 12)], weights[-4:]


def keras_hub_model(num_layers, weights):
    """keras-hub's ViT, whose GELU is the exact one, with the given weights."""
    import keras_hub

    backbone = keras_hub.models.ViTBackbone(
        image_shape=(224, 224, 3),
        patch_size=16,
        num_layers=num_layers,
        num_heads=NUM_HEADS,
        hidden_dim=768,
        mlp_dim=3072,
        dropout_rate=0.0,
        attention_dropout=0.0,
        layer_norm_epsilon=1e-6,
    )
    model = keras_hub.models.ViTImageClassifier(backbone, num_classes=NUM_CLASSES, dropout=0.0)
    (kernel, bias, token, positions), blocks, head = weights
    values = [token, kernel, bias, positions]
    for scale_1, shift_1, qkv_kernel, qkv_bias, *rest in blocks:
        projections = zip(np.split(qkv_kernel, 3, axis=-1), np.split(qkv_bias, 3), strict=True)
        values += [scale_1, shift_1, *(array for projection in projections for array in projection), *rest]
    values += head
    model.set_weights([v.reshape(w.shape) for v, w in zip(values, model.weights, strict=True)])
    return model


def timm_model(num_layers, weights):
    """timm's vit_base_patch16_224 (exact GELU) with the given weights."""
    add_torchvision_stub()
    import timm
    import torch

    module = timm.create_model("vit_base_patch16_224", depth=num_layers, num_classes=NUM_CLASSES)
    (kernel, bias, token, positions), blocks, head = weights
    values = [token, positions, kernel.transpose(3, 2, 0, 1), bias, *(v for block in blocks for v in block), *head]
    with torch.no_grad():
        for parameter, value in zip(module.parameters(), values, strict=True):
            # torch stores a dense kernel as (outputs, inputs).
            parameter.copy_(torch.from_numpy(value.T.copy() if value.ndim == 2 else value.copy()))
    return module


def add_torchvision_stub():
    """Puts an empty torchvision where there is none: timm imports it, but its ViT uses nothing of it."""
    try:
        import torchvision  # noqa: F401
    except ImportError:

        class Stub(types.ModuleType):
            __path__ = []

            def __getattr__(self, name):
                if name.startswith("__"):
                    raise AttributeError(name)
                return type(name, (), {})

        for name in ("", ".datasets", ".ops", ".ops.misc", ".transforms", ".transforms.functional"):
            sys.modules[f"torchvision{name}"] = Stub(name)
        functional = sys.modules["torchvision.transforms.functional"]
        sys.modules["torchvision"].transforms = sys.modules["torchvision.transforms"]
        sys.modules["torchvision.transforms"].functional = functional
        functional.InterpolationMode = enum.Enum("InterpolationMode", "NEAREST BILINEAR BICUBIC BOX HAMMING LANCZOS")


def build_sides(num_layers, jit_compile):
    ours = our_model(num_layers)
    weights = our_weights(ours)
    sides = {
        OURS: KerasSide(ours, jit_compile),
        "keras-hub": KerasSide(keras_hub_model(num_layers, weights), jit_compile),
    }
    if keras.backend.backend() == "torch":
        sides["timm"] = TorchSide(timm_model(num_layers, weights))
    return sides


def check_same_function(sides, images):
    """Raises unless the sides have as many parameters and give the same finite outputs."""
    expected = sides[OURS].forward(images)
    if not np.isfinite(expected).all():
        raise RuntimeError(f"Expected finite outputs of {OURS}. Received: NaN or infinity")
    for name, side in sides.items():
        if side.num_parameters != sides[OURS].num_parameters:
            raise RuntimeError(
                f"Expected {sides[OURS].num_parameters} parameters in {name}. Received: {side.num_parameters}"
            )
        difference = float(np.abs(side.forward(images) - expected).max())
        # Written so that NaN fails too.
        if not difference <= TOLERANCE:
            raise RuntimeError(f"Expected the outputs of {name} to be those of {OURS}. Received: {difference} apart")


def measure(sides, run, batch_size, rounds, warm_up):
    """Images a second, of wall time and of CPU time, of each side in each round; the sides take turns in a round."""
    samples = {clock: {name: [] for name in sides} for clock in CLOCKS}
    for i in range(warm_up + rounds):
        for name, side in sides.items():
            starts = [clock() for clock in CLOCKS.values()]
            result = run(side)
            seconds = [clock() - start for clock, start in zip(CLOCKS.values(), starts, strict=True)]
            if not np.isfinite(result).all():
                raise RuntimeError(f"Expected finite results of {name}. Received: NaN or infinity")
            if i >= warm_up:
                for clock, spent in zip(CLOCKS, seconds, strict=True):
                    samples[clock][name].append(batch_size / spent)
    return {clock: summarize(rates) for clock, rates in samples.items()}


def summarize(samples):
    """Medians of each side, and for each peer the spread of the ratio ours / peer of each round."""
    ratios = {}
    for name, rates in samples.items():
        if name != OURS:
            pairs = [ours / peer for ours, peer in zip(samples[OURS], rates, strict=True)]
            low, median, high = np.quantile(pairs, (0.25, 0.5, 0.75)).tolist()
            ratios[name] = {"min": min(pairs), "q1": low, "median": median, "q3": high, "max": max(pairs)}
    return {
        "median_images_per_second": {name: statistics.median(rates) for name, rates in samples.items()},
        "ratio_ours_to_peer": ratios,
        "samples_images_per_second": samples,
    }


def print_table(results):
    print(f"{'':8} {'':5} {'side':10}{'images/s':>10}   ours / side: median [min, q1, q3, max]")
    for task, clocks in results.items():
        for clock, result in clocks.items():
            for name, rate in result["median_images_per_second"].items():
                line = f"{task:8} {clock:5} {name:10}{rate:10.2f}"
                if name != OURS:
                    r = result["ratio_ours_to_peer"][name]
                    line += f"   {r['median']:.3f} [{r['min']:.3f}, {r['q1']:.3f}, {r['q3']:.3f}, {r['max']:.3f}]"
                print(line)


def version_of(package):
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def describe_run(args, num_layers, sides):
    packages = ("keras", "keras-hub", "timm", "tensorflow", "tensorflow-cpu", "jax", "torch", "numpy")
    return {
        "model": f"ViT-B/16 at 224, {num_layers} blocks, {NUM_CLASSES} classes, float32",
        "num_parameters": sides[OURS].num_parameters,
        "backend": keras.backend.backend(),
        "jit_compile": sides[OURS].model.jit_compile,
        "batch_size": args.batch_size,
        "train_batch_size": args.train_batch_size,
        "rounds": args.rounds,
        "cpu_count": os.cpu_count(),
        "omp_num_threads": os.environ.get("OMP_NUM_THREADS"),
        "machine": platform.machine(),
        "python": platform.python_version(),
        "versions": {OURS: keras_vit.__version__, **{p: version_of(p) for p in packages if version_of(p)}},
    }


def write_json(path, content):
    """Writes the file whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as draft:
        draft.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def parse_arguments():
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n\n    ")[0], formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--batch-size", type=int, default=8, help="images in a forward pass (default: 8)")
    parser.add_argument("--train-batch-size", type=int, default=8, help="images in a training step (default: 8)")
    parser.add_argument("--rounds", type=int, default=15, help="timed rounds of each task (default: 15)")
    parser.add_argument("--warm-up", type=int, default=2, help="untimed rounds before them (default: 2)")
    parser.add_argument("--jit-compile", choices=JIT_COMPILE, default="auto", help="as in model.compile, for each side")
    parser.add_argument("--quick", action="store_true", help="2 blocks, batches of 2, 3 rounds: to see that it runs")
    parser.add_argument(
        "--out",
        type=pathlib.Path,
        help="where the JSON goes (default: results/throughput_<backend>.json beside this file; nowhere with --quick)",
    )
    args = parser.parse_args()
    if args.quick:
        args.batch_size = args.train_batch_size = 2
        args.rounds = 3
    elif args.out is None:
        args.out = pathlib.Path(__file__).parent / "results" / f"throughput_{keras.backend.backend()}.json"
    return args


def main():
    args = parse_arguments()
    keras.utils.set_random_seed(0)
    num_layers = 2 if args.quick else 12
    sides = build_sides(num_layers, JIT_COMPILE[args.jit_compile])
    random = np.random.default_rng(0)
    images = random.uniform(-1, 1, (max(args.batch_size, args.train_batch_size), 224, 224, 3)).astype("float32")
    labels = random.integers(0, NUM_CLASSES, len(images))
    forward_images = images[: args.batch_size]
    train_images, train_labels = images[: args.train_batch_size], labels[: args.train_batch_size]

    check_same_function(sides, forward_images)
    content = {**describe_run(args, num_layers, sides), "load_average_before": os.getloadavg()}
    tasks = {
        "forward": (args.batch_size, lambda side: side.forward(forward_images)),
        "train": (args.train_batch_size, lambda side: side.train(train_images, train_labels)),
    }
    results = {
        task: measure(sides, run, batch_size, args.rounds, args.warm_up) for task, (batch_size, run) in tasks.items()
    }
    print(f"{content['model']}; backend {content['backend']}, jit_compile={content['jit_compile']}")
    print_table(results)
    if args.out is not None:
        write_json(args.out, {**content, "load_average_after": os.getloadavg(), "results": results})
        print(f"Wrote {args.out}")


if __name__ == "__main__":
    main()
