"""Runs the cases of a study with several seeds, side by side, and keeps each result as soon as it is there.

A study is a table of cases, a function that runs one of them, and one that plots the results. Each run gets one core,
a fresh Keras session and its own seed, so that its result does not depend on the others: a study that was killed goes
on with the runs that are missing, and ends with the same JSON but for the seconds.

`--quick` runs a few cases for a few steps on synthetic images, to try the script; its results mean nothing.
"""

import argparse
import collections
import json
import multiprocessing
import os
import re
import statistics
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import NamedTuple

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# Each run has one core; PyTorch reads this when it is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# The other benchmarks, whose data and batches the studies use.
sys.path.append(str(Path(__file__).parents[1]))

import keras
from measure import processor

import keras_vit
from keras_vit.files import replacing

RESULTS = Path(__file__).parents[1] / "results"


class Study(NamedTuple):
    """A study: `cases` {name: settings}, and `run(data, seed, **common, **settings)`, which returns a dict of results.

    `quick` are the settings that replace those of `common` in a quick run, and `quick_cases` the cases of one.
    `draw(figure, runs)` plots {case: list of results, one per seed}; `score` names the result that the table shows,
    which a case may lack.
    """

    name: str
    cases: dict
    common: dict
    run: Callable
    draw: Callable
    score: str
    quick: dict
    quick_cases: tuple
    figure_size: tuple = (9.6, 4.0)


def main(study, argv=None):
    """Runs what is missing in the results of a study, and prints a table of the scores."""
    args = _parse_arguments(study, argv)
    settings = study.common | (study.quick if args.quick else {})
    cases = {name: study.cases[name] for name in study.quick_cases} if args.quick else study.cases
    found = _found(args.out, study.name, settings)
    keys = [f"{case}/{seed}" for case in cases for seed in args.seeds]
    missing = [key for key in keys if key not in found["runs"]]
    data = None if args.quick else args.data
    context = multiprocessing.get_context("spawn")
    available, cores = sorted(os.sched_getaffinity(0)), context.Queue()
    for worker in range(args.workers):
        cores.put(available[worker % len(available)])
    with ProcessPoolExecutor(args.workers, context, _take_core, (cores,)) as pool:
        runs = {}
        for key in missing:
            case, seed = key.rsplit("/", 1)
            runs[pool.submit(_run, study.run, data, int(seed), settings | cases[case])] = key
        for future in as_completed(runs):
            key = runs[future]
            found["runs"][key] = result = future.result()
            score = f"{study.score} {result[study.score]:.4f} " if study.score in result else ""
            print(f"{key}: {score}in {result['seconds']:.0f} s", flush=True)
            _write(args.out, found, study.cases)
    by_case = collections.defaultdict(list)
    for key, result in found["runs"].items():
        by_case[key.rsplit("/", 1)[0]].append(result)
    _draw(study, by_case, args.out.with_suffix(".png"))
    print(table(study.score, by_case))


def table(score, by_case):
    """Returns a text table of the mean and standard deviation over seeds of each case that has a score."""
    scored = {case: results for case, results in by_case.items() if score in results[0]}
    width = max(map(len, ["case", *scored]))
    lines = [f"{'case':{width}}  {score}"]
    for case, results in scored.items():
        mean, spread = mean_and_deviation([result[score] for result in results])
        lines.append(f"{case:{width}}  {mean:.4f} ± {spread:.4f} ({len(results)} seeds)")
    return "\n".join(lines)


def mean_and_deviation(values):
    """Returns the mean and the standard deviation over seeds, 0 with one seed."""
    return statistics.mean(values), statistics.stdev(values) if len(values) > 1 else 0.0


def _take_core(cores):
    """Gives this process one core of its own, before a framework counts the cores, and ends it with its parent."""
    os.sched_setaffinity(0, {cores.get()})
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent():
    multiprocessing.parent_process().join()
    os._exit(1)


def _run(run, data, seed, settings):
    """Runs one case with one seed; returns its results, rounded so that the last bits of a sum do not count."""
    keras.utils.clear_session()
    keras.utils.set_random_seed(seed)
    start = time.process_time()
    result = run(data, seed, **settings)
    return {**_rounded(result), "seconds": round(time.process_time() - start, 1)}


def _rounded(value):
    if isinstance(value, dict):
        return {name: _rounded(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_rounded(part) for part in value]
    return round(value, 5) if isinstance(value, float) else value


def _found(path, name, settings):
    """Reads the results that are there, or begins new ones."""
    facts = {"backend": keras.backend.backend(), "keras": keras.__version__, "keras_vit": keras_vit.__version__}
    if not path.exists():
        return {"study": name, **facts, "processor": processor(), "settings": settings, "runs": {}}
    found = json.loads(path.read_text(encoding="utf-8"))
    # As JSON has them: lists in place of tuples.
    if found["settings"] != json.loads(json.dumps(settings)) or found["backend"] != facts["backend"]:
        received = f"{found['settings']} on {found['backend']}"
        raise SystemExit(f"{path} holds runs of other settings, {received}. Give another --out.")
    return found


def _write(path, found, cases):
    """Writes the results, in the order of the cases and seeds, whichever ended first."""
    order = {case: number for number, case in enumerate(cases)}

    def place(key):
        case, seed = key.rsplit("/", 1)
        return order[case], int(seed)

    found["runs"] = {key: found["runs"][key] for key in sorted(found["runs"], key=place)}
    path.parent.mkdir(parents=True, exist_ok=True)
    # A list of numbers is one line.
    text = re.sub(r"\[[^][{}\"]+\]", lambda numbers: " ".join(numbers[0].split()), json.dumps(found, indent=1))
    with replacing(path) as draft:
        draft.write_text(text + "\n", encoding="utf-8")


def _draw(study, by_case, path):
    from matplotlib.figure import Figure

    figure = Figure(figsize=study.figure_size, layout="constrained")
    study.draw(figure, by_case)
    with replacing(path) as draft:
        figure.savefig(draft, format="png", dpi=110)


def _parse_arguments(study, argv):
    text = sys.modules[study.run.__module__].__doc__
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--data", type=Path, help="a folder with cifar10.npz, fashion_mnist.npz and flowers17/")
    add("--out", type=Path, help=f"the JSON file; the plot is beside it (default: results/study_{study.name}.json)")
    add("--seeds", nargs="+", type=int, default=[0, 1, 2])
    add("--workers", type=int, default=len(os.sched_getaffinity(0)), help="runs side by side (default: one per core)")
    add("--quick", action="store_true", help="a few steps on synthetic images; needs --out")
    args = parser.parse_args(argv)
    if args.quick:
        if args.out is None:
            parser.error("--quick needs --out, so that it leaves the results alone")
        args.seeds = args.seeds[:1]
    elif args.data is None:
        parser.error("expected --data, a folder of images, or --quick")
    args.out = args.out or RESULTS / f"study_{study.name}.json"
    return args
