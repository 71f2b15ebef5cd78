import keras
import numpy as np
import pytest

from keras_vit.export import parity
from keras_vit.training import enable_lora
from tests import tiny
from tests.errors import refuses

needs_weight_only_int8 = pytest.mark.skipif(
    not hasattr(keras.quantizers, "Int8QuantizationConfig"), reason="this version of Keras quantizes activations too"
)


@pytest.mark.parametrize("name, bits", [("float16", 11), ("bfloat16", 8)])
def test_weights_of_copy_are_rounded(name, bits):
    model = tiny.randomize(tiny.build())
    before = model.get_weights()
    reduced = parity.with_precision(model, name)
    for ours, theirs, kept in zip(before, reduced.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(ours, kept)
        np.testing.assert_allclose(theirs, ours, rtol=2.0**-bits, atol=1e-6)
        assert (theirs == ours).mean() < 0.5
        if theirs.size >= 64:
            assert parity.stored(theirs, name).nbytes == theirs.nbytes // 2
            assert parity.stored(ours, name) is None and parity.stored(theirs, "float32") is None


@needs_weight_only_int8
@pytest.mark.filterwarnings("error::UserWarning")
def test_int8_quantizes_only_dense_kernels():
    model = tiny.randomize(tiny.build(num_layers=1))
    reduced = parity.with_precision(model, "int8")
    kinds = {w.path: str(w.dtype) for w in reduced.weights}
    quantized = [path for path, kind in kinds.items() if kind == "int8"]
    # The block has four dense kernels, the head one.
    assert len(quantized) == 5
    assert all(path.endswith("kernel") for path in quantized)
    images = np.random.default_rng(0).uniform(-1, 1, (4, 16, 16, 3)).astype("float32")
    ours, theirs = (np.asarray(keras.ops.convert_to_numpy(m(images))) for m in (model, reduced))
    assert 0 < np.abs(ours - theirs).max() < 0.3 * np.abs(ours).max()
    assert {str(w.dtype) for w in model.weights} == {"float32"}


@pytest.mark.parametrize("name", ["float16", pytest.param("int8", marks=needs_weight_only_int8)])
def test_copy_keeps_lora(name):
    model = tiny.build(num_layers=1)
    enable_lora(model, rank=2, alpha=3.0)
    tiny.randomize(model)
    images = np.random.default_rng(0).uniform(-1, 1, (4, 16, 16, 3)).astype("float32")
    copies = (model, parity.with_precision(model, name))
    ours, theirs = (keras.ops.convert_to_numpy(m(images)) for m in copies)
    assert np.corrcoef(ours.ravel(), theirs.ravel())[0, 1] > 0.99


def test_weights_that_overflow_raise():
    model = tiny.build(num_layers=1)
    assert parity.with_precision(model, "float32") is model
    model.set_weights([w + 1e5 for w in model.get_weights()])
    refuses("float16 can hold", parity.with_precision, model, "float16")


def test_accuracy_change_counts_top1_and_accuracy():
    before = np.array([[1.0, 0.0], [0.0, 1.0], [3.0, 0.0]])
    after = np.array([[0.0, 1.0], [0.0, 1.0], [3.0, 0.0]])
    change = parity.accuracy_change(before, after, labels=[1, 1, 0])
    assert (change["num_images"], change["largest"], change["same_top1"]) == (3, 1.0, 2)
    assert change["mean"] == pytest.approx(1 / 3)
    assert (change["before"], change["after"]) == (pytest.approx(2 / 3), 1.0)
    assert "before" not in parity.accuracy_change(before, after)
    assert parity.accuracy_change(before[:, :1], after[:, :1])["same_top1"] is None
    refuses("`labels`", parity.accuracy_change, before, after, labels=[1])
