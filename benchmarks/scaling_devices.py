"""Computes the memory, FLOPs and traffic of ViT training steps on 1 to 256 devices, without running the steps.

JAX compiles each step (224 pixels, AdamW, 1000 classes, a batch of 4096 as in the ViT paper) for simulated devices, in
a child process. Only the shapes of the arrays exist. The compiled program states, for each device, the bytes of its
arguments (parameters, optimizer state and images) and of its temporary arrays, its FLOPs, and the results of its
collective operations.

The programs are compiled for CPUs, where XLA converts bfloat16 to float32. Therefore mixed_float16, which has arrays of
the same sizes, takes the place of mixed_bfloat16. Temporary arrays are still larger than on a GPU or TPU, because CPUs
have no fused attention.

With `--summary --hardware`, a roofline model shows which settings fit into the memory, and the seconds of a step: the
larger of FLOPs / (peak x utilization) and collectives / bandwidth. Results go to results/scaling_devices.json and .png.
An interrupted benchmark continues where it stopped:

    python benchmarks/scaling_devices.py
    python benchmarks/scaling_devices.py --summary --hardware A100 312 80 8 300 25
"""

import argparse
import itertools
import json
import math
import os
import pathlib
import re
import subprocess
import sys
import time
from typing import NamedTuple

from keras_vit.console import text_table
from keras_vit.files import replacing
from keras_vit.version import __version__

BATCH = 4096
# Layout, number of devices, number of devices that share one copy of the blocks, batch size. The batch size 40 differs
# from all other dimensions of the arrays.
LAYOUTS = (
    *(("data", devices, 1, BATCH) for devices in (1, 8, 64, 256)),
    *(("fsdp", devices, 1, BATCH) for devices in (8, 64, 256)),
    ("tensor", 4, 4, 40),
    ("fsdp+tensor", 256, 4, BATCH),
)
# True if activations are recomputed.
MODELS = {"B/16": False, "L/16": True, "H/14": True, "G/14": True}
ENVIRONMENT = {
    "KERAS_BACKEND": "jax",
    "JAX_PLATFORMS": "cpu",
    # By default, XLA delays the products of the gradients, to sum all of them over the devices at once. It then keeps
    # all activations in memory.
    "XLA_FLAGS": "--xla_cpu_scheduler_type=CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED "
    "--xla_disable_hlo_passes=cpu-all-reduce-combiner,change-op-data-type",
    "TF_CPP_MIN_LOG_LEVEL": "3",
}


class Hardware(NamedTuple):
    """A device: bfloat16 TFLOP/s, GB, devices in a node, and GB/s to one direction inside and between nodes."""

    tflops: float
    memory: float
    node: int
    inside: float
    between: float


# H100 means the SXM version. A chip of TPU v3 has two cores and four links of 656 Gbit/s. One link is counted for a
# core.
HARDWARE = {"H100": Hardware(989, 80, 8, 450, 50), "TPU v3 core": Hardware(61.5, 16, 2048, 82, 82)}
# Model, images, epochs and TPU v3 core-days of the ViT paper (arXiv 2010.11929), tables 2 and 3.
PAPER = {
    "H/14, JFT-300M": ("H/14", 303e6, 14, 2500),
    "L/16, JFT-300M": ("L/16", 303e6, 14, 680),
    "L/16, ImageNet-21k": ("L/16", 14.2e6, 90, 230),
}


COLLECTIVES = ("all-gather", "all-reduce", "all-to-all", "collective-permute", "reduce-scatter")
COLLECTIVE = re.compile(rf" = (.*?) ({'|'.join(COLLECTIVES)})(?:-start)?\(")
ARRAY = re.compile(r"\b(pred|[a-z]+(\d+)\w*)\[([\d,]*)\]")


def collectives(program):
    """Returns {kind: (number, bytes of the results)} of the collectives in the text of a compiled program."""
    found = {}
    for results, kind in COLLECTIVE.findall(program):
        size = sum(
            math.prod(map(int, filter(None, sides.split(",")))) * int(bits or 8) // 8
            for _, bits, sides in ARRAY.findall(results)
        )
        number, total = found.get(kind, (0, 0))
        found[kind] = (number + 1, total + size)
    return found


def group_of(line):
    """Returns how many devices work together in a collective, from its line of a compiled program."""
    if mesh := re.search(r"groups=mesh\[(.*?)\].*? \{(.*?)\}", line):
        sizes = dict(re.findall(r"('\w+')=(\d+)", mesh[1]))
        return math.prod(int(sizes[axis]) for axis in mesh[2].split(","))
    if shape := re.search(r"groups=\[\d+,(\d+)\]", line):
        return int(shape[1])
    return re.search(r"(?:groups|pairs)=\{\{(.*?)\}", line)[1].count(",") + 1


def traffic(program, devices, model_devices):
    """Returns the collectives of a compiled program by kind and devices of a group, and how far these lie apart."""
    found = {}
    for line in program.splitlines():
        for kind, (number, size) in collectives(line).items():
            before = found.get((kind, group_of(line)), (0, 0))
            found[kind, group_of(line)] = (before[0] + number, before[1] + size)
    # Neighbors share a copy of the model.
    return [
        {"kind": kind, "group": group, "span": group if group == model_devices else devices, "number": n, "bytes": size}
        for (kind, group), (n, size) in sorted(found.items())
    ]


def inner_shares(program, batch, tokens, hidden_dim, num_heads, mlp_dim):
    """Returns what a device has at most of inner activations: for attention scores, heads, and the rest, of the MLP."""
    whole = {"scores": num_heads * tokens, "qkv": 3 * hidden_dim, "mlp": mlp_dim}
    shares = dict.fromkeys(whole, 0.0)
    for text in set(re.findall(r"\b(?:f16|f32)\[([\d,]+)\]", program)):
        sides = [int(side) for side in text.split(",")]
        width, rest = divmod(math.prod(sides), batch * tokens)
        if rest or not (tokens in sides or batch * tokens in sides):
            continue
        by_heads = len(sides) > 3 or hidden_dim // num_heads in sides
        kind = "scores" if sides.count(tokens) > 1 else "qkv" if by_heads else "mlp"
        shares[kind] = max(shares[kind], width / whole[kind])
    return shares


def compile_step(model, batch_size):
    """Compiles a training step of images and integer labels without running it; returns JAX's compiled function."""
    import jax
    import keras
    import numpy as np

    # Without these calls, the step would create the variables of the metrics, and return more than it was given.
    model.compute_metrics(None, np.zeros(1, "int32"), np.zeros((1, *model.output_shape[1:]), "float32"))
    model.reset_metrics()
    inputs = (((batch_size, *model.input_shape[1:]), "float32"), ((batch_size,), "int32"))
    distribution = keras.distribution.distribution()

    def array(shape, dtype, active_layout):
        layout = None if distribution is None else getattr(active_layout(), "backend_layout", active_layout())
        return jax.ShapeDtypeStruct(shape, dtype, sharding=layout)

    def variable(v):
        return array(v.shape, v.dtype, lambda: distribution.get_variable_layout(v))

    data = tuple(array(*x, lambda x=x: distribution.get_data_layout(x[0])) for x in inputs)
    groups = (model.trainable_variables, model.non_trainable_variables, model.optimizer.variables)
    state = tuple([variable(v) for v in group] for group in (*groups, model.metrics_variables))
    out = None if distribution is None else (None, tuple([v.sharding for v in group] for group in state))
    return jax.jit(model.train_step, donate_argnums=0, out_shardings=out).lower(state, data).compile()


def measure(model, layout, devices, model_devices, batch, remat, blocks=None, **options):
    """In a child process: compiles a step and returns its figures."""
    import jax
    import keras

    import keras_vit

    ways = keras_vit.distribution
    mesh = ways.device_mesh(model_devices)
    layouts = ways.layout_map(mesh) if "tensor" in layout else None
    distribution = ways.fsdp(mesh, layouts=layouts) if "fsdp" in layout else ways.data_parallel(mesh)
    keras.distribution.set_distribution(ways.tensor_parallel(mesh) if layout == "tensor" else distribution)
    built, options = [], {"num_classes": 1000, "num_layers": blocks, **options}

    def build():
        network = keras_vit.ViT(model, dtype="mixed_float16", remat=remat, **options)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        network.compile(keras_vit.training.AdamW(1e-3), loss, auto_scale_loss=False)
        network.optimizer.build(network.trainable_variables)
        built.append(network)

    # After this call, the variables have shapes and dtypes, but no values.
    jax.eval_shape(build)
    (network,) = built
    # The step updates the values of the metrics, so give these variables values.
    network.reset_metrics()
    start = time.perf_counter()
    compiled = compile_step(network, batch)
    seconds = time.perf_counter() - start
    memory, program = compiled.memory_analysis(), compiled.as_text()
    images_per_device = batch * model_devices // devices
    # The first arguments of a step, in the order of `compile_step`.
    groups = (network.trainable_variables, network.non_trainable_variables, network.optimizer.variables)
    sizes = [
        (variable.path, math.prod(variable.shape) * 4, math.prod(sharding.shard_shape(variable.shape)) * 4)
        for group, shardings in zip(groups, compiled.input_shardings[0][0], strict=False)
        for variable, sharding in zip(group, shardings, strict=True)
    ]
    row = {
        # Leave out the images and labels.
        "state": memory.argument_size_in_bytes - images_per_device * 4 * (math.prod(network.input_shape[1:]) + 1),
        "whole_state": sum(whole for _, whole, _ in sizes),
        "arguments": memory.argument_size_in_bytes,
        "temporary": memory.temp_size_in_bytes,
        "flops": compiled.cost_analysis()["flops"],
        "collectives": traffic(program, devices, model_devices),
        "seconds": round(seconds, 1),
    }
    if layout == "tensor":
        split = [each for each in sizes if re.search(r"block_\d+.*kernel", each[0])]
        block = network.get_layer("block_00")
        _, tokens, hidden_dim = block.output.shape
        row["split_kernels_share"] = sum(part for *_, part in split) / sum(whole for _, whole, _ in split)
        row["inner_shares"] = inner_shares(program, batch, tokens, hidden_dim, block.num_heads, block.mlp_dim)
        row["residual_whole"] = f"f16[{batch},{tokens},{hidden_dim}]" in program
    return row


def run(setting):
    """Measures a setting in a child process; returns its figures."""
    environment = {**os.environ, **ENVIRONMENT, "JAX_NUM_CPU_DEVICES": str(setting["devices"])}
    command = [sys.executable, __file__, "--child", json.dumps(setting)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{setting}\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def roofline(row, hardware, utilization):
    """Returns whether a step fits, its seconds of computing and its seconds of collectives on the hardware."""
    sent = {True: 0.0, False: 0.0}
    for each in row["collectives"]:
        # In a ring, the parts of a sum are sent around the ring twice.
        sent[each["span"] <= hardware.node] += each["bytes"] * (2 if each["kind"] == "all-reduce" else 1)
    fits = row["arguments"] + row["temporary"] <= hardware.memory * 1e9
    compute = row["flops"] / (hardware.tflops * 1e12 * utilization)
    return fits, compute, sent[True] / (hardware.inside * 1e9) + sent[False] / (hardware.between * 1e9)


def summary(rows, hardware, utilization):
    """Returns the tables of steps and of the paper's runs. All is computed, nothing measured."""
    steps, runs = [], []
    for row in rows:
        sent = sum(each["bytes"] for each in row["collectives"])
        memory = (row["state"] / 1e9, row["temporary"] / 1e9, row["flops"] / 1e12, sent / 1e9)
        cells = [row["model"], row["layout"], row["devices"], row["batch"], "yes" if row["remat"] else "", *memory]
        for device in hardware.values():
            fits, compute, collective = roofline(row, device, utilization)
            cells += ["yes" if fits else "no", max(compute, collective), "FLOPs" if compute > collective else "links"]
        steps.append(cells)
    for name, (model, images, epochs, paper) in PAPER.items():
        for row in (row for row in rows if row["model"] == model and row["devices"] == 256):
            days = []
            for device in hardware.values():
                fits, *seconds = roofline(row, device, utilization)
                days.append(images * epochs / row["batch"] * max(seconds) * row["devices"] / 86400 if fits else None)
            runs.append([name, epochs, row["layout"], *days, paper])
    of_device = [text for name in hardware for text in (f"fits {name}", "s/step", "bound")]
    columns = ["model", "layout", "devices", "batch", "remat", "GB state", "GB temp.", "TFLOP", "GB coll.", *of_device]
    costs = ["run on 256 devices", "epochs", "layout", *(f"{name} days" for name in hardware), "paper's core days"]
    note = f"Computed, not measured, at {utilization:.0%} of the peak. Figures are of a device and a step."
    return "\n\n".join((note, text_table(columns, steps, 3), text_table(costs, runs, 0, "does not fit")))


def draw(rows, hardware, path):
    """Plots the memory of a device over the number of devices."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(MODELS), figsize=(4 * len(MODELS), 4), sharey=True, layout="constrained")
    for ax, model in zip(axes, MODELS, strict=True):
        for layout in dict.fromkeys(layout for layout, *_ in LAYOUTS):
            own = [row for row in rows if (row["model"], row["layout"]) == (model, layout)]
            memory = [(row["arguments"] + row["temporary"]) / 1e9 for row in own]
            label = "tensor, batch 40" if layout == "tensor" else layout
            ax.plot([row["devices"] for row in own], memory, "o-", label=label)
        for name, style in zip(hardware, ("--", ":"), strict=False):
            ax.axhline(hardware[name].memory, color="gray", linestyle=style, linewidth=0.8, label=name)
        remat = ", remat" if MODELS[model] else ""
        ax.set(xscale="log", yscale="log", title=f"ViT-{model}, batch {BATCH}{remat}", xlabel="devices")
        ax.set_xticks([1, 4, 8, 64, 256], [1, 4, 8, 64, 256])
        ax.minorticks_off()
    axes[0].set_ylabel("GB per device (computed)")
    axes[0].legend(fontsize=8)
    figure.savefig(path, dpi=120, metadata={"Software": None})


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--summary", action="store_true", help="compile nothing")
    parser.add_argument("--utilization", type=float, default=0.4, help="of the peak")
    fields = ("NAME", "TFLOPS", "GB", "NODE", "INSIDE", "BETWEEN")
    parser.add_argument("--hardware", nargs=6, metavar=fields, action="append", default=[])
    default = pathlib.Path(__file__).parent / "results" / "scaling_devices.json"
    parser.add_argument("--out", type=pathlib.Path, default=default)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        print(json.dumps(measure(**json.loads(args.child))))
        return
    hardware = {name: Hardware(*map(float, numbers)) for name, *numbers in args.hardware} or HARDWARE
    rows = json.loads(args.out.read_text(encoding="utf-8"))["rows"] if args.out.exists() else []
    names = ("model", "remat", "layout", "devices", "model_devices", "batch")
    for model, layout in itertools.product([] if args.summary else args.models, LAYOUTS):
        setting = dict(zip(names, (model, MODELS[model], *layout), strict=True))
        if not any(setting.items() <= row.items() for row in rows):
            rows.append({**setting, **run(setting)})
            rows.sort(key=lambda row: list(MODELS).index(row["model"]))
            print(*setting.values(), flush=True)
            with replacing(args.out) as draft:
                draft.write_text(
                    json.dumps({"keras_vit": __version__, "environment": ENVIRONMENT, "rows": rows}, indent=1) + "\n",
                    encoding="utf-8",
                )
    print(summary(rows, hardware, args.utilization))
    draw(rows, hardware, args.out.with_suffix(".png"))


if __name__ == "__main__":
    main()
