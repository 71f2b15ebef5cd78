"""Runs an export function in a new Python process with another backend.

The new process reads the model from a .keras file.
"""

import importlib
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import keras

# The parent may hold all GPU memory, so child processes use the CPU.
CPU = {"CUDA_VISIBLE_DEVICES": "-1", "HIP_VISIBLE_DEVICES": "-1", "ROCR_VISIBLE_DEVICES": "-1", "JAX_PLATFORMS": "cpu"}
CPU |= {"KERAS_TORCH_DEVICE": "cpu"}
# The child process may need the parent's sys.path to find this package, so set sys.path before the import.
START = (
    "import json, sys; job = json.load(sys.stdin); sys.path[:] = job['path']; "
    "from keras_vit.export.child import main; main(job)"
)
ADVICE = (
    "Define custom code at the top level of a file, such as my_layers.py, and import it, or pass "
    'custom_module="my_layers.py".'
)


def run_in_child(function, model, *, backend, custom_module=None, **arguments):
    """Calls `function(model, **arguments)` in a new process on the CPU, with another backend. Returns the result."""
    if importlib.util.find_spec(backend) is None:
        raise ImportError(f"This export runs in a {backend} process. {backend} is not installed: pip install {backend}")
    objects = custom_objects(model, custom_module)
    # If `custom_module` is a file, the child process imports it as a module from its folder.
    file = [custom_module] if custom_module is not None and os.path.isfile(custom_module) else []
    job = {
        "path": [*(os.path.dirname(os.path.abspath(path)) for path in file), *sys.path],
        "function": f"{function.__module__}:{function.__qualname__}",
        "arguments": arguments,
        "objects": {key: (Path(file[0]).stem if file else module, name) for key, (module, name) in objects.items()},
        "image_data_format": keras.config.image_data_format(),
        "floatx": keras.config.floatx(),
    }
    with tempfile.TemporaryDirectory(prefix="keras_vit_") as folder:
        model_file, result = Path(folder, "model.keras"), Path(folder, "result.json")
        model.save(model_file)
        environment = {"TF_CPP_MIN_LOG_LEVEL": "2", **os.environ, **CPU, "KERAS_BACKEND": backend}
        # -P keeps files in the current folder from shadowing standard modules before sys.path is set.
        process = subprocess.run(
            [sys.executable, "-P", "-c", START],
            input=json.dumps({**job, "model": model_file, "result": result}, default=os.fspath),
            env=environment,
            capture_output=True,
            text=True,
            errors="replace",
        )
        if process.returncode or not result.is_file():
            where = f"in a process with KERAS_BACKEND={backend} (exit status {process.returncode})"
            raise RuntimeError(f"{job['function']} failed {where}. Its stderr:\n{process.stderr.strip()[-4000:]}")
        return json.loads(result.read_text(encoding="utf-8"))


def custom_objects(model, custom_module=None):
    """Returns {registered name: (module, name)} of the custom classes and functions in a model."""
    found, pending = {}, [keras.saving.serialize_keras_object(model)]
    while pending:
        node = pending.pop()
        if isinstance(node, (list, tuple)):
            pending += node
        if not isinstance(node, dict):
            continue
        # The child process does not compile the model, so it needs no loss or metric.
        pending += [value for key, value in node.items() if key != "compile_config"]
        registered, module, name = node.get("registered_name"), node.get("module"), node.get("class_name")
        if name == "function":
            registered = name = node["config"]
        elif module and module.split(".")[0] == "keras":
            continue
        if not registered or registered.startswith("keras_vit>"):
            continue
        known = keras.saving.get_registered_object(registered)
        if known is not None:
            module, name = known.__module__, known.__name__
        if custom_module is not None:
            module = os.fspath(custom_module)
        elif module == "__main__" or not hasattr(sys.modules.get(module), name):
            why = "not registered, or not defined at the top level of a file"
            why = "defined in the running script" if module == "__main__" else why
            received = f"{name!r}, which is {why}. {ADVICE}"
            raise ValueError(f"Expected layers that another process can import. Received: {received}")
        found[registered] = (module, name)
    return found


def main(job):
    """Runs a job in the child process."""
    keras.config.set_image_data_format(job["image_data_format"])
    keras.config.set_floatx(job["floatx"])
    modules = {module: importlib.import_module(module) for module, _ in job["objects"].values()}
    objects = {
        registered: keras.saving.get_registered_object(registered) or getattr(modules[module], name)
        for registered, (module, name) in job["objects"].items()
    }
    # safe_mode=False allows Lambda layers. The file can be trusted, because the parent process wrote it.
    model = keras.saving.load_model(job["model"], objects, compile=False, safe_mode=False)
    module, _, function = job["function"].partition(":")
    result = json.dumps(getattr(importlib.import_module(module), function)(model, **job["arguments"]))
    Path(job["result"]).write_text(result, encoding="utf-8")
