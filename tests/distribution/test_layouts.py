import json
import os
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest

from keras_vit import distribution
from keras_vit.distribution.description import collectives
from tests.distribution import jax_cases
from tests.tiny import build

jax_only = pytest.mark.backends("jax")
# The curves of chaotic training drift apart by rounding alone; half precision rounds otherwise in parts of a batch.
TOLERANCE, HALF_TOLERANCE = 1e-4, 2e-2


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What came of all cases on 8 devices, which a process has from its start."""
    folder = tmp_path_factory.mktemp("layouts")
    rng = np.random.default_rng(0)
    for label in range(4):
        (folder / "images" / str(label)).mkdir(parents=True)
        for i in range(12):
            pixels = rng.integers(0, 100 + 50 * label, (40, 40, 3))
            keras.utils.save_img(folder / "images" / str(label) / f"{i}.png", pixels, scale=False)
    environment = {**os.environ, "KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "8"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.distribution.jax_cases", str(folder), *(case.__name__ for case in cases)],
            cwd=Path(__file__).parents[2],
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=(folder / f"{i}.log").open("w"),
        )
        for i, cases in enumerate(jax_cases.CASES)
    ]
    try:
        codes = [process.wait(timeout=500) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert codes == [0, 0], "\n".join((folder / f"{i}.log").read_text()[-3000:] for i in range(2))
    names = [case.__name__ for cases in jax_cases.CASES for case in cases]
    return {name: json.loads((folder / f"{name}.json").read_text()) for name in names}


@jax_only
@pytest.mark.parametrize(
    "kind, split", [(kind, split) for kind, (_, splits) in jax_cases.KINDS.items() for split in splits]
)
def test_several_devices_train_like_one(found, kind, split):
    curves = found["curves"][kind]
    assert len(curves["one"]) == 30 and len(set(curves["one"])) == 30
    tolerance = HALF_TOLERANCE if "bfloat16" in kind else TOLERANCE
    np.testing.assert_allclose(curves[split], curves["one"], rtol=tolerance)


@jax_only
@pytest.mark.parametrize("family", list(jax_cases.FAMILIES))
def test_tensor_parallelism_splits_each_family_and_leaves_its_outputs(found, family):
    result = found["families"][family]
    assert result["difference"] < 1e-5
    split = {path for path, axes in result["axes"].items() if "model" in axes}
    assert split == {path for path, is_placed in result["placed"].items() if is_placed}
    # All kernels of the blocks but those of LoRA, and none of the ResNets.
    names = ("/qkv/kernel", "/out/kernel", "/dense_1/kernel", "/dense_2/kernel", "query/kernel", "key/kernel")
    names = (*names, "value/kernel", "attention_output/kernel")
    assert {path for path in split if path.endswith("kernel")} == {p for p in result["axes"] if p.endswith(names)}
    assert {path.rpartition("/")[2] for path in split} <= {"kernel", "bias"}
    assert len(split) == {"map": 16, "qkv_bias": 5, "bit": 0}.get(family, 6)


@jax_only
@pytest.mark.parametrize("case", ["plain", "qk_norm", "key_bias", "none"])
def test_projections_by_heads_have_the_same_values_and_gradients(found, case):
    assert found["heads"][case] < 2e-5


@jax_only
@pytest.mark.parametrize("name", list(jax_cases.TRAINERS))
def test_each_trainer_computes_on_four_devices_what_it_does_on_one(found, name):
    one, four = (found["trainers"][name][key] for key in ("one", "data 4"))
    assert len(one["losses"]) == 8 and len(set(one["losses"])) == 8
    np.testing.assert_allclose(four["losses"], one["losses"], rtol=TOLERANCE)
    np.testing.assert_allclose(four["weights"], one["weights"], rtol=TOLERANCE, atol=1e-7)


@jax_only
def test_evaluation_on_four_devices_is_that_of_one(found):
    one, four = found["evaluations"]["one"], found["evaluations"]["data 4"]
    assert four["labels"] == one["labels"] and len(one["features"]) == 40
    np.testing.assert_allclose(four["features"], one["features"], rtol=TOLERANCE)
    np.testing.assert_allclose(four["few-shot"], one["few-shot"], rtol=TOLERANCE)
    assert four["k-NN"] == one["k-NN"]


@jax_only
def test_describe_counts_what_each_device_holds_and_sends(found):
    one, data, fsdp, tensor = (found["descriptions"][name] for name in ("one", "data", "fsdp", "tensor"))
    for key in ("parameters", "optimizer"):
        assert data[key] == one[key] == one["variables"][key]
        # Some numbers, such as counters, are not split.
        assert one[key] / 8 <= fsdp[key] < one[key] / 8 * 1.01
    # Two moments and two counters.
    assert one["optimizer"] - 2 * one["parameters"] in range(64)
    assert one["flops"] / 8 < data["flops"] < one["flops"] / 7
    assert one["collectives"] == {} and set(data["collectives"]) == {"all-reduce"}
    assert data["temporary"] < one["temporary"]
    # Gradients of all parameters but the bias of the last block's keys, which changes no attention weight; and the
    # loss.
    reduced = data["parameters"] - 4 * 192
    assert reduced <= data["collectives"]["all-reduce"][1] < 1.001 * reduced
    assert fsdp["collectives"]["all-gather"][1] > 0.9 * one["parameters"]
    # Of queries, keys and values only the kernels and biases, which are not split by heads, and their gradients.
    assert tensor["collectives"]["all-gather"][1] <= 2 * 2 * 4 * (192 + 1) * 3 * 192
    assert one["variables"]["collectives"] is one["variables"]["temporary"] is None
    for line in ("MB per device", "parameters", "optimizer state", "all-reduce x"):
        assert line in data["text"]
    assert found["descriptions"]["not compiled"].startswith("ValueError: Expected a compiled model.")
    assert "`batch_size`. Expected a multiple of 8" in found["descriptions"]["batch"]


@jax_only
@pytest.mark.parametrize("case, first_step", [("chain", 15), ("runs", 6)])
def test_a_run_goes_on_with_other_devices_as_if_left_alone(found, case, first_step):
    alone, other = found[case]["alone"], found[case]["other"]
    assert (alone["first_step"], other["first_step"]) == (0, first_step)
    assert other["history"].keys() == alone["history"].keys()
    for name, values in alone["history"].items():
        assert len(values) == 2
        np.testing.assert_allclose(other["history"][name], values, rtol=TOLERANCE, err_msg=name)


@jax_only
def test_each_part_of_a_run_adds_its_steps(found):
    assert found["chain"]["positions"] == [f"step_{step:012d}.npz" for step in (3, 6, 9, 12, 15)]


@jax_only
def test_a_run_on_several_devices_scores_each_test_image_once_and_saves_whole_weights(found):
    runs = found["runs"]
    assert runs["other"]["test"] == pytest.approx(runs["alone"]["test"], rel=TOLERANCE)
    np.testing.assert_allclose(runs["weights"], runs["expected"], rtol=TOLERANCE, atol=1e-7)


@jax_only
def test_a_batch_that_the_devices_do_not_divide_is_refused_before_anything_is_written(found):
    refused = found["runs"]["refused"]
    assert refused.startswith("ValueError: Expected a `batch_size` that the 3 devices") and refused.endswith(": 8")
    assert not found["runs"]["refused left"]


def test_collectives_are_counted_in_the_text_of_a_program():
    program = """
  %all-reduce.1 = (f32[4,2]{1,0}, bf16[3]{0}) all-reduce(%a, %b), channel_id=1, replica_groups={{0,1}}
  ROOT %all-reduce.2 = f32[] all-reduce(%c), channel_id=2
  %start = (f32[2]{0}, f32[8]{0}) all-gather-start(%d), dimensions={0}
  %done = f32[8]{0} all-gather-done(%start)
  %add = f32[8]{0} add(%done, %all-reduce.2)
"""
    found = collectives(program)
    assert found["all-reduce"] == (2, 4 * 8 + 2 * 3 + 4)
    assert found["all-gather"][0] == 1
    assert set(found) == {"all-reduce", "all-gather"}


@jax_only
def test_describe_takes_a_model_with_metrics():
    model = build()
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    first, second = (distribution.describe(model, batch_size=2) for _ in range(2))
    assert first == second and first.flops > 0
    assert all(not np.any(variable) for variable in model.metrics_variables)


@pytest.mark.backends("tensorflow", "torch")
def test_other_backends_have_no_layouts():
    backend = keras.backend.backend()
    for call in (distribution.device_mesh, distribution.data_parallel, distribution.fsdp):
        with pytest.raises(RuntimeError, match=f"Expected the JAX backend.*Received: {backend}"):
            call()
    with pytest.raises(RuntimeError, match=f"Expected the JAX backend.*Received: {backend}"):
        distribution.describe(build())
