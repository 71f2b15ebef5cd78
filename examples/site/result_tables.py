"""Makes tables of measurements for the pages of the site, from benchmarks/results and the recipes."""

import ast
import importlib.util
import json
import math
import re
import statistics
import sys
from pathlib import Path

from markdown_table import markdown_table
from model_tables import model_of

from keras_vit.models.profile import PAPER
from keras_vit.training import RECIPES

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
RESULTS = BENCHMARKS / "results"
BACKENDS = {"tensorflow": "TensorFlow", "jax": "JAX", "torch": "PyTorch"}
NOT_MEASURED = "not measured"
TASKS = {"forward": "forward", "train": "training step"}


def result(name):
    """Returns the content of a file in benchmarks/results, or None if it does not exist."""
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


def benchmark(name):
    """Imports the script of a benchmark and returns the module."""
    # Add the folder to the path, because the scripts import each other.
    if str(BENCHMARKS) not in sys.path:
        sys.path.append(str(BENCHMARKS))
    spec = importlib.util.spec_from_file_location(f"benchmark_{name}", BENCHMARKS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def recipes():
    """Returns a table of the recipes: published accuracy, our accuracy, command, cost and source."""
    rows = []
    for recipe in RECIPES.values():
        found = result(f"train_{recipe.name}")
        # If the recipe is from this project, `expected` is our own measurement, not a published result.
        published = not recipe.source.startswith("keras_vit") and not recipe.expected.startswith(NOT_MEASURED)
        ours = f"test accuracy {found['test']['accuracy']:.4f}" if found else NOT_MEASURED
        rows.append(
            [
                f"`{recipe.name}`",
                recipe.expected if published else "none",
                ours,
                f"`keras-vit train --recipe {recipe.name} --data {recipe.dataset or 'FOLDER'}`",
                recipe.cost,
                linked(recipe.source),
            ]
        )
    return markdown_table(["Recipe", "Published", "Ours", "Command", "Cost", "Source"], rows)


def examples():
    """Returns a table of the scripts in examples: paper, command, hardware and result, from their docstrings."""
    rows = []
    for path in sorted((BENCHMARKS.parent / "examples").glob("*.py")):
        lines = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))).split("\n\n")[-1]
        found = dict(re.findall(r"^(Paper|Command|Hardware|Expected)s?: +(.*(?:\n +.*)*)", lines, re.MULTILINE))
        paper, command, hardware, expected = (re.sub(r"\s+", " ", text) for text in found.values())
        rows.append([linked(paper), f"`{command}`", hardware, expected])
    return markdown_table(["Paper", "Command", "Hardware", "Result"], rows)


def linked(text):
    """Returns a text in which arXiv numbers are links."""
    return re.sub(r"((?:arXiv )?(\d{4}\.\d{5}))", r"[\1](https://arxiv.org/abs/\2)", text)


def parameters():
    """Returns a table that compares our parameter counts with the papers."""
    rows = [
        [f"ViT-{variant}", millions, f"{model_of('ViT' + variant.replace('/', '')).count_params() / 1e6:.1f}"]
        for variant, millions in PAPER.items()
    ]
    return markdown_table(["Model", "Paper (M)", "Ours (M)"], rows)


def vt_resnet():
    """Returns a table that compares the parameters and multiply-adds of our VT-ResNets with two tables of the paper."""
    paper = benchmark("vt_resnet_table")
    rows = []
    for variant, own in result("vt_resnet").items():
        cells = [f"VT-ResNet{variant[1:]}"]
        for i, name in enumerate(("parameters", "multiply_adds")):
            stated = [table[variant][i] if variant in table else None for table in (paper.TABLE_2, paper.TABLE_8)]
            cells += [*stated, f"{own[name]:,.1f}" if name == "parameters" else f"{own[name]:,.0f}"]
        rows.append(cells)
    names = ["table 2", "table 8", "ours"]
    columns = [*(f"Parameters (M): {name}" for name in names), *(f"Multiply-adds (M): {name}" for name in names)]
    return markdown_table(["Model", *columns], rows)


def pretraining():
    """Returns a table of the accuracy with 1,000 labels after pre-training without labels."""
    found = result("pretraining_labels")
    epochs = found["settings"]["pretrain_epochs"]
    long = found["settings"]["scratch_factor"]
    titles = {
        "scratch": "from scratch",
        "scratch_long": f"from scratch, {long} times as many epochs",
        "masked_patch": f"masked patch prediction, {epochs['masked_patch']} epochs",
        "simmim": f"SimMIM, {epochs['simmim']} epochs",
        "mae": f"MAE, {epochs['mae']} epochs",
    }
    rows = []
    for method, title in titles.items():
        runs = [run for name, run in found["runs"].items() if name.split("/")[0] == method]
        rows.append([title, spread([run["test_accuracy"] for run in runs]), len(runs), minutes(runs)])
    return markdown_table(["", "Test accuracy", "Seeds", "Minutes per run, 2 CPU cores"], rows)


def processor_of(found):
    """Returns the processor on which a result was measured: its name, CPU family and CPU model number."""
    return found["processor"].removeprefix("model name ")


def minutes(runs):
    """Returns the mean duration of runs in minutes, as text."""
    return f"{statistics.mean(run['seconds'] for run in runs) / 60:.0f}"


def spread(values):
    """Returns the mean as text. If there are several values, the text also gives the standard deviation."""
    mean = f"{statistics.mean(values):.4f}"
    return mean if len(values) == 1 else f"{mean} ± {statistics.stdev(values):.4f}"


def distillation():
    """Returns a table of the accuracy of a student with and without a teacher."""
    found = result("distillation")
    rows = []
    for kind in ("without", "with"):
        runs = [run for run in found["runs"] if run["kind"] == kind]
        rows.append([f"student {kind} teacher", spread([run["accuracy"] for run in runs]), len(runs), minutes(runs)])
    teacher = found["teacher"]
    rows.append(["the teacher", f"{teacher['accuracy']:.4f}", 1, minutes([teacher])])
    return markdown_table(["", "Test accuracy", "Seeds", "Minutes per run, 2 CPU cores"], rows)


def semi_supervised():
    """Returns a table of the accuracy and compute of Noisy Student and Meta Pseudo Labels with 1,000 labels."""
    found = result("semi_supervised")
    titles = {
        "supervised": "only labelled images",
        "noisy_student": "Noisy Student, two rounds",
        "meta": "Meta Pseudo Labels",
        "meta_finetuned": "Meta Pseudo Labels, then fine-tuned on the labelled images",
    }
    rows = []
    for method, title in titles.items():
        runs = [run for name, run in found["runs"].items() if name.split("/")[0] == method]
        forward_and_backward, forward = found["images"][method]
        gains = found["summary"][method]["gain_over_supervised"]
        scores = [spread([run["test_accuracy"] for run in runs]), " ".join(f"{gain:+.4f}" for gain in gains), len(runs)]
        rows.append([title, *scores, f"{forward_and_backward:,}", f"{forward:,}"])
    columns = ["Test accuracy", "Gain by seed", "Seeds", "Images forward and backward", "Images only forward"]
    return markdown_table(["", *columns], rows)


def core_hours(found):
    """Returns the core hours that all runs of a study took."""
    return sum(row["seconds"] for row in found["runs"].values()) / 3600


def studies():
    """Returns a table of the compute of each study, and of all studies together."""
    rows = []
    for path in sorted(RESULTS.glob("study_*.json")):
        found = result(path.stem)
        cases = {key.rsplit("/", 1)[0] for key in found["runs"]}
        rows.append([f"`{found['study']}.py`", len(cases), len(found["runs"]), core_hours(found)])
    rows.append(["all", *map(sum, zip(*(row[1:] for row in rows), strict=True))])
    return markdown_table(["Study", "Cases", "Runs", "Core hours"], [[*row[:3], f"{row[3]:.1f}"] for row in rows])


def study(name, score, columns=None):
    """Returns a table of a score for each case of a study, with mean and standard deviation over the seeds.

    A sentence above the table gives the core hours. If `columns` is not None, the table is a grid: the last word in the
    name of a case selects the column, and the words before it select the row. `columns` is the heading for the last
    words.
    """
    found = result(f"study_{name}")
    by_case = {}
    for key, row in found["runs"].items():
        if score in row:
            by_case.setdefault(key.rsplit("/", 1)[0], []).append(row[score])
    text = f"{core_hours(found):.1f} core hours on {BACKENDS[found['backend']]}, {processor_of(found)}."
    if columns is None:
        table = markdown_table(
            ["Case", score.replace("_", " "), "Seeds"],
            [[case, spread(scores), len(scores)] for case, scores in by_case.items()],
        )
    else:
        # Remove duplicates but keep the order of the cases.
        words = [case.rsplit(" ", 1) for case in by_case]
        rows, names = (list(dict.fromkeys(part)) for part in zip(*words, strict=True))
        table = markdown_table(
            [f"{score.replace('_', ' ')} by {columns}", *names],
            [[row, *(spread(by_case[f"{row} {name}"]) for name in names)] for row in rows],
        )
    return f"{text}\n\n{table}"


def families():
    """Returns a table of small models of each family, trained with the same settings on CIFAR-10."""
    found = result("families")
    rows = [
        [
            row["family"],
            f"{row['accuracy']:.4f}",
            f"{row['parameters']:,}",
            f"{row['multiply_adds'] / 1e6:.1f}",
            f"{row['trained images a CPU second']:.0f}",
        ]
        for row in found["rows"]
    ]
    text = f"{found['epochs']} epochs on {BACKENDS[found['backend']]}, one seed, one core of {processor_of(found)}."
    columns = ["", "Test accuracy", "Parameters", "Multiply-adds (M)", "Training images per second"]
    return f"{text}\n\n" + markdown_table(columns, rows)


def two_moons():
    """Returns a table of the accuracy of each method on the two moons data."""
    titles = {
        "pseudo_labels": "a student that learns from a teacher's pseudo labels",
        "meta": "Meta Pseudo Labels",
        "no_feedback": "the teacher without the student's feedback",
        "meta_alone": "Meta Pseudo Labels without the consistency loss",
    }
    runs = result("two_moons")["runs"]
    rows = []
    for method, title in titles.items():
        own = [run for name, run in runs.items() if name.split("/")[0] == method]
        scores = [run.get("student", run["teacher"]) for run in own]
        rows.append([title, f"{min(scores):.3f} to {max(scores):.3f}", len(own)])
    return markdown_table(["", "Accuracy, lowest to highest", "Seeds"], rows)


def cifar10():
    """Returns a table of the training curve of a small hybrid on CIFAR-10."""
    found = result("cifar10")
    rows = [[row["epoch"], f"{row['loss']:.3f}", f"{row['accuracy']:.4f}"] for row in found["curve"]]
    text = f"On {found['device']}, {found['seconds']} seconds; {found['note']}."
    return f"{text}\n\n" + markdown_table(["Epoch", "Training loss", "Test accuracy"], rows)


def curves():
    """Returns a table of the largest difference between the loss curves on several devices and on one device."""
    rows = {}
    for row in result("distributed_curves"):
        rows.setdefault((row["backend"], row["kind"]), []).append(row)
    cells = []
    for (backend, kind), own in rows.items():
        # Leave out rows with a mean over several seeds. They belong to runs in which each device draws different
        # dropout masks, so the losses differ.
        alike = [row for row in own if "seeds" not in row]
        if alike:
            splits = "; ".join(row["split"] for row in alike)
            cells.append([BACKENDS[backend], kind, splits, f"{max(row['difference'] for row in alike):.0e}"])
    return markdown_table(["Backend", "Precision", "Devices", "Largest relative difference of a loss"], cells)


def low_precision():
    """Returns a table that counts the low-precision runs whose losses and weights stayed finite.

    All runs have a high learning rate.
    """
    groups = {}
    for run in result("low_precision")["runs"]:
        groups.setdefault((run["backend"], run["model"], run["policy"]), []).append(run)
    rows = []
    for (backend, model, policy), runs in sorted(groups.items(), key=lambda group: list(BACKENDS).index(group[0][0])):
        finite = sum(run["first_step_not_finite"] is None and run["finite_weights"] for run in runs)
        rows.append([BACKENDS[backend], model, policy, f"{finite} of {len(runs)}"])
    return markdown_table(["Backend", "Model", "Policy", "Runs finite to the end"], rows)


def benchmarks():
    """Returns a table of all benchmarks: description, command and files of results."""
    rows = []
    for path in sorted(BENCHMARKS.glob("*.py")):
        text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        command = re.search(rf"^    (.*\b{path.stem}\b.*?)(?: {{4,}}.*)?$", text, re.MULTILINE)
        if command is None:
            continue
        names = [path.stem, *(f"{path.stem}_{backend}" for backend in BACKENDS), *OTHER_RESULTS.get(path.stem, ())]
        there = [f"`{name}.json`" for name in names if (RESULTS / f"{name}.json").is_file()]
        first = text.split("\n\n")[0].replace("\n", " ")
        rows.append([f"`{path.stem}`", first, f"`{command[1]}`", " ".join(there) or NOT_MEASURED])
    return markdown_table(["Benchmark", "What it does", "Command", "Results"], rows)


# {benchmark: names of its result files that differ from the name of the benchmark}.
OTHER_RESULTS = {
    "pipeline": ("pipeline_crop", "pipeline_augment"),
    "pretraining": ("pretraining_step", "pretraining_labels"),
    "vt_resnet_table": ("vt_resnet",),
}


def throughput_rows():
    """Yields (backend, row) for each row in the throughput files of all backends."""
    for backend in BACKENDS:
        for row in (result(f"throughput_{backend}") or {"rows": []})["rows"]:
            yield backend, row


def processors():
    """Returns the names of the processors on which throughput was measured."""
    names = {processor_of(row["run"]) for _, row in throughput_rows()}
    return "; ".join(sorted(names))


def ratio(spread):
    """Returns a median and its confidence interval as text.

    If the confidence level of the interval is below 95 %, the text also states the level.
    """
    width = "" if spread["coverage"] >= 0.95 else f", in {spread['coverage']:.0%}"
    interval = f" ({spread['low']:.2f} to {spread['high']:.2f}{width})" if spread["coverage"] else ""
    # Non-breaking spaces keep the text on one line.
    return f"{spread['median']:.2f}{interval}".replace(" ", "&nbsp;")


# The results of benchmarks/gpu.py that the tables show.
GPU = "gpu_h200_0.3"

# The table of `peers` only has rows with this model, precision, batch size and activation, and with these options.
_MAIN_CASE, _MAIN_OPTIONS = ("B/16@224", "float32", 8, "gelu"), ("", "jit_compile=True")


def is_main_case(row):
    """Returns True if a row of throughput belongs in the table of `peers`."""
    case = tuple(row[name] for name in ("model", "dtype", "batch", "activation"))
    return case == _MAIN_CASE and row["options"] in _MAIN_OPTIONS


def gpu_ratios():
    """Returns {(backend, peer): {task: our speed / the speed of the peer}} for B/16 on the GPU.

    As in `peers`, compiled models are compared with our compiled model, and eager models with our eager model.
    """
    rows = [row for row in result(GPU)["rows"] if row["model"] == "B/16" and "samples" in row]
    ours = {(row["backend"], row["task"], row["name"]): row["samples"] for row in rows}
    ratios = {}
    for row in rows:
        own = ours.get((row["backend"], row["task"], "keras_vit" + " compiled" * row["name"].endswith("compiled")))
        if own and "keras_vit" not in row["name"]:
            turns = [mine / other for mine, other in zip(own, row["samples"], strict=False)]
            found = {"median": statistics.median(turns), "low": min(turns), "high": max(turns), "coverage": 1}
            ratios.setdefault((row["backend"], row["name"]), {}).setdefault(row["task"], ratio(found))
    return ratios


def peers():
    """Returns a table of our speed divided by the speed of each other package, for B/16 at 224 pixels.

    If the peer's model is compiled, it is compared with our compiled model. If it is eager, it is compared with our
    eager model.
    """
    rows, on_gpu = {}, gpu_ratios()
    for backend, row in throughput_rows():
        if is_main_case(row):
            for side, found in row["ratios_subject_to_side"].get("wall", {}).items():
                if "keras_vit" not in side and side.endswith(" compiled") == bool(row["options"]):
                    rows.setdefault((backend, side), {})[row["task"]] = ratio(found)
    cells = [
        [
            f"{BACKENDS[key[0]]}, against {key[1]}",
            *(part.get(key, {}).get(task) for part in (rows, on_gpu) for task in TASKS),
        ]
        for key in rows
    ]
    columns = [f"{place}, {title}" for place in ("CPU", "GPU") for title in TASKS.values()]
    return f"{processors()}; {result(GPU)['device']}:\n\n" + markdown_table(["", *columns], cells)


def gpu():
    """Returns a table of images per second on the GPU."""
    found, cells = result(GPU), []
    for row in found["rows"]:
        speed = row["error"] if "error" in row else f"{row['images_per_second']:,.0f}"
        what = [row["model"], TASKS[row["task"]], row["batch"], row["dtype"]]
        share = f"{row['share_of_peak']:.0%}" if "share_of_peak" in row else ""
        cells.append([BACKENDS[row["backend"]], *what, row["name"], speed, share])
    versions = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
    columns = ["Backend", "Model", "Work", "Batch", "Precision", "Package", "Images per second", "Share of the peak"]
    return f"{found['device']}; {versions}:\n\n" + markdown_table(columns, cells)


def speeds(options):
    """Returns a table of images per second.

    If `options` is "plain", the table contains the models with default options. If `options` is "options", the table
    contains the models with other options.
    """
    cells = []
    for backend, row in throughput_rows():
        if row["task"] in TASKS and bool(row["options"]) == (options == "options"):
            own = row["medians"]["wall"][row["subject"]]
            for side, found in row["ratios_subject_to_side"]["wall"].items():
                option = [f"`{row['options']}`"] if row["options"] else []
                model, size = row["model"].split("@")
                against = side.replace("keras_vit", "the same without it")
                gelu = "tanh" if row["activation"] == "gelu_tanh" else "exact"
                what = [TASKS[row["task"]], f"{model} at {size}", row["batch"], row["dtype"], gelu]
                cells.append([*option, BACKENDS[backend], against, ratio(found), *what, f"{own:.3g}"])
    first = ["Option"] if options == "options" else []
    if first:
        cells.sort(key=lambda row: row[0])
    columns = ["Backend", "Against", "Ratio", "Work", "Model", "Batch", "Precision", "GELU", "Images per second"]
    return f"{processors()}:\n\n" + markdown_table([*first, *columns], cells)


def loading():
    """Returns a table of the memory and time that loading a checkpoint takes."""
    cells = []
    for backend, title in BACKENDS.items():
        found = result(f"loading_{backend}")
        if found:
            megabytes = f"{found['bytes'] / 1e6:.0f}"
            times = found["time_to_numpy"]
            spread = f"{times['median']:.2f} ({times['min']:.2f} to {times['max']:.2f})"
            peak = f"{found['peak_memory_to_model']:.2f}"
            cells.append([title, processor_of(found), megabytes, peak, spread])
    columns = ["Backend", "Processor", "File (MB)", "Peak memory / model's memory", "Time / NumPy's time to read it"]
    return markdown_table(columns, cells)


def pipeline(task):
    """Returns a table of images per second on one core, for the input pipeline of this package and for others."""
    titles = {
        "keras_vit": "`keras_vit.data`",
        "resized": "`keras_vit.data` on a copy made by `resize_folder`",
        "keras": "`image_dataset_from_directory`, Keras' RandomCrop and RandomFlip",
        "by_hand": "tf.data by hand, with `decode_and_crop_jpeg`",
        "timm": "timm's augmentation in PyTorch's DataLoader",
        "keras_cv": "tf.data by hand, with keras_cv's layers",
    }
    # Each sample is (images per second, images per second of CPU time). The second is the speed of one core.
    found = result(f"pipeline_{task}")
    samples = {side: [sample[1] for sample in own] for side, own in found["samples"].items()}
    gpu = found["images/s of the GPU"]
    ratios = benchmark("measure").compare(samples, "keras_vit")
    cells = []
    for side, rates in samples.items():
        rate = statistics.median(rates)
        ours = ratio(ratios[side]) if side in ratios else None
        cells.append([titles[side], f"{rate:,.0f}", ours, math.ceil(gpu / rate)])
    columns = ["Pipeline", "Images per second on one core", "Ours / this", f"Cores for {gpu:,} images per second"]
    return markdown_table(columns, cells)


def growth():
    """Returns a table of exponents. Memory is proportional to the number of tokens to the power of the exponent.

    Each exponent is measured between the two largest image sizes.
    """
    own = benchmark("growth")
    cells = []
    for backend, title in BACKENDS.items():
        found = result(f"growth_{backend}")
        if found:
            exponents = (own.memory_exponent(found["rows"], task) for task in TASKS)
            cells.append([title, processor_of(found), *(f"{exponent:.2f}" for exponent in exponents)])
    columns = ["Backend", "Processor", *(f"Exponent of memory by tokens, {title}" for title in TASKS.values())]
    return markdown_table(columns, cells)


def int8():
    """Returns a table of exports of ViT-B/16: the speed, and the share of images with the top-1 class of float32."""
    found = result("int8")
    cells = [
        [row["side"], processor_of(found), ratio(row["ratio to float32"]), f"{row['top-1 agreement']:.1%}"]
        for row in found["rows"]
        if row["ratio to float32"]
    ]
    return markdown_table(["Runtime and precision", "Processor", "Speed relative to float32", "Same top-1"], cells)


def startup():
    """Returns a table of the seconds and memory until a model returns its first prediction."""
    titles = {
        "import": "import Keras, its backend and keras_vit",
        "build": "build with random weights",
        "npz": "read an official `.npz` file",
        "safetensors": "read a timm `.safetensors` file",
        "forward": "first forward pass",
    }
    cells = []
    for backend, title in BACKENDS.items():
        found = result(f"startup_{backend}") or {"rows": []}
        for row in found["rows"]:
            seconds, peaks = ([sample.get(name) for sample in row["samples"]] for name in ("seconds", "peak"))
            peak = None if peaks[0] is None else f"{statistics.median(peaks):.2f}"
            what = [title, processor_of(found), row["model"], titles[row["step"]]]
            cells.append([*what, f"{statistics.median(seconds):.1f}", peak])
    return markdown_table(["Backend", "Processor", "Model", "Step", "Seconds", "Peak memory / weights"], cells)


def serving():
    """Returns a table of the requests per second of an exported model."""
    cells = []
    for backend, title in BACKENDS.items():
        found = result(f"serving_{backend}")
        if found:
            names = ("requests_per_second", "median_milliseconds", "p99_milliseconds")
            errors = f"{found['errors']} of {found['requests']:,}"
            rates = (f"{found[name]:,.0f}" for name in names)
            cells.append([title, processor_of(found), *rates, errors, f"{found['growth']:.1%}"])
    columns = ["Exported from", "Processor", "Requests/s", "Median (ms)", "99 % under (ms)", "Errors", "Memory growth"]
    return markdown_table(columns, cells)


def mae_step():
    """Returns a table that compares a training step of MAE with a supervised step."""
    found = result("pretraining_step")
    wall = found["results"]["wall"]
    seconds = wall["median_seconds"]
    cells = [["supervised", f"{seconds['supervised']:.2f}", None]]
    cells.append(["MAE", f"{seconds['mae']:.2f}", ratio(wall["mae_to_supervised"])])
    return f"{processor_of(found)}:\n\n" + markdown_table(["Step", "Seconds", "Supervised / this"], cells)


def exports():
    """Returns a table of the results of benchmarks/export.py."""
    return benchmark("export").table(RESULTS)


def zoo():
    """Returns a table of how many models of other projects are loaded exactly."""
    found = result("zoo")
    cells = []
    for kind in ("timm", "transformers"):
        rows = [row for row in found["rows"] if row["kind"] == kind]
        exact = [row for row in rows if row["outcome"] == "exact"]
        written = sum(row["written"] == "written" for row in exact)
        worst = max(row["difference"] for row in exact)
        others = len(rows) - len(exact)
        cells.append([f"{kind} {found[kind]}", len(rows), len(exact), f"{worst:.0e}", written, others])
    columns = ["Package", "Models", "Exact", "Largest difference", "Written back", "Refused"]
    return markdown_table(columns, cells)


def zoo_models():
    """Returns a table of the result of loading each model of another project."""
    cells = []
    for row in result("zoo")["rows"]:
        what = f"{row['difference']:.0e}" if row["outcome"] == "exact" else row["message"]
        # Remove the start of the message, which names a temporary folder.
        cells.append([row["kind"], f"`{row['name']}`", row["outcome"], what.replace("Cannot load 'FOLDER': ", "")])
    return markdown_table(["Package", "Model", "Outcome", "Difference, or the reason"], cells)


def fuzz():
    """Returns a table of the results for damaged and malicious inputs."""
    found = result("fuzz")
    cells = []
    for section in ("archives", "files", "configs", "pictures", "requests"):
        for name, counts in found.get(section, {}).items():
            answered = counts.get("loaded", counts.get("answered", 0))
            cells.append([section, name, counts["refused"], answered, counts.get("silent", 0)])
    columns = ["Inputs", "Kind", "Refused with an error", "Accepted", "Changed unnoticed"]
    return markdown_table(columns, cells)


def kills():
    """Returns a table of the training runs that were killed and resumed."""
    cells = []
    for backend, runs in result("fuzz")["kills"].items():
        own = [run for run in runs.values() if isinstance(run, dict)]
        totals = [sum(run[name] for run in own) for name in ("kills", "while_saving", "resumed", "damaged")]
        same = f"{sum(run['identical'] for run in own)} of {len(own)}"
        cells.append([BACKENDS[backend], len(own), *totals, same])
    columns = ["Backend", "Runs", "Kills", "While saving", "Resumed", "Damaged files read", "Same weights at the end"]
    return markdown_table(columns, cells)


TABLES = {
    function.__name__: function
    for function in (
        benchmarks,
        cifar10,
        curves,
        distillation,
        examples,
        exports,
        families,
        fuzz,
        gpu,
        growth,
        int8,
        kills,
        loading,
        low_precision,
        mae_step,
        parameters,
        peers,
        pipeline,
        pretraining,
        recipes,
        semi_supervised,
        serving,
        speeds,
        startup,
        studies,
        study,
        two_moons,
        vt_resnet,
        zoo,
        zoo_models,
    )
}
