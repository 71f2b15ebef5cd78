"""Runs a function of this package on a model in a Python process of another backend.

Some formats can be written on one backend only. The model goes there as a .keras file; its own classes and functions
are imported there by name, and those of the running script are taken out of its source.
"""

import ast
import dis
import importlib
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import types
import zipfile
from pathlib import Path

import keras

# Exports run on the CPU: the parent may hold all of a GPU's memory.
HIDDEN_GPUS = {"CUDA_VISIBLE_DEVICES": "-1", "HIP_VISIBLE_DEVICES": "-1", "ROCR_VISIBLE_DEVICES": "-1"}
HIDDEN_GPUS |= {"JAX_PLATFORMS": "cpu"}
# The search path comes first: it may be what makes this package importable.
START = (
    "import json, sys; job = json.load(open(sys.argv[1], encoding='utf-8')); sys.path[:] = job['path']; "
    "from keras_vit.export.child import main; main(job)"
)
SCRIPT = "__main__"
# The name under which the needed parts of a script run, so that `if __name__ == "__main__":` does not.
SCRIPT_IN_CHILD = "__keras_vit_main__"


def run_in_child(function, model=None, *, backend, custom_module=None, **arguments):
    """Calls a function in a new Python process of a backend, without GPUs.

    Args:
        function: Function of an importable module, called as `function(model, **arguments)`, or `function(**arguments)`
            without a model. Its result is JSON.
        model: A `keras.Model` or None. It is saved to a temporary .keras file and loaded in the process.
        backend: "tensorflow", "jax" or "torch".
        custom_module: Name of a module, or path of a Python file, that defines the model's own layers; None finds
            those of imported modules by name, and those of the running script in its source.
        **arguments: JSON values or paths.

    Returns:
        What the function returned.

    Raises:
        ImportError: If the backend is not installed.
        ValueError: If a layer of the model can be defined in no other process.
        RuntimeError: If the function fails; the message ends with what the process wrote to stderr.

    Example:

    >>> from keras_vit.export.child import backend_name, run_in_child
    >>> run_in_child(backend_name, backend=keras.backend.backend()) == keras.backend.backend()
    True
    """
    if importlib.util.find_spec(backend) is None:
        raise ImportError(
            f"This export runs on {backend}, in a process of its own, whatever the backend here, and {backend} is not "
            f'installed: pip install "keras-vit[{backend}]"'
        )
    name = f"{function.__module__}:{function.__qualname__}"
    with tempfile.TemporaryDirectory(prefix="keras_vit_") as folder:
        folder = Path(folder)
        job = {
            "path": sys.path,
            "function": name,
            "arguments": {key: _plain(value) for key, value in arguments.items()},
            "model": None,
            "objects": [],
            "result": str(folder / "result.json"),
            "image_data_format": keras.config.image_data_format(),
            "floatx": keras.config.floatx(),
        }
        if model is not None:
            job["model"] = str(folder / "model.keras")
            model.save(job["model"])
            job["objects"] = _custom_objects(model, job["model"], custom_module)
        (folder / "job.json").write_text(json.dumps(job), encoding="utf-8")
        environment = {**os.environ, **HIDDEN_GPUS, "KERAS_BACKEND": backend}
        environment.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
        # -P: the current folder must not hide a module of the standard library before the path is set.
        command = [sys.executable, "-P", "-c", START, str(folder / "job.json")]
        process = subprocess.run(command, env=environment, capture_output=True, text=True, errors="replace")
        if process.returncode or not Path(job["result"]).is_file():
            raise RuntimeError(
                f"{name} failed in a process with KERAS_BACKEND={backend} (exit status {process.returncode}). "
                f"Its stderr:\n{process.stderr.strip()[-4000:]}"
            )
        return json.loads(Path(job["result"]).read_text(encoding="utf-8"))


def backend_name():
    """Returns the backend of the process that it runs in."""
    return keras.backend.backend()


def main(job):
    """Does in the child what a job says."""
    keras.config.set_image_data_format(job["image_data_format"])
    keras.config.set_floatx(job["floatx"])
    module, _, function = job["function"].partition(":")
    function = getattr(importlib.import_module(module), function)
    positional = []
    if job["model"]:
        # The file was written by the process that started this one, so it may hold a Lambda's code.
        objects = {entry["registered_name"]: _define(entry) for entry in job["objects"]}
        positional = [keras.saving.load_model(job["model"], objects, compile=False, safe_mode=False)]
    result = json.dumps(function(*positional, **job["arguments"]))
    Path(job["result"]).write_text(result, encoding="utf-8")


def _plain(value):
    return os.path.abspath(value) if isinstance(value, os.PathLike) else value


def _custom_objects(model, path, custom_module):
    """Says for each object of a .keras file that Keras and this package lack where the child gets it from."""
    with zipfile.ZipFile(path) as file:
        config = json.loads(file.read("config.json"))
    live, entries = None, {}
    for node in _nodes(config):
        registered, function = node.get("registered_name"), node["class_name"] == "function"
        root = (node.get("module") or "").split(".")[0]
        if not registered or registered.startswith("keras_vit>") or (root in ("keras", "builtins") and not function):
            continue
        name = node["config"] if function else node["class_name"]
        # Keras calls every function that is not registered this.
        registered = name if registered == "function" else registered
        found = keras.saving.get_registered_object(registered)
        if found is None:
            # The file does not say where what is not registered comes from.
            live = _live_objects(model) if live is None else live
            found = live.get(name)
        name, module = getattr(found, "__qualname__", name), getattr(found, "__module__", SCRIPT)
        entries[registered] = _place(registered, module, name, custom_module)
    return list(entries.values())


def _live_objects(model):
    """The classes of a model's layers, and those and the functions that the layers' attributes are, by name."""
    objects, pending, seen = {}, [model], set()
    while pending:
        layer = pending.pop()
        if id(layer) in seen:
            continue
        seen.add(id(layer))
        objects[type(layer).__name__] = type(layer)
        for value in vars(layer).values():
            # Keras keeps a layer's own layers in lists of its own.
            values = value if isinstance(value, (list, tuple)) else [value]
            pending += [v for v in values if isinstance(v, keras.layers.Layer)]
            objects |= {v.__name__: v for v in values if isinstance(v, types.FunctionType)}
            objects |= {type(v).__name__: type(v) for v in values if hasattr(v, "get_config")}
    return objects


def _nodes(config):
    """The dicts of a config that stand for an object."""
    if isinstance(config, dict):
        if "class_name" in config and "config" in config:
            yield config
        config = list(config.values())
    if isinstance(config, list):
        for value in config:
            yield from _nodes(value)


def _place(registered, module, name, custom_module):
    entry = {"registered_name": registered, "name": name, "module": module, "file": None, "source": None}
    if custom_module is not None:
        if os.path.isfile(custom_module):
            return {**entry, "module": Path(custom_module).stem, "file": os.path.abspath(custom_module)}
        return {**entry, "module": os.fspath(custom_module)}
    advice = (
        "Write it at the top level of a file of its own, as my_layers.py, and import it from there, or name that file "
        'with custom_module="my_layers.py".'
    )
    if "<locals>" in name:
        raise ValueError(
            f"Expected layers that another process can define, as this export runs in one. Received: {name!r}, which "
            f"is defined inside a function. {advice}"
        )
    if module == SCRIPT:
        source = _needed(_script_source(), name.split(".")[0])
        if source is None:
            raise ValueError(
                f"Expected layers that another process can define, as this export runs in one. Received: {name!r} of "
                f"the running script, whose source cannot be found. {advice}"
            )
        return {**entry, "module": SCRIPT_IN_CHILD, "source": source}
    return entry


def _script_source():
    """The statements of the running script, or of the cells of the running notebook so far."""
    script = sys.modules[SCRIPT]
    if getattr(script, "__file__", None):
        texts = [Path(script.__file__).read_text(encoding="utf-8")]
    else:
        # IPython keeps the cells under this name.
        texts = [text for text in getattr(script, "In", []) if isinstance(text, str)]
    statements = []
    for text in texts:
        try:
            statements += ast.parse(text).body
        except SyntaxError:
            # A cell of shell commands defines no layer.
            continue
    return statements


def _needed(statements, name):
    """The source of those statements that a name needs, directly or not, in order; None if it is nowhere bound.

    The others, which may train the model for hours, do not run.
    """
    bound = [_bound(statement) for statement in statements]
    wanted, chosen, names = [name], set(), set()
    while wanted:
        name = wanted.pop()
        names.add(name)
        for i, statement in enumerate(statements):
            if name in bound[i] and i not in chosen:
                chosen.add(i)
                module = ast.Module([statement], [])
                code = compile(module, "<a statement>", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
                wanted += sorted(_taken(code) - names)
    if not chosen:
        return None
    return "\n".join(ast.unparse(statements[i]) for i in sorted(chosen))


def _taken(code):
    """The names that code takes from outside: neither its own nor, in functions, their parameters and variables."""
    names, own = set(), set()
    for instruction in dis.get_instructions(code):
        name, kind = instruction.argval, instruction.opname
        # A class or module may take a name from outside before it binds the same name.
        if kind == "LOAD_GLOBAL" or (kind in ("LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS") and name not in own):
            names.add(name)
        elif kind == "STORE_NAME":
            own.add(name)
    return names.union(*(_taken(part) for part in code.co_consts if isinstance(part, types.CodeType)))


def _bound(statement):
    """The names that a statement binds."""
    if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return {statement.name}
    names = set()
    for node in ast.walk(statement):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, ast.alias):
            names.add((node.asname or node.name).split(".")[0])
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    return names


def _define(entry):
    """Imports or runs what defines an object, and returns it."""
    try:
        if entry["source"] is not None:
            module = types.ModuleType(SCRIPT_IN_CHILD)
            sys.modules[SCRIPT_IN_CHILD] = module
            exec(compile(entry["source"], "<the running script>", "exec"), module.__dict__)
        elif entry["file"] is not None:
            module = sys.modules.get(entry["module"])
            if module is None or getattr(module, "__file__", None) != entry["file"]:
                spec = importlib.util.spec_from_file_location(entry["module"], entry["file"])
                module = importlib.util.module_from_spec(spec)
                sys.modules[entry["module"]] = module
                spec.loader.exec_module(module)
        else:
            module = importlib.import_module(entry["module"])
        found = keras.saving.get_registered_object(entry["registered_name"])
        if found is None:
            found = module
            for part in entry["name"].split("."):
                found = getattr(found, part)
        return found
    except (Exception, SystemExit) as error:
        raise ImportError(
            f"Cannot define {entry['name']!r} of {entry['file'] or entry['module']} in a process of its own. Write it "
            "at the top level of a file that can be imported alone, as my_layers.py, and import it from there, or name "
            'that file with custom_module="my_layers.py".'
        ) from error
