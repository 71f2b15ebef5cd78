import keras
import pytest

from keras_vit import training
from keras_vit.distribution import distributed
from keras_vit.distribution.layouts import KINDS, Split


@pytest.mark.every_backend
@pytest.mark.parametrize("kind", [None, "data"])
def test_distributed_on_one_device_has_one_part(kind):
    with distributed(kind) as split:
        assert split == Split(parts=1, num_shards=1, shard_index=0)
        found = keras.distribution.distribution()
        assert (found is not None) == (kind == "data" and keras.backend.backend() == "jax")
    assert keras.distribution.distribution() is None


@pytest.mark.parametrize(
    "given, message",
    [
        (("model",), "`kind`.*'data', 'fsdp', 'tensor', 'fsdp\\+tensor'.*Received: 'model'"),
        (("data", 2), "`model_devices`. Expected None with distribution='data'. Received: 2"),
    ],
)
def test_distributed_invalid_argument_is_named(given, message):
    with pytest.raises(ValueError, match=message), distributed(*given):
        pytest.fail("nothing is begun")


@pytest.mark.backends("jax")
@pytest.mark.parametrize("kind, number", [("tensor", 3), ("fsdp+tensor", None), ("tensor", 0), ("tensor", 1.5)])
def test_model_devices_must_divide_the_devices(kind, number):
    with pytest.raises(ValueError, match="`model_devices`"), distributed(kind, number):
        pytest.fail("nothing is begun")


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "data"])
def test_distributed_kinds_of_jax_are_refused_on_pytorch(kind, tmp_path):
    says = r"Expected the JAX backend \(KERAS_BACKEND=jax\).*torch, which supports only 'data'"
    with pytest.raises(RuntimeError, match=says), distributed(kind):
        pytest.fail("nothing is begun")
    with pytest.raises(RuntimeError, match=says):
        training.run(training.RECIPES["finetune_pets"], lambda: None, tmp_path / "run", distribution=kind)
    assert not (tmp_path / "run").exists()
