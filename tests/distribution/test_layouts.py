import keras
import numpy as np
import pytest

from keras_vit import distribution
from keras_vit.pretraining import MAE
from keras_vit.training import SAM
from tests.distribution import children, jax_cases
from tests.errors import refuses
from tests.tiny import build

jax_only = pytest.mark.backends("jax")
# Rounding errors grow during training. Half precision rounds parts of a batch in another way.
TOLERANCE, HALF_TOLERANCE = 1e-4, 2e-2


def params(kind):
    """Returns the names of cases of a kind, such as "family", as parameters of a test."""
    return children.marked(
        [name for name in jax_cases.CASES if name.startswith(f"{kind} ")], jax_cases.LONG, pytest.mark.long
    )


@pytest.fixture(scope="module")
def found(tmp_path_factory, request):
    """Returns the results of all cases that this run needs, from one process with 8 devices."""
    folder = tmp_path_factory.mktemp("layouts")
    children.write_images(folder, "0123", 12, (40, 40))
    names = children.chosen(request.config, jax_cases.CASES, jax_cases.LONG)
    environment = {"KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "8"}
    return children.results("jax_cases", folder, names, **environment)


@jax_only
@pytest.mark.long
@pytest.mark.parametrize(
    "kind, split", [(kind, split) for kind, (_, splits) in jax_cases.KINDS.items() for split in splits]
)
def test_curve_on_several_devices_equals_one_device(found, kind, split):
    curves = found[f"curves, {kind}"]
    assert len(curves["one"]) == 30 and len(set(curves["one"])) == 30
    # Losses fall from 2.1 to 0.07, but the rounding errors of bfloat16 do not fall with them.
    options = {"rtol": HALF_TOLERANCE, "atol": 5e-3} if "bfloat16" in kind else {"rtol": TOLERANCE}
    np.testing.assert_allclose(curves[split], curves["one"], **options)


@jax_only
@pytest.mark.parametrize("family", params("family"))
def test_tensor_parallel_output_equals_one_device(found, family):
    result = found[family]
    assert result["difference"] < 1e-5
    split = {path for path, axes in result["axes"].items() if "model" in axes}
    assert split == {path for path, is_placed in result["placed"].items() if is_placed}
    # The dense kernels of the blocks are split. The kernels of LoRA and of ResNets are not.
    names = ("/qkv/kernel", "/out/kernel", "/dense_1/kernel", "/dense_2/kernel", "query/kernel", "key/kernel")
    names = (*names, "value/kernel", "attention_output/kernel")
    assert {path for path in split if path.endswith("kernel")} == {p for p in result["axes"] if p.endswith(names)}
    assert {path.rpartition("/")[2] for path in split} <= {"kernel", "bias"}
    assert len(split) == {"family map": 16, "family qkv_bias": 5, "family bit": 0}.get(family, 6)


@jax_only
@pytest.mark.parametrize("name", params("trainer"))
def test_trainer_on_four_devices_equals_one_device(found, name):
    one, four = found[name]["one"], found[name]["data 4"]
    assert len(one["losses"]) == 8 and len(set(one["losses"])) == 8
    np.testing.assert_allclose(four["losses"], one["losses"], rtol=TOLERANCE)
    np.testing.assert_allclose(four["weights"], one["weights"], rtol=TOLERANCE, atol=1e-7)


@jax_only
def test_evaluation_on_four_devices_equals_one_device(found):
    one, four = found["evaluations"]["one"], found["evaluations"]["data 4"]
    assert four["labels"] == one["labels"] and len(one["features"]) == 40
    np.testing.assert_allclose(four["features"], one["features"], rtol=TOLERANCE)
    np.testing.assert_allclose(four["few-shot"], one["few-shot"], rtol=TOLERANCE)
    assert four["k-NN"] == one["k-NN"]


@jax_only
def test_describe_counts_memory_per_device(found):
    one, data, fsdp, tensor = (found["descriptions"][name] for name in ("one", "data", "fsdp", "tensor"))
    for key in ("parameters", "optimizer"):
        assert data[key] == one[key] == one["variables"][key]
        # Counters are not split.
        assert one[key] / 8 <= fsdp[key] < one[key] / 8 * 1.01
        assert one[key] / 2 < tensor[key] < one[key] * 0.6
    # Two moments and two counters.
    assert one["optimizer"] - 2 * one["parameters"] in range(64)
    assert data["temporary"] < one["temporary"]
    assert found["descriptions"]["turned"] == fsdp
    assert one["variables"]["temporary"] is None
    for line in ("MB per device", "parameters", "optimizer state", "activations, gradients"):
        assert line in data["text"]
    assert found["descriptions"]["not compiled"].startswith("ValueError: Expected a compiled model.")
    assert "`batch_size`. Expected a multiple of 8" in found["descriptions"]["batch"]


def check_history(found, expected):
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        assert len(values) == 2
        np.testing.assert_allclose(found[name], values, rtol=TOLERANCE, err_msg=name)


@jax_only
def test_fit_resumed_on_other_devices_equals_one_device(found):
    alone, other = found["chain"]["alone"], found["chain"]["other"]
    assert (alone["first_step"], other["first_step"]) == (0, 6)
    check_history(other["history"], alone["history"])
    assert found["chain"]["positions"] == [f"step_{step:012d}.npz" for step in (3, 6)]


@jax_only
@pytest.mark.long
def test_run_on_several_devices_equals_one_device(found):
    one, fsdp = found["runs"]["one"], found["runs"]["fsdp"]
    check_history(fsdp["history"], one["history"])
    assert fsdp["test"] == pytest.approx(one["test"], rel=TOLERANCE)
    np.testing.assert_allclose(fsdp["weights"], one["weights"], rtol=TOLERANCE, atol=1e-7)


@jax_only
def test_run_batch_not_divisible_by_devices_is_refused(found):
    refused, is_left = found["refused_run"]
    assert refused.startswith("ValueError: Expected a `batch_size` that is a multiple of the 8 devices")
    assert refused.endswith(": 5") and not is_left


@jax_only
def test_describe_leaves_metrics_unchanged():
    model = build()
    model.compile("adam", keras.losses.CategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    assert distribution.describe(model, batch_size=2).temporary > 0
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    first, second = (distribution.describe(model, batch_size=2) for _ in range(2))
    assert first == second and first.temporary > 0
    assert all(not np.any(variable) for variable in model.metrics_variables)
    for wrapper in (SAM(model), MAE(build(num_classes=0), decoder_num_layers=1)):
        wrapper.compile("adam", model.loss if isinstance(wrapper, SAM) else None)
        assert distribution.describe(wrapper, batch_size=2).temporary > 0
    (model := build(image_size=(None, None))).compile("adam", "mse")
    refuses("`model`. Expected a model with one input of a fixed size", distribution.describe, model, 2)


@jax_only
def test_fsdp_layouts_of_another_mesh_are_refused():
    names = [("data", "model"), ["data", "model"], ("batch", "model")]
    mesh, equal, other = (keras.distribution.DeviceMesh(type(each)((1, 1)), each, ["cpu:0"]) for each in names)
    layouts = distribution.layout_map(mesh)
    assert distribution.fsdp(equal, layouts=layouts).device_mesh is mesh
    assert distribution.fsdp(layouts=layouts).device_mesh is mesh
    refuses("`layouts`.* made for .*'batch'.* Received: .*'data'", distribution.fsdp, other, layouts=layouts)


def test_other_backends_have_no_layouts():
    for call in (distribution.device_mesh, distribution.data_parallel, distribution.fsdp):
        refuses("Expected the JAX backend.*Received: torch", call, error=RuntimeError)
    refuses("Expected the JAX backend.*Received: torch", distribution.describe, build(), error=RuntimeError)
