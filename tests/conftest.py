"""Fixtures and settings that all tests share."""
# What is set below must be set before Keras comes in.
# ruff: noqa: E402

import gc
import importlib.util
import mmap
import os
import resource
import zlib
from pathlib import Path

# Before Keras brings TensorFlow in, which reads it once.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")


def known_to_xla(flag):
    """Whether each XLA that is installed has this flag: one that has not ends the process."""
    for package, library in {"jaxlib": "libjax_common.so", "tensorflow": "libtensorflow_framework.so.2"}.items():
        if spec := importlib.util.find_spec(package):
            path = Path(spec.origin).with_name(library)
            if not path.is_file():
                return False
            with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                if content.find(b"\0" + flag.encode() + b"\0") < 0:
                    return False
    return True


# Small models of ever new shapes: XLA spends far more time optimising them than it saves.
flags = "--xla_backend_optimization_level=0"
if known_to_xla("xla_cpu_use_fusion_emitters"):
    flags += " --xla_cpu_use_fusion_emitters=false"
os.environ.setdefault("XLA_FLAGS", flags)
# JAX keeps what it compiled: tests build the same small models again and again, in several processes.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(__file__).resolve().parents[1] / ".pytest_cache" / "jax"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")

# The threads of one worker would spin while those of another work: a quarter of the time of PyTorch's tests.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")

import hypothesis
import keras
import pytest

# What computes in NumPy or tf.data alone, or not at all, need not be tried on each backend: TensorFlow's run does it.
BACKEND_FREE = {
    "data": (
        "test_broken.py",
        "test_crop.py",
        "test_erase.py",
        "test_frame.py",
        "test_joint.py",
        "test_operations.py",
        "test_splitting.py",
        "test_tfds.py",
        "test_vtab.py",
    ),
    "weights": (
        "read",
        "names",
        "test_codecs.py",
        "test_download.py",
        "test_hub.py",
        "test_resize.py",
        "test_write.py",
        "test_zoo.py",
    ),
}
# PyTorch, which compiles nothing, is fastest with small models.
TURNS = ("tensorflow", "jax", "torch", "torch")
if keras.backend.backend() != "tensorflow":
    collect_ignore = [f"{folder}/{name}" for folder, names in BACKEND_FREE.items() for name in names]


def pytest_collection_modifyitems(items):
    """Leaves out what another backend tries, unless KERAS_VIT_EVERYWHERE=1: all on each takes three times as long.

    `tried_on` names the backends. `in_turn` is for tests that put together what each backend tests by itself, layers
    and golden files above all: each of them is tried on one backend, chosen by its name.
    """
    if os.environ.get("KERAS_VIT_EVERYWHERE") == "1":
        return
    for item in items:
        if mark := item.get_closest_marker("tried_on"):
            backends = mark.args
        elif item.get_closest_marker("in_turn") and not item.get_closest_marker("skipif"):
            backends = [TURNS[zlib.crc32(item.name.encode()) % len(TURNS)]]
        else:
            continue
        if keras.backend.backend() not in backends:
            item.add_marker(pytest.mark.skip(reason=f"tried on {', '.join(backends) or 'none'}"))


SHARED = Path(__file__).resolve().parents[2] / "shared"

# JAX compiles each operation for each new shape, which takes it ten times as long as the others.
settings = {"deadline": None, "print_blob": True, "max_examples": 5 if keras.backend.backend() == "jax" else 25}
hypothesis.settings.register_profile("default", **settings)
# CI must not fail on a draw that nobody can see again.
hypothesis.settings.register_profile("ci", **settings, derandomize=True, database=None)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "default")


@pytest.fixture(autouse=True, scope="module")
def _forget():
    """Frees what JAX compiled for a file, once it takes gigabytes, of which two workers would need too many.

    Python's garbage collector need not go again and again through the million objects that frameworks and earlier files
    keep, which took a third of the time of files of large models.
    """
    gc.collect()
    gc.freeze()
    yield
    if keras.backend.backend() == "jax" and resource.getrusage(resource.RUSAGE_SELF).ru_maxrss > 3 * 1024**2:
        import jax

        jax.clear_caches()


@pytest.fixture(autouse=True)
def _seed():
    """Makes each test random in the same way, whichever tests ran before it."""
    keras.utils.set_random_seed(0)


@pytest.fixture(scope="session")
def shared():
    """The folder of real weights and real data beside the checkout."""
    if not SHARED.is_dir():
        pytest.skip(f"No folder of real weights and data at {SHARED}")
    return SHARED


@pytest.fixture
def count_params():
    """Counts the parameters of a builder's model without allocating them, which would take up to 7 GB."""

    def count(builder):
        with keras.StatelessScope(initialize_variables=False):
            return builder().count_params()

    yield count
    # The variables still wait for their values, which the end of any other scope would bring.
    keras.utils.clear_session(free_memory=False)
