"""ViTs on one GPU in bfloat16, beside their peers: forward pass, training step and share of the matrix peak.

On JAX the peers are keras-hub and, where --big-vision names its `models/vit.py`, big_vision's Flax model; on PyTorch
timm and transformers, eager and compiled, and keras-hub. Inputs lie on the GPU. Every side trains with AdamW on the
same batch, in mixed precision (float32 weights), without dropout. Each figure is the median over rounds in which the
sides take turns, so that a ratio belongs to one run. A model's FLOPs are two a multiply-add of the forward pass, three
times that for a training step; their share is of the fastest of some bfloat16 matrix products in the same process.

    KERAS_BACKEND=jax python benchmarks/gpu.py --models B/16 L/16
    KERAS_BACKEND=torch python benchmarks/gpu.py --models B/16 L/16
"""

import argparse
import contextlib
import importlib.metadata
import importlib.util
import json
import os
import pathlib
import platform
import statistics
import sys
import time

import keras
import numpy as np

import keras_vit
from keras_vit.files import replacing
from keras_vit.variants import decode_variant

OURS = "keras_vit"
NUM_CLASSES = 1000
# Images in a training step and in a forward pass, by model and side.
BATCHES = {"Ti/16": (1024, 2048), "S/16": (512, 1024), "B/16": (256, 512), "L/16": (128, 256), "H/14": (64, 128)}


def sizes_of(variant):
    size, patch_size, _stages = decode_variant(variant)
    return {**size._asdict(), "patch_size": patch_size}


def big_vision_sizes(sizes):
    """The same in big_vision's words."""
    names = {"hidden_dim": "width", "num_layers": "depth", "mlp_dim": "mlp_dim", "num_heads": "num_heads"}
    return {**{theirs: sizes[ours] for ours, theirs in names.items()}, "patch_size": (sizes["patch_size"],) * 2}


def device_array(array):
    """The array on the GPU, in the backend's own type."""
    if keras.backend.backend() == "jax":
        import jax

        return jax.device_put(array)
    import torch

    return torch.from_numpy(array).cuda()


class KerasSide:
    """A Keras model through train_on_batch and predict_on_batch."""

    def __init__(self, model, jit_compile="auto"):
        self.model = model
        model.compile(
            keras.optimizers.AdamW(1e-4),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=None,
            jit_compile=jit_compile,
        )

    def forward(self, images):
        return self.model.predict_on_batch(images)

    def train(self, images, labels):
        return float(self.model.train_on_batch(images, labels, return_dict=True)["loss"])


class BigVisionSide:
    """big_vision's ViT with `dtype_mm="bfloat16"`, as its authors train it."""

    def __init__(self, path, sizes, image_size):
        import jax
        import jax.numpy as jnp

        module = read_big_vision(path).Model(
            num_classes=NUM_CLASSES, variant=None, pool_type="tok", dtype_mm="bfloat16", **sizes
        )
        first = jnp.zeros((1, image_size, image_size, 3))
        parameters = jax.jit(lambda key: module.init(key, first))(jax.random.PRNGKey(0))
        zeros = jax.tree.map(jnp.zeros_like, parameters)
        self.state = (parameters, zeros, jax.tree.map(jnp.copy, zeros), jnp.zeros((), "int32"))

        def logits(parameters, images):
            return module.apply(parameters, images)[0].astype("float32")

        def loss(parameters, images, labels):
            return -jnp.take_along_axis(jax.nn.log_softmax(logits(parameters, images)), labels[:, None], 1).mean()

        def step(state, images, labels):
            parameters, first, second, count = state
            value, gradients = jax.value_and_grad(loss)(parameters, images, labels)
            count += 1
            first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, first, gradients)
            second = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, second, gradients)
            rate = 1e-4 * jnp.sqrt(1 - 0.999**count) / (1 - 0.9**count)
            update = lambda p, m, v: p - rate * m / (jnp.sqrt(v) + 1e-7) - 1e-4 * 0.004 * p  # noqa: E731
            return (jax.tree.map(update, parameters, first, second), first, second, count), value

        self._step = jax.jit(step, donate_argnums=0)
        self._forward = jax.jit(logits)

    def forward(self, images):
        return np.asarray(self._forward(self.state[0], images))

    def train(self, images, labels):
        self.state, value = self._step(self.state, images, labels)
        return float(value)


def read_big_vision(path):
    """big_vision's models/vit.py, which needs nothing of its other files to build and run a model."""
    import types

    import flax.linen  # noqa: F401

    missing = ("big_vision", "big_vision.utils", "big_vision.models", "big_vision.models.common")
    for name in (*missing, "flax.training", "flax.training.checkpoints"):
        sys.modules.setdefault(name, types.ModuleType(name))
    sys.modules["big_vision"].utils = sys.modules["big_vision.utils"]
    sys.modules["big_vision.models"].common = sys.modules["big_vision.models.common"]
    sys.modules["flax"].training = sys.modules["flax.training"]
    spec = importlib.util.spec_from_file_location("big_vision.models.vit", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class TorchSide:
    """A torch module under autocast, with the fused AdamW."""

    def __init__(self, module, compiled):
        import torch

        self.torch = torch
        self.module = module.cuda()
        self.call = torch.compile(self.module) if compiled else self.module
        self.optimizer = torch.optim.AdamW(module.parameters(), lr=1e-4, fused=True)

    def _logits(self, images):
        with self.torch.autocast("cuda", dtype=self.torch.bfloat16):
            logits = self.call(images.permute(0, 3, 1, 2))
        return getattr(logits, "logits", logits).float()

    def forward(self, images):
        self.module.eval()
        with self.torch.inference_mode():
            return self._logits(images).cpu().numpy()

    def train(self, images, labels):
        self.module.train()
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.torch.nn.functional.cross_entropy(self._logits(images), labels)
        loss.backward()
        self.optimizer.step()
        return loss.item()


def keras_hub_model(sizes, image_size):
    import keras_hub

    backbone = keras_hub.models.ViTBackbone(
        image_shape=(image_size, image_size, 3),
        patch_size=sizes["patch_size"],
        num_layers=sizes["num_layers"],
        num_heads=sizes["num_heads"],
        hidden_dim=sizes["hidden_dim"],
        mlp_dim=sizes["mlp_dim"],
        dropout_rate=0.0,
        attention_dropout=0.0,
        layer_norm_epsilon=1e-6,
    )
    return keras_hub.models.ViTImageClassifier(backbone, num_classes=NUM_CLASSES, dropout=0.0)


def timm_model(sizes, image_size):
    from timm.models.vision_transformer import VisionTransformer

    return VisionTransformer(
        img_size=image_size,
        patch_size=sizes["patch_size"],
        embed_dim=sizes["hidden_dim"],
        depth=sizes["num_layers"],
        num_heads=sizes["num_heads"],
        mlp_ratio=sizes["mlp_dim"] / sizes["hidden_dim"],
        num_classes=NUM_CLASSES,
    )


def transformers_model(sizes, image_size):
    import transformers

    config = transformers.ViTConfig(
        hidden_size=sizes["hidden_dim"],
        num_hidden_layers=sizes["num_layers"],
        num_attention_heads=sizes["num_heads"],
        intermediate_size=sizes["mlp_dim"],
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        image_size=image_size,
        patch_size=sizes["patch_size"],
        num_labels=NUM_CLASSES,
        attn_implementation="sdpa",
    )
    return transformers.ViTForImageClassification(config)


def makers(args, variant, image_size):
    """{side: a function that builds it}, ours first."""
    sizes = sizes_of(variant)

    def ours():
        return keras_vit.ViT(variant, image_size=image_size, num_classes=NUM_CLASSES, activation="gelu")

    sides = {}
    if keras.backend.backend() == "jax":
        sides[OURS] = lambda: KerasSide(ours())
        if args.big_vision:
            sides["big_vision"] = lambda: BigVisionSide(args.big_vision, big_vision_sizes(sizes), image_size)
    else:
        sides[f"{OURS} compiled"] = lambda: KerasSide(ours(), jit_compile=True)
        sides[OURS] = lambda: KerasSide(ours())
        for name, build in (("timm", timm_model), ("transformers", transformers_model)):
            sides[f"{name} compiled"] = lambda build=build: TorchSide(build(sizes, image_size), compiled=True)
            sides[name] = lambda build=build: TorchSide(build(sizes, image_size), compiled=False)
    sides["keras-hub"] = lambda: KerasSide(keras_hub_model(sizes, image_size))
    return {name: make for name, make in sides.items() if not args.sides or name in args.sides}


def matrix_peak():
    """Multiply-adds a second of some bfloat16 matrix products: a large square one, and those of two MLPs."""
    best = {}
    for rows, inner, columns in ((8192, 8192, 8192), (50176, 768, 3072), (25088, 1024, 4096)):
        if keras.backend.backend() == "jax":
            import jax
            import jax.numpy as jnp

            a = jax.random.normal(jax.random.PRNGKey(0), (rows, inner), dtype=jnp.bfloat16)
            b = jax.random.normal(jax.random.PRNGKey(1), (inner, columns), dtype=jnp.bfloat16)
            product = jax.jit(jnp.matmul)

            def run(product=product, a=a, b=b):
                for _ in range(20):
                    out = product(a, b)
                out.block_until_ready()
        else:
            import torch

            a = torch.randn(rows, inner, dtype=torch.bfloat16, device="cuda")
            b = torch.randn(inner, columns, dtype=torch.bfloat16, device="cuda")

            def run(a=a, b=b):
                for _ in range(20):
                    a @ b
                torch.cuda.synchronize()

        run()
        seconds = []
        for _ in range(5):
            start = time.perf_counter()
            run()
            seconds.append((time.perf_counter() - start) / 20)
        best[f"{rows}x{inner}x{columns}"] = rows * inner * columns / statistics.median(seconds)
    return best


def time_side(run, repeats):
    """Seconds of each of some runs, after two that compile and warm up; and those of the first."""
    start = time.perf_counter()
    result = run()
    first = time.perf_counter() - start
    if not np.isfinite(result).all():
        raise RuntimeError(f"Expected finite results. Received: {result}")
    run()
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    return seconds, first


def measure(args, variant, image_size, peak):
    train_batch, forward_batch = (max(1, round(size * (224 / image_size) ** 2)) for size in BATCHES[variant])
    rng = np.random.default_rng(0)
    images = rng.uniform(-1, 1, (max(train_batch, forward_batch), image_size, image_size, 3)).astype("float32")
    labels = device_array(rng.integers(0, NUM_CLASSES, len(images)).astype("int64"))
    images = device_array(images)
    tasks = {
        "forward": (forward_batch, lambda side: side.forward(images[:forward_batch])),
        "train": (train_batch, lambda side: side.train(images[:train_batch], labels[:train_batch])),
    }
    forward = keras_vit.profile(keras_vit.ViT(variant, image_size=image_size)).multiply_adds
    multiply_adds = {"forward": forward, "train": 3 * forward}
    sides, failures, results = {}, {}, {}
    for name, make in makers(args, variant, image_size).items():
        start = time.perf_counter()
        try:
            sides[name] = make(), time.perf_counter() - start
        except Exception as error:  # a peer that is not installed or does not run is told in the results
            failures[name] = f"{type(error).__name__}: {error}"[:300]
    for task, (batch, run) in tasks.items():
        samples, firsts = {}, {}
        for _ in range(args.rounds):
            for name, (side, _built) in list(sides.items()):
                try:
                    seconds, first = time_side(lambda side=side, run=run: run(side), args.repeats)
                except Exception as error:
                    failures[name] = f"{task}: {type(error).__name__}: {error}"[:300]
                    del sides[name]
                    continue
                samples.setdefault(name, []).append(batch / statistics.median(seconds))
                firsts.setdefault(name, first)
        ours = max((np.median(v) for k, v in samples.items() if k.startswith(OURS)), default=float("nan"))
        for name, rates in samples.items():
            rate = statistics.median(rates)
            share = rate * multiply_adds[task] / peak
            results[f"{task}/{name}"] = {
                "images_per_second": rate,
                "samples": rates,
                "share_of_matrix_peak": share,
                "ratio_ours_to_side": float(ours / rate),
                "first_call_seconds": firsts[name],
                "build_seconds": sides[name][1] if name in sides else None,
            }
            print(
                f"{variant:6}{image_size:4} {task:8}{batch:5} {name:22}{rate:9.1f} images/s {share:6.1%} of peak, "
                f"ours/side {ours / rate:.3f}, first call {firsts[name]:.1f} s",
                flush=True,
            )
    for name, failure in failures.items():
        print(f"{variant} {name}: {failure}", flush=True)
    return {"train_batch": train_batch, "forward_batch": forward_batch, "results": results, "failures": failures}


def main():
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n\n    ")[0], formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--models", nargs="+", default=["Ti/16", "B/16", "L/16", "B/16@384"], help="VARIANT or VARIANT@SIZE"
    )
    parser.add_argument("--sides", nargs="+", help="these alone (default: all)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=10, help="steps a side in each round")
    parser.add_argument("--big-vision", type=pathlib.Path, help="models/vit.py of big_vision, for its model")
    parser.add_argument("--out", type=pathlib.Path, help="the JSON (default: results/gpu_<backend>.json)")
    args = parser.parse_args()
    backend = keras.backend.backend()
    args.out = args.out or pathlib.Path(__file__).parent / "results" / f"gpu_{backend}.json"
    keras.utils.set_random_seed(0)
    keras.config.set_dtype_policy("mixed_bfloat16")
    peaks = matrix_peak()
    peak = max(peaks.values())
    print({shape: f"{2 * rate / 1e12:.0f} TFLOP/s" for shape, rate in peaks.items()})
    versions = {}
    for package in ("keras", "keras-hub", "timm", "transformers", "flax", "jax", "torch", "triton"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    content = {
        "backend": backend,
        "device": gpu_name(),
        "python": platform.python_version(),
        "cpu_count": os.cpu_count(),
        "versions": {OURS: keras_vit.__version__, **versions},
        "matrix_tflops": {shape: 2 * rate / 1e12 for shape, rate in peaks.items()},
        "models": {},
    }
    for model in args.models:
        variant, _, size = model.partition("@")
        content["models"][model] = measure(args, variant, int(size or 224), peak)
        with replacing(args.out) as draft:
            draft.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    print(f"Wrote {args.out}")


def gpu_name():
    if keras.backend.backend() == "jax":
        import jax

        return jax.devices()[0].device_kind
    import torch

    return torch.cuda.get_device_name()


if __name__ == "__main__":
    main()
