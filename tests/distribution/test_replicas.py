import numpy as np
import pytest

from keras_vit import distribution
from tests.distribution import children, tensorflow_cases

pytestmark = pytest.mark.backends("tensorflow")
CASES = [case.__name__ for case in tensorflow_cases.CASES]


@pytest.fixture(scope="module")
def found(tmp_path_factory, request):
    """Returns the results of all cases that this run needs."""
    folder = tmp_path_factory.mktemp("replicas")
    children.write_images(folder, "01", 10, (12, 12))
    names = children.chosen(request.config, tensorflow_cases.jobs(folder), tensorflow_cases.LONG)
    return children.results("tensorflow_cases", folder, names, KERAS_BACKEND="tensorflow")


@pytest.mark.parametrize("case", children.marked(CASES, tensorflow_cases.LONG, pytest.mark.long))
def test_two_replicas_train_like_one_device(found, case):
    one, two = found[case]
    assert len(one["losses"]) == len(set(one["losses"])) == tensorflow_cases.STEPS
    np.testing.assert_allclose(two["losses"], one["losses"], rtol=1e-4)
    np.testing.assert_allclose(two["weights"], one["weights"], rtol=1e-4, atol=1e-7)


def test_from_pretrained_loads_both_replicas(found):
    assert found["loaded"] == [[0, 0]]


@pytest.mark.parametrize(
    "setting", ["gradient_accumulation_steps", "clipnorm", "clipvalue", "global_clipnorm", "LossScaleOptimizer"]
)
def test_synchronize_refuses_settings_per_replica(found, setting):
    (refusals,) = found["refusals"]
    assert refusals[setting].startswith("ValueError: Expected ") and setting in refusals[setting]
    assert "on several devices of TensorFlow" in refusals[setting] and "KERAS_BACKEND=jax or torch" in refusals[setting]
    assert "without gradient_accumulation_steps" in refusals["nested"]


@pytest.mark.long
def test_run_of_one_device_resumes_on_two(found):
    one, _, two = found["run"]
    assert (one["replicas"], two["replicas"]) == (1, 2)
    assert (one["first_step"], two["first_step"]) == (0, 3)
    assert two["history"].keys() == one["history"].keys()
    for name, values in one["history"].items():
        np.testing.assert_allclose(two["history"][name], values, rtol=1e-4, err_msg=name)
    assert two["test"] == pytest.approx(one["test"], rel=1e-4)


def test_initialize_on_tensorflow_is_refused():
    with pytest.raises(RuntimeError, match="JAX or PyTorch backend for several processes.*MultiWorkerMirroredStrategy"):
        distribution.initialize("localhost:1234", num_processes=2, process_id=0)
