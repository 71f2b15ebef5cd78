"""Fixtures and settings that all tests share."""
# Set the environment variables below before Keras is imported.
# ruff: noqa: E402

import gc
import importlib.util
import mmap
import os
import resource
from pathlib import Path

# TensorFlow reads this variable only when it is imported.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")


def known_to_xla(flag):
    """Returns True if every installed XLA knows this flag. An XLA that does not know it would end the process."""
    for package, library in {"jaxlib": "libjax_common.so", "tensorflow": "libtensorflow_framework.so.2"}.items():
        if spec := importlib.util.find_spec(package):
            path = Path(spec.origin).with_name(library)
            if not path.is_file():
                return False
            with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                if content.find(b"\0" + flag.encode() + b"\0") < 0:
                    return False
    return True


# The models are small and their shapes differ, so optimizing them would take XLA far more time than it saves.
flags = "--xla_backend_optimization_level=0"
if known_to_xla("xla_cpu_use_fusion_emitters"):
    flags += " --xla_cpu_use_fusion_emitters=false"
os.environ.setdefault("XLA_FLAGS", flags)
# Keep compiled programs in JAX's cache, because many tests and processes build the same small models.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(__file__).resolve().parents[1] / ".pytest_cache" / "jax"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")

# On a GPU, cuBLAS and cuDNN would round float32 to TensorFloat32, which the comparisons with golden files do not allow.
os.environ.setdefault("NVIDIA_TF32_OVERRIDE", "0")

# With one thread, PyTorch rounds batches of different sizes in the same way. With more threads, idle threads of one
# worker would also slow the other worker: PyTorch's tests took a third longer.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import hypothesis
import keras
import numpy as np
import pytest

import keras_vit
from tests import contract
from tests.tiny import build, randomize

if keras.backend.backend() == "jax":
    import jax

    if jax.default_backend() != "cpu":
        # XLA's own kernels ignore NVIDIA_TF32_OVERRIDE.
        jax.config.update("jax_default_matmul_precision", "highest")

# The backend that runs the tests of a folder. PyTorch compiles nothing, so it is the fastest with small models.
# Pipelines and exporters need TensorFlow. `every_backend` marks tests for all three backends, `backends` for several.
FOLDERS = {"data": "tensorflow", "export": "tensorflow"}
DEFAULT = "torch"
BACKENDS = ("tensorflow", "jax", "torch")
EVERYWHERE = os.environ.get("KERAS_VIT_EVERYWHERE") == "1"
TESTS = Path(__file__).parent
# The long run repeats hypothesis tests with more examples and layer contracts with more dtype policies.
SIGNS_OF_LONG_TESTS = ("mark.long", "given(", "def test_contract")


def backend_of_folder(path):
    """Returns the backend that runs the unmarked tests of a file."""
    folder, *rest = path.relative_to(TESTS).parts
    return FOLDERS.get(folder, DEFAULT) if rest else DEFAULT


def backends_of(item):
    """Returns the backends that run a test."""
    if mark := item.get_closest_marker("backends"):
        return mark.args
    if EVERYWHERE or item.get_closest_marker("every_backend") or item.get_closest_marker("long_elsewhere"):
        return BACKENDS
    return (backend_of_folder(item.path),)


def pytest_report_header():
    folders = ", ".join(f"{folder} on {backend}" for folder, backend in FOLDERS.items())
    return f"backend: {keras.backend.backend()}. Unmarked tests run once: {folders}, other folders on {DEFAULT}."


def pytest_ignore_collect(collection_path, config):
    """Leaves out a file before it is imported if none of its tests can run."""
    if EVERYWHERE or collection_path.suffix != ".py" or not collection_path.name.startswith("test_"):
        return None
    text = collection_path.read_text(encoding="utf-8")
    here = keras.backend.backend() == backend_of_folder(collection_path)
    # The normal run does not import a file for tests that only the long run repeats on this backend.
    marks = ("every_backend", "backends", *(["long_elsewhere"] if config.option.markexpr != "not long" else []))
    if not here and not any(f"mark.{name}" in text for name in marks):
        return True
    if config.option.markexpr == "long" and not any(sign in text for sign in SIGNS_OF_LONG_TESTS):
        return True
    return None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Deselects the tests of other backends. With KERAS_VIT_EVERYWHERE=1, unmarked tests run on all of them."""
    if config.option.markexpr == "long":
        for item in items:
            if getattr(item.obj, "is_hypothesis_test", False) or item.originalname.startswith("test_contract"):
                item.add_marker(pytest.mark.long)
    backend = keras.backend.backend()
    for item in items:
        is_elsewhere = item.get_closest_marker("long_elsewhere") and backend != backend_of_folder(item.path)
        if is_elsewhere and not EVERYWHERE and not item.get_closest_marker("every_backend"):
            item.add_marker(pytest.mark.long)
    # Begin with the files outside the folders. Some of them take long, so at the end one worker would wait for another.
    items.sort(key=lambda item: item.path.parent != TESTS)
    others = [item for item in items if backend not in backends_of(item)]
    if others:
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if backend in backends_of(item)]


SHARED = Path(__file__).resolve().parents[2] / "shared"


def pytest_configure(config):
    """Sets the number of hypothesis examples and of low-precision policies of this run."""
    long = config.option.markexpr == "long"
    # Use a fixed seed and no database, so that a failure in CI can be repeated.
    seed = {"derandomize": True, "database": None} if os.environ.get("CI") else {}
    hypothesis.settings.register_profile("run", deadline=None, print_blob=True, max_examples=50 if long else 5, **seed)
    hypothesis.settings.load_profile("run")
    if long:
        contract.POLICIES = tuple(contract.LOW_PRECISION)
    # Optimizing the graphs takes half of the time of each small pipeline. TensorFlow's long run keeps the default. Only
    # the runs that have many pipelines import TensorFlow here.
    if long != (keras.backend.backend() == "tensorflow") and importlib.util.find_spec("tensorflow"):
        import tensorflow as tf

        tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})


@pytest.fixture(autouse=True, scope="module")
def _forget():
    """Frees JAX's compiled programs after a test file if they take gigabytes, because two workers share the memory.

    Also excludes the objects of the frameworks and earlier files, about a million, from Python's garbage collection.
    Visiting them took a third of the time of the tests of large models.
    """
    gc.collect()
    gc.freeze()
    yield
    if keras.backend.backend() == "jax" and resource.getrusage(resource.RUSAGE_SELF).ru_maxrss > 3 * 1024**2:
        import jax

        jax.clear_caches()


@pytest.fixture(autouse=True)
def _seed():
    """Gives each test the same random numbers, whichever tests ran before it."""
    keras.utils.set_random_seed(0)


@pytest.fixture(scope="session")
def shared():
    """The folder of real weights and real data beside the checkout."""
    if not SHARED.is_dir():
        pytest.skip(f"No folder of real weights and data at {SHARED}")
    return SHARED


@pytest.fixture
def count_params():
    """Counts the parameters of a builder's model without allocating them, because they would take up to 7 GB."""

    def count(builder):
        with keras.StatelessScope(initialize_variables=False):
            return builder().count_params()

    yield count
    # The variables have no values yet. Remove them, because the end of another scope would allocate the values.
    keras.utils.clear_session(free_memory=False)


@pytest.fixture
def tiny():
    return randomize(build())


@pytest.fixture(scope="session")
def tiny_bytes(tmp_path_factory):
    path = tmp_path_factory.mktemp("tiny") / "tiny.npz"
    keras_vit.save_weights(randomize(build()), path)
    return path.read_bytes()


@pytest.fixture
def tiny_file(tiny_bytes, tmp_path):
    """A file with the weights of `tiny`."""
    path = tmp_path / "tiny.npz"
    path.write_bytes(tiny_bytes)
    return path


@pytest.fixture
def tiny_arrays(tiny_file):
    with np.load(tiny_file) as file:
        return dict(file)
