"""Runs the examples of all docstrings and compares their output."""

import doctest
import importlib
import pkgutil
import re

import numpy as np
import pytest

import keras_vit
from keras_vit.models import builders

MODULES = ["keras_vit", *(m.name for m in pkgutil.walk_packages(keras_vit.__path__, "keras_vit."))]
# All named builders share one template of docstrings, so that three of them are enough.
LEFT_OUT = set(builders.__all__) - {"ViTTi16", "DeiTTi16Distilled", "RViTTi16"}
# TensorFlow and PyTorch print shapes in this form.
SHAPE = re.compile(r"(?:TensorShape|torch\.Size)\(\[([\d, ]*)\]\)")


class ShapeChecker(doctest.OutputChecker):
    """Compares shapes as tuples, whichever class the backend prints."""

    def check_output(self, want, got, optionflags):
        return super().check_output(want, SHAPE.sub(as_tuple, got), optionflags)


def as_tuple(match):
    return str(tuple(int(size) for size in match[1].split(",") if size.strip()))


def examples(name):
    """Returns the docstrings of a module that contain examples."""
    module = importlib.import_module(name)
    globs = {**vars(module), "np": np, "keras_vit": keras_vit}
    found = doctest.DocTestFinder(exclude_empty=True).find(module, name, globs=globs)
    return [test for test in found if test.examples and test.name.rsplit(".", 1)[-1] not in LEFT_OUT]


@pytest.mark.parametrize("test", [t for name in MODULES for t in examples(name)], ids=lambda test: test.name)
def test_docstring_example_prints_its_output(test):
    report = []
    runner = doctest.DocTestRunner(checker=ShapeChecker(), optionflags=doctest.NORMALIZE_WHITESPACE)
    assert not runner.run(test, out=report.append, clear_globs=False).failed, "".join(report)


def test_public_layers_and_builders_have_an_example():
    public = {name: getattr(keras_vit, name) for name in keras_vit.__all__}
    public |= {name: getattr(keras_vit.layers, name) for name in keras_vit.layers.__all__}
    missing = [name for name, value in public.items() if callable(value) and ">>> " not in (value.__doc__ or "")]
    assert not missing
