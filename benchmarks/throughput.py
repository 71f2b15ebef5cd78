"""Compares our ViTs with peers on this CPU: forward pass, training step, first call and peak memory.

The peers are keras-hub on each backend; timm and transformers on torch, eager and compiled; and big_vision's Flax model
(--big-vision) on JAX (`pip install keras-hub timm transformers flax optax`). All sides have the same weights, GELU,
loss, optimizer (SGD, momentum 0.9) and, in Keras, the same jit_compile. Dropout is off. Outputs and losses are compared
before anything is timed. The sides take turns, and each round gives one ratio ours / peer of wall time and one of CPU
time. The results are the median, the quartiles and an interval of at least 95% for the median. The times of first calls
(first_*, the seconds to build the model and run it once) and the peak memory after imports (memory_*) are measured in
new child processes.

Each round also times the matrix products of one block. The column of shares compares the rate of these products with
the rate of the whole model, whose FLOPs come from `keras_vit.profile` (3 times as many in training). The FLOPs count
all tokens, although our last block only computes the class token. --gemm-all also uses the best rate of the three
backends.

--ours-option compares our model with builder options to our model without them; other peers then run only if --peers
names them. If a row of results/throughput_<backend>.json is measured again, the whole row is replaced.

    KERAS_BACKEND=torch python benchmarks/throughput.py --gemm-all
    KERAS_BACKEND=jax python benchmarks/throughput.py --tasks forward train --ours-option token_merging=8
    KERAS_BACKEND=torch python benchmarks/throughput.py --tasks forward --ours-option "torch_module='eager'"
"""

import argparse
import ast
import functools
import importlib.metadata
import os
import pathlib
import platform

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
from children import gemm_of, make_data, side_of, tokens_of
from measure import MatrixProducts, add_rows, compare, medians, processor, spread, take_turns
from peers import OURS, PEERS, make, why_not
from sides import Case, Entrant

import keras_vit

RESULTS = pathlib.Path(__file__).parent / "results"
JIT_COMPILE = {"auto": "auto", "on": True, "off": False}
TASKS = ("forward", "train", "first_forward", "first_train", "memory_forward", "memory_train")
# Measures of a child process per row, the main one first.
CHILD_MEASURES = {
    "first": ("s", ("build_and_first_call", "build", "first_call", "next_call")),
    "memory": ("MB", ("peak", "peak_after_build", "built")),
}
# The logits are about 1, and the losses about 7. In bfloat16, the sides keep different layers in float32.
TOLERANCES = {"float32": 1e-3, "bfloat16": 0.3, "mixed_bfloat16": 0.3}
FRAMEWORKS = ("tensorflow-cpu", "tensorflow", "jax", "torch", "numpy")
PACKAGES = ("keras", "keras-hub", "timm", "transformers", "flax", *FRAMEWORKS)


def kind_of_batch_labels(entrants, dtype):
    """Returns {label: entrant}; labels name dtypes that differ from the row's."""
    return {e.label if e.dtype == dtype else f"{e.label} {e.dtype}": e for e in entrants}


def reason(error):
    return f"{type(error).__name__}: {error}".splitlines()[0][:300]


def build_sides(entrants, case, task):
    """Returns ({label: side}, {label: why it does not run}), ours first; all have its weights."""
    sides, skipped, weights = {}, {}, None
    for label, entrant in entrants.items():
        why = why_not(entrant, case)
        if why:
            skipped[label] = why
            continue
        try:
            sides[label] = make(entrant, case, task, weights)
        except ImportError as error:
            if entrant.peer == OURS:
                raise
            skipped[label] = reason(error)
        if weights is None:
            weights = [np.asarray(w, "float32") for w in sides[label].model.get_weights()]
    return sides, skipped


def run_once(runs, entrants, skipped):
    """Returns {label: result}; peers that fail are added to `skipped`."""
    results = {}
    for label, run in runs.items():
        if label in skipped:
            continue
        try:
            results[label] = run()
        except Exception as error:
            if entrants[label].peer == OURS:
                raise
            skipped[label] = reason(error)
    return results


def check_same(what, outputs, entrants):
    """Returns the largest difference of each side's outputs from ours; raises RuntimeError if peers differ."""
    ours = next(iter(outputs))
    differences = {}
    for label, values in outputs.items():
        if not np.isfinite(values).all():
            raise RuntimeError(f"Expected finite {what} of {label}. Received: NaN or infinity")
        differences[label] = float(np.abs(np.subtract(values, outputs[ours])).max())
        tolerance = max(TOLERANCES[entrants[name].dtype] for name in (ours, label))
        # `not <=` is also true for NaN.
        if entrants[label].peer != OURS and not differences[label] <= tolerance:
            raise RuntimeError(f"Expected the {what} of {label} to be ours. Received: {differences[label]} apart")
    return differences


def check_parameters(sides):
    """Raises RuntimeError unless all sides have as many parameters as the first."""
    numbers = {label: side.num_parameters for label, side in sides.items()}
    if len(set(numbers.values())) > 1:
        raise RuntimeError(f"Expected as many parameters in each side. Received: {numbers}")


def measure_rates(args, case, dtype, task, batches, entrants):
    """Returns the rows of a forward pass or training step, one per batch and subject."""
    sides, skipped = build_sides(entrants, case, task)
    flops = 2 * keras_vit.profile(next(iter(sides.values())).model).multiply_adds * (3 if task == "train" else 1)
    check_parameters(sides)
    rows, differences = [], {}
    for batch in batches:
        data = make_data(case, batch)
        inputs = {label: side.prepare(*data) for label, side in sides.items() if label not in skipped}
        runs = {label: functools.partial(getattr(sides[label], task), *inputs[label]) for label in inputs}
        # Compare only for the first batch size, because later batch sizes use trained weights.
        if not differences:
            forward = {label: functools.partial(sides[label].forward, *inputs[label]) for label in inputs}
            differences["outputs"] = check_same("outputs", run_once(forward, entrants, skipped), entrants)
            losses = {f"loss of step {i}": run_once(runs, entrants, skipped) for i in (1, 2)} if task == "train" else {}
            for name, values in losses.items():
                differences[name] = check_same(name, values, entrants)
        run_once(runs, entrants, skipped)
        runs = {label: run for label, run in runs.items() if label not in skipped}
        products = {
            kind: MatrixProducts(case.sizes, tokens_of(case, batch), kind)
            for kind in dict.fromkeys(entrants[label].compute_dtype for label in runs)
        }
        load = os.getloadavg()
        samples, gemm = take_turns(
            runs, batch, args.rounds, args.warm_up, args.turn_seconds, {kind: p.rate for kind, p in products.items()}
        )
        best = {kind: {keras.backend.backend(): max(rates)} for kind, rates in gemm.items()}
        for kind in best if args.gemm_all else ():
            for backend in PEERS:
                rate = gemm_of(backend, case, batch, kind)
                best[kind][backend] = max(rate, best[kind].get(backend, 0.0))
        shares, best_shares = {}, {}
        for label, rates in samples["wall"].items():
            if not entrants[label].options:  # Options may skip a part of the work.
                kind = entrants[label].compute_dtype
                shares[label] = spread([r * flops / g for r, g in zip(rates, gemm[kind], strict=True)])
                best_shares[label] = spread([r * flops / max(best[kind].values()) for r in rates])
        more = {
            "share_of_gemm": shares,
            **({"share_of_best_gemm": best_shares} if args.gemm_all else {}),
            "gemm_gflops": {kind: {b: r / 1e9 for b, r in rates.items()} for kind, rates in best.items()},
            "gflops_per_image": flops / 1e9,
            "differences": differences,
            "skipped": skipped,
            "jit_compile": {label: side.model.jit_compile for label, side in sides.items() if hasattr(side, "model")},
            "run": {**describe_run(args, case), "load_average": [load, os.getloadavg()]},
        }
        rows += make_rows(task, case, dtype, batch, "images/s", samples, entrants, more)
    return rows


def make_rows(task, case, dtype, batch, unit, samples, entrants, more):
    """Returns a row of ours against the peers, and one per option of ours."""
    first = next(iter(samples.values()))
    with_options = [label for label in first if entrants[label].options]
    peers = [label for label in first if label not in with_options]
    subjects = {label: [*peers, label] for label in with_options}
    if len(peers) > 1 or not with_options:
        subjects[peers[0]] = peers
    rows = []
    for subject, labels in subjects.items():
        chosen = {name: {label: values[label] for label in labels} for name, values in samples.items()}
        row = {
            "task": task,
            "model": f"{case.variant}@{case.image_size}",
            "dtype": dtype,
            "batch": batch,
            "options": entrants[subject].options_label,
            "activation": case.activation,
            "unit": unit,
            "subject": subject,
            "medians": {name: medians(values) for name, values in chosen.items()},
            "ratios_subject_to_side": {name: compare(values, subject) for name, values in chosen.items()},
            "samples": chosen,
            **more,
        }
        print_row(row)
        rows.append(row)
    return rows


def print_row(row):
    what = f"{row['task']} {row['model']} {row['dtype']} {row['activation']} batch {row['batch']} {row['options']}"
    print(f"\n{what}, {row['run']['backend']}; {row['subject']} / side: median [interval] (quartiles)")
    for measure, rates in row["medians"].items():
        for label, rate in rates.items():
            line = f"  {measure:20} {label:34}{rate:10.2f} {row['unit']:8}"
            ratio = row["ratios_subject_to_side"][measure].get(label)
            if ratio:
                line += " {median:.3f} [{low:.3f}, {high:.3f}] ({q1:.3f}, {q3:.3f})".format(**ratio)
            for words, name in (("GEMM", "share_of_gemm"), ("best GEMM", "share_of_best_gemm")):
                if measure == "wall" and label in row.get(name, {}):
                    line += f" {row[name][label]['median']:.1%} of {words}"
            print(line)
    for label, why in row["skipped"].items():
        print(f"  skipped {label}: {why}", flush=True)


def measure_children(args, case, dtype, kinds, task, batch, entrants):
    """Returns the rows of first calls and peak memory of one task."""
    if args.quick:
        entrants = dict(list(entrants.items())[:2])
    skipped = {label: why_not(e, case) for label, e in entrants.items() if why_not(e, case)}
    results = {label: [] for label in entrants if label not in skipped}
    load = os.getloadavg()
    for _ in range(args.child_rounds):
        for label in [label for label in results if label not in skipped]:
            try:
                results[label].append(side_of(entrants[label], case, task, batch))
            except RuntimeError as error:
                if entrants[label].peer == OURS:
                    raise
                skipped[label] = str(error)[:300]
    run = {**describe_run(args, case), "rounds": args.child_rounds, "load_average": [load, os.getloadavg()]}
    rows = []
    for kind in kinds:
        unit, measures = CHILD_MEASURES[kind]
        samples = {
            name: {label: [r[name] for r in found] for label, found in results.items() if label not in skipped}
            for name in measures
        }
        more = {"skipped": skipped, "run": run}
        rows += make_rows(f"{kind}_{task}", case, dtype, batch, unit, samples, entrants, more)
    return rows


def describe_run(args, case):
    versions = {"keras_vit": keras_vit.__version__}
    for package in PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {
        "backend": keras.backend.backend(),
        "num_layers": case.sizes["num_layers"],
        "optimizer": case.optimizer,
        "jit_compile": args.jit_compile,
        "rounds": args.rounds,
        "turn_seconds": args.turn_seconds,
        "cpu_count": os.cpu_count(),
        "omp_num_threads": os.environ.get("OMP_NUM_THREADS"),
        "machine": platform.machine(),
        "processor": processor(),
        "python": platform.python_version(),
        "versions": versions,
    }


def parse_option(text):
    """Parses "token_merging=8, remat=True" to (name, value) pairs."""
    try:
        keywords = ast.parse(f"dict({text})", mode="eval").body.keywords
        pairs = tuple((keyword.arg, ast.literal_eval(keyword.value)) for keyword in keywords)
    except (ValueError, SyntaxError) as error:
        raise argparse.ArgumentTypeError(f"Expected NAME=VALUE, a Python value. Received: {text}") from error
    if not pairs:
        raise argparse.ArgumentTypeError(f"Expected NAME=VALUE. Received: {text}")
    return pairs


def parse_arguments():
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n\n    ")[0], formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--models", nargs="+", default=["B/16"], help="VARIANT or VARIANT@SIZE (default: B/16)")
    add("--tasks", nargs="+", choices=TASKS, help="(default: forward train)")
    add("--dtypes", nargs="+", choices=TOLERANCES, default=["float32"], help="our dtype policy (default: float32)")
    add("--peer-dtypes", nargs="+", choices=TOLERANCES, help="the peers' (default: as ours)")
    add("--peers", nargs="*", choices=sorted({p for peers in PEERS.values() for p in peers}), help="(default: all)")
    add("--ours-option", action="append", default=[], type=parse_option, help="NAME=VALUE, or several with commas")
    add("--batch-sizes", nargs="+", type=int, default=[1, 8], help="of forward passes (default: 1 8)")
    add("--train-batch-sizes", nargs="+", type=int, default=[8], help="of training steps (default: 8)")
    add("--rounds", type=int, default=15, help="timed rounds (default: 15)")
    add("--warm-up", type=int, default=2, help="untimed rounds before them (default: 2)")
    add("--turn-seconds", type=float, default=0.5, help="least seconds of a side's turn (default: 0.5)")
    add("--child-rounds", type=int, default=3, help="rounds of first_* and memory_* (default: 3)")
    add("--jit-compile", choices=JIT_COMPILE, default="auto", help="as in model.compile, of each Keras side")
    add("--activation", choices=("gelu", "gelu_tanh"), default="gelu", help="of all sides (default: gelu, exact)")
    add("--big-vision", help="path of big_vision's models/vit.py, for its model on JAX")
    add("--gemm-all", action="store_true", help="time the matrix products of the three backends too")
    add("--quick", action="store_true", help="2 blocks, batches of 2, a round or two, no file: to see that it runs")
    add("--plot", action="store_true", help="measure nothing: draw results/throughput.png from the files there are")
    add("--out", type=pathlib.Path, help="the file of rows (default: results/throughput_<backend>.json)")
    args = parser.parse_args()
    backend = keras.backend.backend()
    foreign = sorted(set(args.peers or ()) - set(PEERS[backend]))
    if foreign:
        parser.error(
            f"Expected peers among {', '.join(PEERS[backend])} with the backend {backend}. Received: {foreign}"
        )
    args.tasks = args.tasks or ["forward", "train", *(("first_train", "memory_train") if args.quick else ())]
    if args.quick:
        args.batch_sizes = args.train_batch_sizes = [2]
        args.rounds, args.warm_up, args.turn_seconds, args.child_rounds = 2, 0, 0.0, 1
    elif args.out is None:
        args.out = RESULTS / f"throughput_{backend}.json"
    return args


def entrants_of(args, dtype):
    """Returns ours, ours with each option, and the peers in each dtype."""
    ours = [Entrant(OURS, dtype), *(Entrant(OURS, dtype, options=options) for options in args.ours_option)]
    everyone = () if args.ours_option else PEERS[keras.backend.backend()]
    names = everyone if args.peers is None else args.peers
    peers = []
    for name in names:
        peer, _, compiled = name.partition(" ")
        peers += [Entrant(peer, d, compiled=bool(compiled)) for d in args.peer_dtypes or [dtype]]
    return kind_of_batch_labels([*ours, *peers], dtype)


def main():
    args = parse_arguments()
    if args.plot:
        from throughput_plot import draw

        print(f"Wrote {draw(RESULTS)}")
        return
    keras.utils.set_random_seed(0)
    for model in args.models:
        case = Case(
            model,
            num_layers=2 if args.quick else None,
            activation=args.activation,
            jit_compile=JIT_COMPILE[args.jit_compile],
            big_vision=args.big_vision,
        )
        for dtype in args.dtypes:
            for task, batches in (("forward", args.batch_sizes), ("train", args.train_batch_sizes)):
                entrants = entrants_of(args, dtype)
                rows = []
                # Measure in child processes first, while this process uses little memory.
                kinds = [kind for kind in CHILD_MEASURES if f"{kind}_{task}" in args.tasks]
                for batch in batches if kinds else ():
                    rows += measure_children(args, case, dtype, kinds, task, batch, entrants)
                if task in args.tasks:
                    rows += measure_rates(args, case, dtype, task, batches, entrants)
                    keras.utils.clear_session(free_memory=True)
                if args.out is not None and rows:
                    add_rows(args.out, rows)
                    print(f"Wrote {args.out}", flush=True)


if __name__ == "__main__":
    main()
