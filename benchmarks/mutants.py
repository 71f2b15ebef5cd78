"""Mutation score: the share of small faults in the code that the tests of the same folder find.

Draws mutants (one operator, constant, condition or argument of the code changed) from a fixed seed. Each mutant runs
against those tests of its folder that run its function, on each backend that has such tests, until one fails. The
first step records which test runs which function. Results go to results/mutants.json after each mutant, and a run that
was interrupted continues there.

    python benchmarks/mutants.py --minutes 60

Two mutants run at a time. `--root` tests another checkout, `--again survived` repeats mutants with that result.
"""

import argparse
import ast
import collections
import concurrent.futures
import contextlib
import copy
import hashlib
import json
import os
import queue
import random
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BACKENDS = ("torch", "tensorflow", "jax")
# Files of keras_vit, the folder of their tests, and the number of mutants.
GROUPS = {
    "layers": ("layers/*.py", "layers", 80),
    "weight codecs": ("weights/codecs.py", "weights", 18),
    "schedules": ("training/optimizers.py", "training", 18),
    "SAM": ("training/sam.py", "training", 18),
    "mixing": ("data/steps.py", "data", 18),
    "masking": ("pretraining/masking.py", "pretraining", 18),
    "evaluation": ("evaluation/*.py", "evaluation", 30),
}
COMPARISONS = {
    **{ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq},
    **{ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In},
}
OPERATORS = {
    **{ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult},
    **{ast.FloorDiv: ast.Div, ast.Mod: ast.Mult, ast.Pow: ast.Mult, ast.And: ast.Or, ast.Or: ast.And},
}
# Arguments that change no result.
NO_RESULT = ("name", "strict", "verbose")
# The tests of one mutant on one backend: their recorded seconds in total, and the limit for all of them.
MOST_SECONDS, LIMIT = 60, 240


def changes(node):
    """Yields mutated copies of a node of the syntax tree."""

    def changed(**fields):
        new = copy.copy(node)
        for name, value in fields.items():
            setattr(new, name, value)
        return new

    match node:
        case ast.Compare(ops=[operator]):
            yield changed(ops=[COMPARISONS[type(operator)]()])
        case ast.BinOp(op=operator) | ast.BoolOp(op=operator) if type(operator) in OPERATORS:
            yield changed(op=OPERATORS[type(operator)]())
        case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=operand):
            yield operand
        case ast.Constant(value=bool(value)):
            yield ast.Constant(not value)
        case ast.Constant(value=int() | float() as value):
            yield ast.Constant(value + 1)
        case ast.IfExp(test=test):
            yield changed(test=ast.UnaryOp(ast.Not(), test))
        case ast.Call(keywords=keywords):
            for i, keyword in enumerate(keywords):
                if keyword.arg and keyword.arg not in NO_RESULT:
                    yield changed(keywords=keywords[:i] + keywords[i + 1 :])


def is_left_out(node):
    """Returns True for code that is not mutated: raised errors, f-strings, imports and assertions."""
    return isinstance(node, (ast.Raise, ast.JoinedStr, ast.Import, ast.ImportFrom, ast.Assert))


def mutants_of(path):
    """Returns the mutants of a file as dicts: its function's lines, the place, the code before and after."""
    source = path.read_bytes()
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    found = []

    def add(node, new, function):
        begin = starts[node.lineno - 1] + node.col_offset
        end = starts[node.end_lineno - 1] + node.end_col_offset
        row = {"line": node.lineno, "begin": begin, "end": end, "function": function}
        row |= {"before": source[begin:end].decode(), "after": f"({ast.unparse(new)})"}
        found.append(row)

    def visit(node, function):
        if is_left_out(node):
            return
        if isinstance(node, ast.FunctionDef):
            function = (node.lineno, node.end_lineno)
            children = [*node.args.defaults, *(d for d in node.args.kw_defaults if d), *node.body]
        else:
            children = list(ast.iter_child_nodes(node))
        if function:
            for new in changes(node):
                add(node, new, function)
            if isinstance(node, (ast.If, ast.While)):
                add(node.test, ast.UnaryOp(ast.Not(), node.test), function)
        for child in children:
            if not isinstance(child, ast.keyword):
                visit(child, function)
            else:
                visit(child.value, function)

    visit(ast.parse(source), None)
    return found


def draw(root, seed):
    """Returns the mutants of all groups, drawn from the seed."""
    rows = []
    for group, (pattern, folder, count) in GROUPS.items():
        candidates = []
        for path in sorted((root / "keras_vit").glob(pattern)):
            file = path.relative_to(root).as_posix()
            candidates += [{"group": group, "folder": folder, "file": file, **row} for row in mutants_of(path)]
        rows += random.Random(f"{seed} {group}").sample(candidates, min(count, len(candidates)))
    # Shuffle the groups, so that the first mutants of the list are a sample of all groups.
    random.Random(seed).shuffle(rows)
    return rows


def state(root):
    """Returns a hash of the code and the tests."""
    files = sorted(path for name in ("keras_vit", "tests") for path in (root / name).rglob("*.py"))
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()[:16]


class Record:
    """A pytest plugin that records the lines that each test runs, its seconds and whether it fails."""

    def __init__(self, coverage):
        self.coverage = coverage
        self.seconds = collections.Counter()
        self.failed = set()

    def pytest_runtest_logstart(self, nodeid):
        self.coverage.switch_context(nodeid)

    def pytest_runtest_logreport(self, report):
        self.seconds[report.nodeid] += report.duration
        if report.failed:
            self.failed.add(report.nodeid)


def record(folder, out):
    """In a child process: runs the tests of a folder and writes which test runs which lines."""
    import coverage
    import pytest

    measured = coverage.Coverage(source=["keras_vit"], data_file=None)
    plugin = Record(measured)
    measured.start()
    pytest.main(["-q", "-p", "no:cacheprovider", f"tests/{folder}"], plugins=[plugin])
    measured.stop()
    data = measured.get_data()
    lines = {}
    for file in data.measured_files():
        by_line = {line: sorted(set(tests) - {""}) for line, tests in data.contexts_by_lineno(file).items()}
        lines[Path(file).relative_to(Path.cwd()).as_posix()] = by_line
    Path(out).write_text(json.dumps({"seconds": plugin.seconds, "failed": sorted(plugin.failed), "lines": lines}))


def tests_of(row, recorded):
    """Returns the tests that run a mutant's function, the fastest first.

    A fixture runs once for the tests of a file, so that one test of a file counts for all of them.
    """
    lines, seconds = recorded["lines"].get(row["file"], {}), recorded["seconds"]
    first, last = row["function"]
    files = {test.partition("::")[0] for n in range(first, last + 1) for test in lines.get(str(n), ())}
    tests = {test for test in seconds if test.partition("::")[0] in files} - set(recorded["failed"])
    chosen, total = [], 0
    for test in sorted(tests, key=lambda test: (seconds[test], test)):
        total += seconds[test]
        if total > MOST_SECONDS:
            break
        chosen.append(test)
    return chosen


class FirstFailure:
    """A pytest plugin that keeps the name of the first test that fails."""

    name = ""

    def pytest_runtest_logreport(self, report):
        if report.failed:
            self.name = self.name or report.nodeid

    def pytest_collectreport(self, report):
        if report.failed:
            self.name = self.name or report.nodeid


def serve():
    """In a child process: imports the frameworks once, then runs the tests of each request in a forked process."""
    import hypothesis
    import keras
    import pytest
    import scipy.ndimage

    del hypothesis, keras, scipy
    for line in sys.stdin:
        request = json.loads(line)
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.setsid()
            quiet = os.open(os.devnull, os.O_RDWR)
            for number in (0, 1, 2):
                os.dup2(quiet, number)
            plugin = FirstFailure()
            code = pytest.main(["-x", "-q", "-p", "no:cacheprovider", *request["tests"]], plugins=[plugin])
            os.write(writing, json.dumps([int(code), plugin.name]).encode())
            os._exit(0)
        os.close(writing)
        ready, _, _ = select.select([reading], [], [], LIMIT)
        answer = os.read(reading, 65536) if ready else b""
        os.close(reading)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)
        # If the process crashed, `answer` is empty.
        print(answer.decode() or json.dumps([1, "crash" if ready else "timeout"]), file=sys.__stdout__, flush=True)


class Worker:
    """A copy of the checkout, and one process per backend that runs tests in it."""

    def __init__(self, root, folder):
        self.root = Path(folder)
        for name in ("keras_vit", "tests", "benchmarks", "examples"):
            shutil.copytree(root / name, self.root / name, ignore=shutil.ignore_patterns("__pycache__", "results"))
        for name in ("pyproject.toml", "README.md"):
            shutil.copy(root / name, self.root)
        # A file's hash, not its time, decides whether it is compiled again: mutants follow one another within a second.
        command = [sys.executable, "-m", "compileall", "-q", "--invalidation-mode", "checked-hash", "keras_vit"]
        subprocess.run(command, cwd=self.root, check=True)
        if (shared := root.parent / "shared").exists() and not (link := self.root.parent / "shared").exists():
            link.symlink_to(shared)
        self.servers = {}

    def environment(self, backend):
        return {**os.environ, "KERAS_BACKEND": backend, "PYTHONPATH": str(self.root), "OMP_NUM_THREADS": "1", "CI": "1"}

    def ask(self, backend, tests):
        if backend not in self.servers:
            self.servers[backend] = subprocess.Popen(
                [sys.executable, __file__, "--serve"],
                cwd=self.root,
                env=self.environment(backend),
                text=True,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
        server = self.servers[backend]
        print(json.dumps({"tests": tests}), file=server.stdin, flush=True)
        return json.loads(server.stdout.readline())

    def run(self, row, recorded):
        """Returns a mutant's row with its result: "killed" and the test that failed, or "survived"."""
        path = self.root / row["file"]
        source = path.read_bytes()
        start = time.monotonic()
        path.write_bytes(source[: row["begin"]] + row["after"].encode() + source[row["end"] :])
        result, number = {"result": "survived"}, 0
        try:
            for backend in BACKENDS:
                if tests := tests_of(row, recorded[row["folder"], backend]):
                    number += len(tests)
                    code, name = self.ask(backend, tests)
                    if code == 4 and not name:
                        raise RuntimeError("Expected the recorded tests to exist. Delete the folder of --records.")
                    if code not in (0, 5):
                        result = {"result": "killed", "backend": backend, "by": name}
                        break
        finally:
            path.write_bytes(source)
        return {**row, **result, "tests": number, "seconds": round(time.monotonic() - start, 1)}

    def record(self, folder, backend, out):
        command = [sys.executable, __file__, "--record", folder, str(out)]
        subprocess.run(command, cwd=self.root, env=self.environment(backend), stdout=subprocess.DEVNULL, check=True)

    def close(self):
        for server in self.servers.values():
            server.kill()
            server.wait()


def summary(rows):
    """Returns the share of killed mutants by group."""
    table = {}
    for group in GROUPS:
        results = [row["result"] for row in rows if row["group"] == group]
        table[group] = {"mutants": len(results), "killed": results.count("killed")}
    table["all"] = {key: sum(row[key] for row in table.values()) for key in ("mutants", "killed")}
    return table


def identity(row):
    return [row[key] for key in ("file", "begin", "before", "after")]


def run(arguments):
    """Records the tests, runs the mutants that have no result yet, and returns the rows."""
    out = arguments.out
    rows = json.loads(out.read_text())["rows"] if out.exists() else []
    drawn = draw(arguments.root, arguments.seed)[: arguments.count]
    done = {str(identity(row)): row for row in rows if row["result"] != arguments.again}
    waiting = [row for row in drawn if str(identity(row)) not in done]
    rows = [done[str(identity(row))] for row in drawn if str(identity(row)) in done]
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as temporary, concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        workers = queue.SimpleQueue()
        everyone = [Worker(arguments.root, Path(temporary, str(i), "checkout")) for i in range(arguments.jobs)]
        for worker in everyone:
            workers.put(worker)

        def with_worker(function, *values):
            worker = workers.get()
            try:
                return function(worker, *values)
            finally:
                workers.put(worker)

        def record_folder(key):
            path = records / f"{key[0]}_{key[1]}.json"
            if not path.exists():
                with_worker(Worker.record, *key, path)
            return key, json.loads(path.read_text())

        def run_row(row):
            if time.monotonic() - start > 60 * arguments.minutes:
                return None
            return with_worker(Worker.run, row, recorded)

        try:
            records = arguments.records.resolve() / state(arguments.root)
            records.mkdir(parents=True, exist_ok=True)
            folders = dict.fromkeys(row["folder"] for row in waiting)
            recorded = dict(pool.map(record_folder, [(f, b) for f in folders for b in BACKENDS]))
            for future in concurrent.futures.as_completed([pool.submit(run_row, row) for row in waiting]):
                if row := future.result():
                    rows.append(row)
                    change = f"{row['before']}  ->  {row['after']}"
                    print(
                        f"{row['result']:9}{row['seconds']:6.1f} s  {row['file']}:{row['line']}  {change}", flush=True
                    )
                    draft = out.with_suffix(".draft")
                    draft.write_text(
                        json.dumps({"seed": arguments.seed, "summary": summary(rows), "rows": rows}, indent=1)
                    )
                    draft.replace(out)
        finally:
            for worker in everyone:
                worker.close()
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--root", type=Path, default=ROOT)
    parser.add_argument(
        "--records", type=Path, default=ROOT / ".pytest_cache" / "mutants", help="folder of the recorded tests"
    )
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "mutants.json")
    parser.add_argument("--again", choices=("killed", "survived"), help="repeat the mutants with this result")
    parser.add_argument("--record", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.record:
        return record(*arguments.record)
    if arguments.serve:
        return serve()
    for group, row in summary(run(arguments)).items():
        print(f"{group:14}{row['killed']:4} of {row['mutants']:4}")


if __name__ == "__main__":
    main()
