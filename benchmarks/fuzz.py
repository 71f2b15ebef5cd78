"""Damaged and hostile inputs: weight files, configs, requests, pictures and killed training runs.

Each case is made from the seed, its name and its number, and runs in a process with limited memory and time. Files and
pictures must be refused by an error that names them, or read as if they were whole; a refused file must leave the model
unchanged. The server must answer every request, and a good one within a second. Results go to results/fuzz.json; the
exit status is 1 if a result breaks one of these promises.

    KERAS_BACKEND=torch python benchmarks/fuzz.py --minutes 60

One case again: python benchmarks/fuzz.py --only files --name npz --seed 0 --first 17 --cases 1
"""

import argparse
import collections
import concurrent.futures
import contextlib
import hashlib
import http.client
import itertools
import json
import os
import re
import resource
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
from hostile import GOOD, damaged, mutated, picture, request, rng_of, text_of

from tests import hostile_archives

ROOT = Path(__file__).parents[1]
# The memory that a process may use in addition to its memory after the start.
MEMORY = 4 * 2**30
# Time limits for one case, and for the start of a process.
CASE_SECONDS, START_SECONDS = 20, 120
# {format: True if it has a checksum over all its bytes}. Without a checksum, some damage cannot be noticed.
CHECKSUM = {
    "npz": True,
    "safetensors": True,
    "keras": True,
    "official_npz": True,
    "modern_pth": True,
    "weights_h5": False,
    "timm_safetensors": False,
    "huggingface": False,
    "legacy_pth": False,
}
CONFIGS = ("config.json", "preprocessor_config.json", "keras", "safetensors_header")
# The number of cases of each name in a complete run.
CASES = {"archives": 100, "files": 250, "configs": 50, "pictures": 200, "requests": 500, "load": 3000, "kills": 5}
BACKENDS = ("tensorflow", "jax", "torch")


class Checkpoints:
    """A folder with nine undamaged checkpoints of two tiny models."""

    def __init__(self, folder):
        import keras

        import keras_vit

        self.folder, self.load_weights = Path(folder), keras_vit.load_weights
        self.read_model = keras_vit.from_pretrained
        self.save, self.clone = keras_vit.save_weights, keras.models.clone_model
        self.models, self.paths = {}, {}

    def model(self, name):
        """Returns the model whose weights are in the checkpoint."""
        from tests.tiny import build, randomize

        # timm and Hugging Face compute the exact GELU.
        activation = "gelu" if name in ("safetensors", "timm_safetensors", "legacy_pth", "modern_pth") else "gelu_tanh"
        if activation not in self.models:
            self.models[activation] = randomize(build(activation=activation), 1)
        return self.models[activation]

    def path(self, name):
        """Writes a checkpoint and returns its path."""
        if name in self.paths:
            return self.paths[name]
        from safetensors.numpy import load_file, save_file

        model = self.model(name)
        endings = {"weights_h5": ".weights.h5", "keras": ".keras", "huggingface": ""}
        folder = self.folder / name
        folder.mkdir()
        path = folder / ("model" + endings.get(name, f".{name.rpartition('_')[2]}"))
        if name == "npz":
            self.save(model, path)
        elif name == "official_npz":
            with np.load(self.path("npz")) as arrays:
                np.savez(path, **arrays)
        elif name == "safetensors":
            self.save(model, path, "timm")
        elif name == "huggingface":
            self.save(model, path, "huggingface")
            # Write the file again as transformers does, without the checksum of this package.
            save_file(load_file(path / "model.safetensors"), path / "model.safetensors", {"format": "pt"})
        elif name == "keras":
            model.save(path)
        elif name == "weights_h5":
            model.save_weights(path)
        else:
            state = load_file(self.path("safetensors"))
            if name == "timm_safetensors":
                save_file(state, path, {"format": "pt"})
            else:
                import torch

                state = {key: torch.from_numpy(value) for key, value in state.items()}
                torch.save(state, path, _use_new_zipfile_serialization=name == "modern_pth")
        self.paths[name] = path
        return path


def limit_memory(process_id):
    """Limits the memory of a process to its present memory plus `MEMORY`."""
    used = int(re.search(r"VmSize:\s+(\d+)", Path(f"/proc/{process_id}/status").read_text())[1]) * 1024
    resource.prlimit(process_id, resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))


def finding(section, name, outcome, detail, case=None):
    """Returns the row that describes an unexpected outcome."""
    return {"section": section, "name": name, "case": case, "outcome": outcome, "detail": detail}


def same(ours, theirs):
    return len(ours) == len(theirs) and all(np.array_equal(a, b) for a, b in zip(ours, theirs, strict=True))


def outcome_of(function, file_name):
    """Returns ("refused" or "crash", reason) if a function raises, else ("loaded", its result)."""
    try:
        return "loaded", function()
    except (ValueError, OSError) as error:
        message = str(error)
        clear = file_name in message
        return ("refused" if clear else "unclear"), f"{type(error).__name__}: {message[:300]}"
    except Exception as error:
        return "crash", f"{type(error).__name__}: {str(error)[:300]}"


class Files:
    """Damaged checkpoints, loaded into a model with other weights."""

    def __init__(self, folder, name):
        self.checkpoints, self.name = Checkpoints(folder), name
        self.whole, self.model = self.checkpoints.path(name), self.checkpoints.model(name)
        self.weights, self.before = self.model.get_weights(), [0.5 * w for w in self.model.get_weights()]
        self.target = self.checkpoints.clone(self.model)
        if self.load(self.whole) != ("loaded", ""):
            raise RuntimeError(f"The whole {name} file does not load: {self.load(self.whole)}")

    def run(self, rng):
        bad = self.checkpoints.folder / "bad" / self.whole.name
        bad.parent.mkdir(exist_ok=True)
        if self.whole.is_dir():
            shutil.copytree(self.whole, bad, dirs_exist_ok=True)
            file = sorted(self.whole.iterdir())[rng.integers(2)].name
            (bad / file).write_bytes(damaged((self.whole / file).read_bytes(), rng))
        else:
            bad.write_bytes(damaged(self.whole.read_bytes(), rng))
        outcome, detail = self.load(bad)
        if outcome == "silent" and not CHECKSUM[self.name]:
            with self.sidecars(bad):
                if self.load(bad)[0] != "refused":
                    outcome = "silent despite a hash"
        return outcome, detail

    @contextlib.contextmanager
    def sidecars(self, bad):
        """Writes a `.sha256` file, with the hash of the undamaged file, next to each damaged file."""
        files = sorted(self.whole.iterdir()) if self.whole.is_dir() else [self.whole]
        written = []
        for file in files:
            written.append(Path(f"{bad / file.name if self.whole.is_dir() else bad}.sha256"))
            written[-1].write_text(f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n")
        try:
            yield
        finally:
            for path in written:
                path.unlink()

    def load(self, path):
        """Returns the outcome and its reason."""
        if self.name == "keras":
            outcome, found = outcome_of(lambda: self.checkpoints.read_model(path), path.name)
            right = (
                outcome == "loaded" and same(found.get_weights(), self.weights) and found.config == self.model.config
            )
        else:
            self.target.set_weights(self.before)
            outcome, found = outcome_of(lambda: self.checkpoints.load_weights(self.target, path), path.name)
            right = same(self.target.get_weights(), self.weights if outcome == "loaded" else self.before)
        if outcome != "loaded":
            return ("changed" if not right and self.name != "keras" else outcome), found
        return ("loaded" if right else "silent"), ""


class Configs:
    """Configs with wrong, missing, unknown and huge values."""

    def __init__(self, folder, name):
        self.checkpoints, self.folder, self.name = Checkpoints(folder), Path(folder), name

    def run(self, rng):
        name = self.name
        if name == "keras":
            whole, path = self.checkpoints.path("keras"), self.folder / "bad.keras"
            with zipfile.ZipFile(whole) as source, zipfile.ZipFile(path, "w") as target:
                for item in source.namelist():
                    data = source.read(item)
                    if item == "config.json":
                        data = text_of(mutated(json.loads(data), rng), rng)
                    target.writestr(item, data)
        elif name == "safetensors_header":
            data = self.checkpoints.path("safetensors").read_bytes()
            (length,) = struct.unpack("<Q", data[:8])
            header = text_of(mutated(json.loads(data[8 : 8 + length]), rng), rng).encode()
            path = self.folder / "bad.safetensors"
            path.write_bytes(struct.pack("<Q", len(header)) + header + data[8 + length :])
        else:
            path = self.folder / "bad"
            shutil.copytree(self.checkpoints.path("huggingface"), path, dirs_exist_ok=True)
            tree = json.loads((path / name).read_text())
            (path / name).write_text(text_of(mutated(tree, rng), rng))
        outcome, detail = outcome_of(lambda: self.checkpoints.read_model(path), path.name)
        return outcome, "" if outcome == "loaded" else detail


class Pictures:
    """Damaged and hostile pictures, read as for predictions."""

    def __init__(self, folder, name):
        import keras_vit
        from tests.tiny import build

        self.read, self.path, self.model = keras_vit.read_image, Path(folder, "picture"), build()

    def run(self, rng):
        self.path.write_bytes(picture(rng))
        outcome, detail = outcome_of(lambda: self.read(self.path, self.model), self.path.name)
        if outcome != "loaded":
            return outcome, detail
        whole = detail.shape == (16, 16, 3) and np.isfinite(detail).all() and 0 <= detail.min() <= detail.max() <= 255
        return ("loaded", "") if whole else ("silent", f"{detail.shape} from {detail.min()} to {detail.max()}")


class Archives:
    """Small weight files that would need much memory or time."""

    def __init__(self, folder, name):
        import torch  # noqa: F401

        from keras_vit.weights.read import open_checkpoint

        self.folder, self.open = Path(folder), open_checkpoint

    def run(self, rng):
        name = sorted(hostile_archives.FILES)[rng.integers(len(hostile_archives.FILES))]
        path = self.folder / name
        hostile_archives.FILES[name][0](path)
        outcome, detail = outcome_of(lambda: self.open(path), name)
        return ("silent", name) if outcome == "loaded" else (outcome, detail)


SECTIONS = {"archives": Archives, "files": Files, "configs": Configs, "pictures": Pictures}
NAMES = {"archives": ("archives",), "files": tuple(CHECKSUM), "configs": CONFIGS, "pictures": ("pictures",)}


def work(section, name, seed, first, count):
    """In a child process: runs cases and prints a line of JSON for each."""
    with tempfile.TemporaryDirectory() as folder:
        runner = SECTIONS[section](folder, name)
        limit_memory(os.getpid())
        print(json.dumps("ready"), flush=True)
        for case in range(first, first + count):
            outcome, detail = runner.run(rng_of(seed, name, case))
            print(json.dumps([case, outcome, detail]), flush=True)


def run_cases(section, name, seed, first, count, deadline):
    """Runs cases in child processes; returns counts of outcomes and the findings."""
    counts, findings, case, end = collections.Counter(), [], first, first + count
    while case < end and time.monotonic() < deadline:
        command = [sys.executable, __file__, "--worker", section, name, str(seed), str(case), str(end - case)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        started, late = False, threading.Event()
        while case < end and time.monotonic() < deadline:

            def stop(process=process, late=late):
                late.set()
                process.kill()

            timer = threading.Timer(CASE_SECONDS if started else START_SECONDS, stop)
            timer.start()
            line = process.stdout.readline()
            timer.cancel()
            if not line and not started:
                raise RuntimeError(f"The process for {section} {name} did not start: {' '.join(command)}")
            if not started:
                started = True
                continue
            if line:
                _, outcome, detail = json.loads(line)
            else:
                outcome, detail = (
                    ("hang", f"more than {CASE_SECONDS} s") if late.is_set() else ("crash", "process died")
                )
            counts[outcome] += 1
            if outcome not in ("refused", "loaded"):
                findings.append(finding(section, name, outcome, detail, case))
            case += 1
            if not line:
                break
        process.kill()
        process.wait()
    return counts, findings


def export_tiny(folder, seed):
    """Exports a tiny model with random weights."""
    import keras_vit
    from tests.tiny import build, randomize

    keras_vit.export.saved_model(randomize(build(), seed), folder, postprocess="classify")


class Server:
    """examples/serve/server.py in front of the versions of a model."""

    def __init__(self, folder, port=0):
        self.process = subprocess.Popen(
            [sys.executable, ROOT / "examples" / "serve" / "server.py", folder, "--name", "vit", "--port", str(port)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.port = int(re.search(r":(\d+)/", self.process.stdout.readline())[1])
        limit_memory(self.process.pid)

    def post(self, body, timeout=CASE_SECONDS):
        """Returns the status of the response."""
        return self.ask(body, timeout)[0]

    def ask(self, body, timeout=CASE_SECONDS):
        """Returns the status and the body of the response."""
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)) as connection:
            connection.request("POST", "/v1/models/vit:predict", body)
            response = connection.getresponse()
            return response.status, response.read()

    def raw(self, data, timeout=CASE_SECONDS):
        """Sends bytes that need not be HTTP; returns the status of the first response, or None."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=timeout) as connection:
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
            received = b""
            while part := connection.recv(65536):
                received += part
        found = re.match(rb"HTTP/1\.\d (\d+)", received)
        return found and int(found[1])


def run_requests(seed, first, count, deadline):
    """Sends hostile requests to the server, and good ones beside them; returns results and findings."""
    counts, findings, seconds, done = collections.Counter(), [], [], threading.Event()
    with tempfile.TemporaryDirectory() as folder:
        export_tiny(Path(folder, "1"), seed)
        server = Server(folder)
        good = json.dumps(GOOD)

        def ask():
            start = time.monotonic()
            try:
                fine = server.post(good, timeout=60) == 200
            except (OSError, http.client.HTTPException):
                fine = False
            time.sleep(0.02)
            return time.monotonic() - start - 0.02 if fine else float("inf")

        def beside():
            while not done.is_set():
                seconds.append(ask())

        # On a busy machine, good requests are slow even without hostile ones.
        alone = [ask() for _ in range(120)][20:]

        thread = threading.Thread(target=beside)
        thread.start()
        for case in range(first, first + count):
            if time.monotonic() > deadline:
                break
            way, data = request(rng_of(seed, "requests", case))
            try:
                status = getattr(server, way)(data)
                outcome = "crash" if status == 500 else "answered" if status == 200 else "refused"
                detail = f"status {status}"
            except TimeoutError:
                outcome, detail = "hang", "out of time"
            except (OSError, http.client.HTTPException) as error:
                outcome, detail = "refused", f"{type(error).__name__}: {error}"
            if server.process.poll() is not None:
                outcome, detail = "death", f"exit status {server.process.returncode}"
            counts[outcome] += 1
            if outcome in ("crash", "hang", "death"):
                findings.append(
                    {"section": "requests", "name": way, "case": case, "outcome": outcome, "detail": detail}
                )
            if outcome == "death":
                break
        done.set()
        thread.join()
        server.process.terminate()
        server.process.wait()
    slow = sum(second > 1 for second in seconds)
    result = {**counts, "good": len(seconds), "good_slower_than_1_s": slow, "slowest_good_s": round(max(seconds), 3)}
    result["slowest_good_alone_s"] = round(max(alone), 3)
    if slow:
        findings.append(
            {"section": "requests", "name": "good", "outcome": "slow", "detail": f"{slow} of {len(seconds)}"}
        )
    return result, findings


def run_load(seed, count):
    """Sends `count` requests from 24 clients, 5% of them hostile, and replaces the server by one with a new version.

    A client sends a good request again after status 503 and while no server listens. Each good request must get the
    answer of one of the two versions. Returns results and findings.
    """
    counts, numbers, half = collections.Counter(), itertools.count(), threading.Event()
    images = np.random.default_rng(seed).uniform(size=(8, 16, 16, 3)).round(3)
    bodies = [json.dumps({"instances": [image.tolist()]}) for image in images]

    def outcome(number):
        while True:
            try:
                status, answer = server.ask(bodies[number % 8], timeout=60)
            except ConnectionRefusedError:
                status = 503
            except (OSError, http.client.HTTPException) as error:
                return f"lost: {type(error).__name__}"
            if status != 503:
                right = status == 200 and json.loads(answer) in (old[number % 8], new[number % 8])
                return "answered" if right else f"wrong: status {status}"
            counts["sent again"] += 1
            time.sleep(0.1)

    def client():
        while (number := next(numbers)) < count:
            if number == count // 2:
                half.set()
            if number % 20:
                counts[outcome(number)] += 1
                continue
            way, data = request(rng_of(seed, "load", number))
            with contextlib.suppress(OSError, http.client.HTTPException):
                getattr(server, way)(data)
            counts["hostile"] += 1

    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(24) as pool:
        versions, draft = Path(folder, "vit"), Path(folder, "draft")
        export_tiny(versions / "1", seed)
        export_tiny(draft / "2", seed + 1)
        server = Server(draft)
        new = [json.loads(server.ask(body)[1]) for body in bodies]
        server.process.terminate()
        server = Server(versions)
        old = [json.loads(server.ask(body)[1]) for body in bodies]
        clients = [pool.submit(client) for _ in range(24)]
        half.wait()
        (draft / "2").rename(versions / "2")
        server.process.terminate()
        counts[f"exit status {server.process.wait()}"] += 1
        server = Server(versions, server.port)
        for each in clients:
            each.result()
        server.process.terminate()
        server.process.wait()
    bad = {outcome: number for outcome, number in counts.items() if outcome.startswith(("lost", "wrong"))}
    row = {"section": "load", "name": "load"}
    return counts, [{**row, "outcome": outcome, "detail": f"{number} of {count}"} for outcome, number in bad.items()]


def run_kills(backend, count, deadline):
    """Kills training runs on a backend; returns {mode: counts} and the findings."""
    code = (
        "import json, sys; from tests.training.killed import kills; print(json.dumps(kills(*json.loads(sys.argv[1]))))"
    )
    # Python looks for modules in ROOT, where it starts, and not in this file's folder.
    environment = {**os.environ, "KERAS_BACKEND": backend}
    command = [sys.executable, "-c", code, json.dumps([backend, count])]
    # A new session groups all processes of the run, so that they can be killed together.
    options = {"env": environment, "cwd": ROOT, "text": True, "start_new_session": True}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)
    try:
        output, errors = process.communicate(timeout=max(1, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return {}, [finding("kills", backend, "stopped", "out of time")]
    if process.returncode:
        reason = (errors.strip() or f"exit status {process.returncode}").splitlines()[-1]
        return {}, [finding("kills", backend, "crash", reason)]
    modes = json.loads(output.splitlines()[-1])
    findings = []
    for mode, row in modes.items():
        if row["damaged"] or row["resumed"] < row["kills"] or not row["identical"]:
            findings.append(finding("kills", f"{backend} {mode}", "differs", str(row)))
    return modes, findings


def is_failure(row):
    """Returns True if a finding breaks a promise. Damage that no checksum covers breaks none."""
    without_checksum = row["section"] == "files" and not CHECKSUM[row["name"]]
    return not (row["outcome"] == "silent" and without_checksum)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--minutes", type=float, default=60, help="stop after this time (default: 60)")
    parser.add_argument("--only", default=",".join(CASES), help="sections, separated by commas (default: all)")
    parser.add_argument("--name", help="only this format or kind of config")
    parser.add_argument("--seed", type=int, default=0, help="of all cases (default: 0)")
    parser.add_argument("--first", type=int, default=0, help="the number of the first case (default: 0)")
    parser.add_argument("--cases", type=int, help=f"per name (default: {CASES})")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "fuzz.json")
    parser.add_argument("--worker", nargs=5, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        section, name, *numbers = args.worker
        return work(section, name, *map(int, numbers))
    sections = args.only.split(",")
    if unknown := set(sections) - set(CASES):
        parser.error(f"argument --only: expected sections out of {', '.join(CASES)}. Received: {', '.join(unknown)}")
    start = time.monotonic()
    deadline = start + 60 * args.minutes
    print(f"seed {args.seed}, at most {args.minutes:g} minutes", flush=True)
    results, findings = {"seed": args.seed, "backend": os.environ.get("KERAS_BACKEND", "tensorflow")}, []
    for section in sections:
        count = args.cases or CASES[section]
        rows = results[section] = {}
        names = {"requests": ("requests",), "load": ("load",), "kills": BACKENDS}.get(section) or NAMES[section]
        for name in [name for name in names if args.name in (None, name)]:
            begun = time.monotonic()
            if section == "requests":
                row, found = run_requests(args.seed, args.first, count, deadline)
            elif section == "load":
                row, found = run_load(args.seed, count)
            elif section == "kills":
                row, found = run_kills(name, count, deadline)
            else:
                row, found = run_cases(section, name, args.seed, args.first, count, deadline)
            rows[name] = {**row, "seconds": round(time.monotonic() - begun, 1)}
            findings += found
            print(f"{section:9}{name:26}{json.dumps(rows[name])}", flush=True)
    failures = [found for found in findings if is_failure(found)]
    results |= {"minutes": round((time.monotonic() - start) / 60, 1), "failures": len(failures), "findings": findings}

    from keras_vit.files import replacing
    from keras_vit.version import __version__

    results["keras_vit"] = __version__
    args.out.parent.mkdir(parents=True, exist_ok=True)
    with replacing(args.out) as draft:
        draft.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    for failure in failures[:50]:
        print(json.dumps(failure))
    print(f"{len(failures)} failures; wrote {args.out}")
    return int(bool(failures))


if __name__ == "__main__":
    sys.exit(main())
